package filter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// lookupAgent marks the filter's own look-ups at the engine. Forwarded calls
// carry no User-Agent at all.
const lookupAgent = "shoal-dockerfilter"

// passedHeaders are the headers of an answer that reach the caller.
var passedHeaders = []string{
	"Content-Type", "Api-Version", "Builder-Version", "Docker-Experimental", "Ostype", "Server", "Swarm", "Cache-Control", "Pragma",
}

func newTransport(dial func(context.Context) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialWait)
			defer cancel()
			return dial(ctx)
		},
		DisableCompression: true, MaxIdleConns: 64, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
		ResponseHeaderTimeout: answerWait, MaxResponseHeaderBytes: maxHeader, Protocols: http1(),
	}
}

// newRequest writes a call as a request. Every header of it is ours.
func newRequest(ctx context.Context, method, target string, body []byte) (*http.Request, error) {
	path, query, _ := strings.Cut(target, "?")
	r := &http.Request{
		Method: method, URL: &url.URL{Scheme: "http", Host: "docker", Path: path, RawQuery: query},
		Host: "docker", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"User-Agent": {""}},
	}
	if body != nil {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Type", "application/json")
	}
	if r.URL.RequestURI() != target {
		return nil, fmt.Errorf("target %q would change on the way", target)
	}
	return r.WithContext(ctx), nil
}

// forward sends a call to the engine and its answer to the caller.
func (f *Filter) forward(w http.ResponseWriter, r *http.Request, c *Call) {
	resp, err := f.roundTrip(r.Context(), c.Method, c.Target, c.Body)
	if err != nil {
		f.log.LogAttrs(r.Context(), slogError, "docker engine did not answer", ruleAttr(c), errAttr(err))
		writeError(w, http.StatusBadGateway, "docker filter: the engine did not answer")
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		writeError(w, http.StatusBadGateway, "docker filter: the engine switched protocols unasked")
		return
	}
	if resp.Body, err = f.learn(c, resp); err != nil {
		writeError(w, http.StatusBadGateway, "docker filter: the engine's answer is not understood")
		return
	}
	copyAnswer(w, resp)
}

func (f *Filter) roundTrip(ctx context.Context, method, target string, body []byte) (*http.Response, error) {
	req, err := newRequest(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	return f.transport.RoundTrip(req)
}

// getJSON looks something up at the engine. The status is that of the answer.
func (f *Filter) getJSON(ctx context.Context, target string, into any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookupWait)
	defer cancel()
	req, err := newRequest(ctx, http.MethodGet, target, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("User-Agent", lookupAgent)
	resp, err := f.transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusSwitchingProtocols { // reading on would heed no context
		return resp.StatusCode, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp.StatusCode, err
	}
	if len(body) > maxAnswer {
		return 0, errors.New("the engine's answer is too long")
	}
	return resp.StatusCode, json.Unmarshal(body, into)
}

// copyAnswer passes an answer on: status, known headers, body. What the engine
// sends piece by piece (the progress of a pull) is passed on piece by piece.
func copyAnswer(w http.ResponseWriter, resp *http.Response) {
	for _, name := range passedHeaders {
		if v := resp.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	if resp.ContentLength > 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	w.WriteHeader(resp.StatusCode)
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(writeWait))
	defer func() { _ = rc.SetWriteDeadline(time.Time{}) }()
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			_ = rc.SetWriteDeadline(time.Now().Add(writeWait))
			if _, werr := w.Write(buf[:n]); werr != nil {
				return
			}
			if resp.ContentLength < 0 {
				_ = rc.Flush()
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			// The caller must not take half an answer for a whole one.
			if conn, _, err := rc.Hijack(); err == nil {
				_ = conn.Close()
			}
			return
		}
	}
}

// writeError answers in the engine's form and ends the connection.
func writeError(w http.ResponseWriter, status int, message string) {
	body, err := json.Marshal(map[string]string{"message": message})
	if err != nil {
		body = []byte(`{"message":"docker filter"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Connection", "close")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

package docker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// How long the engine may take for an answer.
const (
	quickCall = 15 * time.Second // reads, volumes, pause
	slowCall  = 60 * time.Second // create, start, stop, restart, remove
)

const (
	maxAnswer    = 64 << 20 // a listing of 50,000 containers
	maxErrorText = 16 << 10
)

// engine speaks the engine's HTTP API over one endpoint. Safe for concurrent use.
type engine struct {
	dial func(ctx context.Context) (net.Conn, error)
	http *http.Client
	// version is the negotiated API version, such as "1.41"; nil before the
	// first call and after the engine refused it (it was replaced meanwhile).
	version atomic.Pointer[string]
}

func newEngine(network, address string, tlsConfig *tls.Config) *engine {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	e := &engine{}
	e.dial = func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, network, address) }
	if tlsConfig != nil && network == "tcp" {
		e.dial = func(ctx context.Context) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: dialer, Config: tlsConfig}).DialContext(ctx, network, address)
		}
	}
	e.http = &http.Client{
		Transport: &http.Transport{
			DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx) },
			DisableCompression:  true,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     60 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return e
}

// request is one call. Path is below the version and holds only bytes that
// need no escape.
type request struct {
	method, path string
	query        url.Values
	body         any // marshalled to JSON unless nil
}

// call sends r, bounded by limit, and decodes the answer into out unless nil.
func (e *engine) call(ctx context.Context, limit time.Duration, r request, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errNoAnswer)
	defer cancel()
	return e.stream(ctx, r, func(body io.Reader) error {
		if out == nil {
			_, err := io.Copy(io.Discard, io.LimitReader(body, maxAnswer))
			return err
		}
		return json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(out)
	})
}

// stream sends r and hands the body of a successful answer to read.
func (e *engine) stream(ctx context.Context, r request, read func(io.Reader) error) error {
	version, err := e.negotiate(ctx)
	if err != nil {
		return err
	}
	req, err := e.build(ctx, version, r)
	if err != nil {
		return err
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return ended(ctx, fmt.Errorf("%s %s: %w", r.method, r.path, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 && resp.StatusCode != http.StatusNotModified {
		return e.refusal(r, resp)
	}
	if err := read(resp.Body); err != nil {
		return ended(ctx, fmt.Errorf("%s %s: read the answer: %w", r.method, r.path, err))
	}
	return nil
}

func (e *engine) build(ctx context.Context, version string, r request) (*http.Request, error) {
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", r.path, err)
		}
		body = bytes.NewReader(text)
	}
	u := url.URL{Scheme: "http", Host: "docker", Path: r.path, RawQuery: r.query.Encode()}
	if version != "" {
		u.Path = "/v" + version + r.path
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// refusal reads the engine's word on why it did not do r.
func (e *engine) refusal(r request, resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorText)) // what came before a cut is still worth showing
	var said struct{ Message string }
	if json.Unmarshal(text, &said) != nil || said.Message == "" {
		said.Message = strings.TrimSpace(string(text))
	}
	if resp.StatusCode == http.StatusBadRequest && strings.Contains(said.Message, "client version") {
		e.version.Store(nil) // the engine was replaced: negotiate anew at the next call
	}
	return &engineError{op: r.method + " " + r.path, status: resp.StatusCode, message: said.Message}
}

// negotiate returns the API version to use: the engine's newest, at most ours.
func (e *engine) negotiate(ctx context.Context) (string, error) {
	if v := e.version.Load(); v != nil {
		return *v, nil
	}
	r := request{method: http.MethodGet, path: "/_ping"}
	req, err := e.build(ctx, "", r)
	if err != nil {
		return "", err
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return "", ended(ctx, fmt.Errorf("ask the engine for its version: %w", err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", e.refusal(r, resp)
	}
	theirs := resp.Header.Get("Api-Version")
	if !apiLess(theirs, maxAPI) {
		theirs = maxAPI
	}
	if apiLess(theirs, minAPI) {
		return "", &versionError{theirs: resp.Header.Get("Api-Version")}
	}
	e.version.Store(&theirs)
	return theirs, nil
}

// apiLess compares two versions such as "1.41"; what is not one is the least.
func apiLess(a, b string) bool {
	rank := func(v string) int {
		major, minor, ok := strings.Cut(v, ".")
		x, err := strconv.Atoi(major)
		y, err2 := strconv.Atoi(minor)
		if !ok || err != nil || err2 != nil || y < 0 || y > 9999 {
			return -1
		}
		return x*10000 + y
	}
	return rank(a) < rank(b)
}

// hijack sends r and returns the connection once the engine has switched it to
// a raw stream. The connection is the caller's; ctx ends the wait only.
func (e *engine) hijack(ctx context.Context, r request) (net.Conn, *bufio.Reader, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, quickCall, errNoAnswer)
	defer cancel()
	version, err := e.negotiate(ctx)
	if err != nil {
		return nil, nil, err
	}
	req, err := e.build(ctx, version, r)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "tcp")
	conn, err := e.dial(ctx)
	if err != nil {
		return nil, nil, ended(ctx, err)
	}
	in, err := e.upgrade(ctx, conn, req, r)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, in, nil
}

// upgrade exchanges the heads on conn; when ctx ends first the connection is
// closed under it.
func (e *engine) upgrade(ctx context.Context, conn net.Conn, req *http.Request, r request) (*bufio.Reader, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	in := bufio.NewReaderSize(conn, streamBuffer)
	if err := req.Write(conn); err != nil {
		return nil, ended(ctx, fmt.Errorf("%s %s: %w", r.method, r.path, err))
	}
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		return nil, ended(ctx, fmt.Errorf("%s %s: %w", r.method, r.path, err))
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		return nil, e.refusal(r, resp)
	}
	if !stop() { // ctx ended just now and closed the connection
		return nil, context.Cause(ctx)
	}
	return in, nil
}

func (e *engine) close() { e.http.CloseIdleConnections() }

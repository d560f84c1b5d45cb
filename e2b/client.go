package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"
)

const (
	// quickCall bounds calls that only look or note something down.
	quickCall = 30 * time.Second
	// slowCall bounds calls that start, pause or end a machine: the server
	// itself gives up after 70 s, so a shorter wait could abort what succeeds.
	slowCall = 80 * time.Second

	maxAnswer    = 1 << 20
	maxListPage  = 2 << 20
	maxErrorBody = 64 << 10

	maxAttempts = 5
	baseBackoff = 500 * time.Millisecond
	// maxBackoff bounds one wait, also one that the server asks for.
	maxBackoff = 30 * time.Second
)

// client speaks to the control plane. It is safe for concurrent use and owns
// no goroutine.
type client struct {
	base string
	key  Secret
	http *http.Client
	log  *slog.Logger
	// backoff is the first wait before a repetition; it doubles.
	backoff time.Duration
}

// newTransport gives HTTP/1.1 without compression: sizes stay what they seem,
// and one stalled sandbox cannot hold up another on a shared connection.
func newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        90 * time.Second,
		Protocols:              protocols,
	}
}

// httpOnly refuses an answer that leaves HTTP: reading what follows a 101 would
// heed no context, and nothing here asks for one.
type httpOnly struct{ http.RoundTripper }

func (t httpOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		_ = resp.Body.Close()
		return nil, errors.New("the server switched protocols unasked")
	}
	return resp, err
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] looks for.
func (t httpOnly) CloseIdleConnections() {
	if c, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// newHTTP refuses redirects: they would carry the key or a token elsewhere.
func newHTTP(rt http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     httpOnly{rt},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// call is one request to the control plane.
type call struct {
	name    string // for errors, such as "create sandbox"
	method  string
	path    string
	query   url.Values
	body    any // nil for none
	out     any // nil to drop the answer
	timeout time.Duration
	limit   int64 // of the answer; 0 is maxAnswer
	// once: repeat only what the server surely did not do.
	once bool
	// settles: a 409 passes by itself, such as a transition in progress.
	settles bool
}

// do sends c, again as often as it is safe and useful, and returns the status
// and headers of the successful answer. Every failed answer is an *apiError.
func (c *client) do(ctx context.Context, r call) (int, http.Header, error) {
	for attempt := 1; ; attempt++ {
		status, header, err := c.send(ctx, r)
		if err == nil {
			return status, header, nil
		}
		wait, again := r.again(err, c.backoff<<(attempt-1), attempt)
		if !again || ctx.Err() != nil {
			return 0, nil, err
		}
		c.log.LogAttrs(ctx, slog.LevelWarn, "e2b call is repeated",
			slog.String("call", r.name), slog.Int("attempt", attempt),
			slog.Duration("wait", wait), slog.String("error", err.Error()))
		if !sleep(ctx, wait) {
			return 0, nil, err
		}
	}
}

// again decides whether and when r is repeated after err.
func (r call) again(err error, wait time.Duration, attempt int) (time.Duration, bool) {
	e := asAPI(err)
	if e == nil || attempt >= maxAttempts || !e.retryable() {
		return 0, false
	}
	if r.once && !e.notDone() {
		return 0, false
	}
	if e.Status == http.StatusConflict && !r.settles {
		return 0, false
	}
	wait += rand.N(wait/4 + 1) //nolint:gosec // jitter, not a secret
	return min(max(wait, e.RetryAfter), maxBackoff), e.RetryAfter <= maxBackoff
}

// sleep waits for d and reports whether ctx lasted that long.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// send is one attempt.
func (c *client) send(caller context.Context, r call) (int, http.Header, error) {
	ctx, cancel := context.WithTimeout(caller, r.timeout)
	defer cancel()
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	req, err := c.request(ctx, r)
	if err != nil {
		return 0, nil, fmt.Errorf("e2b: %s: %w", r.name, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, &apiError{Call: r.name, NotSent: !sent.Load(), cause: ownDeadline(caller, hideURL(err))}
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		return 0, nil, answerError(r.name, resp.StatusCode, resp.Header, body, c.key)
	}
	if err := readAnswer(resp.Body, r); err != nil {
		return 0, nil, &apiError{Call: r.name, cause: ownDeadline(caller, err)}
	}
	return resp.StatusCode, resp.Header, nil
}

func (c *client) request(ctx context.Context, r call) (*http.Request, error) {
	var body io.Reader
	if r.body != nil {
		data, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-API-Key", c.key.Reveal())
	req.Header.Set("User-Agent", "shoal")
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// readAnswer decodes a bounded body. Unknown fields are for newer servers.
func readAnswer(body io.Reader, r call) error {
	limit := r.limit
	if limit == 0 {
		limit = maxAnswer
	}
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if int64(len(data)) > limit {
		return fmt.Errorf("the answer is longer than %d bytes", limit)
	}
	if r.out == nil {
		return nil
	}
	if err := json.Unmarshal(data, r.out); err != nil {
		return fmt.Errorf("the answer is not the JSON expected: %w", err)
	}
	return nil
}

// errNoAnswer is a call's own time limit, which is not the caller's.
var errNoAnswer = errors.New("no answer in time")

// ownDeadline tells the limit of one call from the caller's: only the latter
// stays a context error.
func ownDeadline(caller context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && caller.Err() == nil {
		return errNoAnswer
	}
	return err
}

// hideURL drops the address that net/http puts before every error.
func hideURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// hopByHop are the headers that concern one connection only (RFC 9110 7.6.1 and
// what clients send to proxies), and those that ask for another protocol on it.
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
}

// forward sends a plain request over upstream, once, and hands back the answer. It
// reports whether it came to an answer.
func (c *clientConn) forward(ctx context.Context, w http.ResponseWriter, r *http.Request, f *flow, upstream net.Conn, d Decision) bool {
	// The client may end its direction and wait for the answer; net/http
	// cancels the request's context then, so it is not the one to use.
	defer context.AfterFunc(r.Context(), func() { c.dog.shorten(c.proxy.cfg.HalfClosedTimeout) })()
	// Without it, net/http reads the rest of the body before it answers, and an
	// origin that refuses an upload early would not be heard.
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/1 always can
	body := &requestBody{ReadCloser: r.Body}
	resp, err := c.oneShot(upstream).RoundTrip(outgoing(ctx, r, f.target, body))
	if err == nil && (resp.StatusCode < 200 || resp.StatusCode > 999) {
		_ = resp.Body.Close() // its error changes nothing
		err = errors.New("unusable status code")
	}
	if err != nil {
		c.refuse(w, f.target, noAnswer(ctx, d.Addr, err))
		c.endUnread(w, body)
		return false
	}
	defer resp.Body.Close()
	c.proxy.report(c.session, d)
	copyHeader(w.Header(), resp.Header)
	if _, ok := resp.Header["Content-Type"]; !ok {
		w.Header()["Content-Type"] = nil // otherwise net/http guesses one
	}
	w.WriteHeader(resp.StatusCode)
	if err = copyBody(w, resp); err != nil {
		c.stop(nil) // a truncated body must not look complete
		return true
	}
	c.endUnread(w, body)
	return true
}

// oneShot is a transport over conn alone.
func (c *clientConn) oneShot(conn net.Conn) *http.Transport {
	cfg := &c.proxy.cfg
	return &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives:      true,
		DisableCompression:     true,
		ResponseHeaderTimeout:  cfg.ResponseTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: int64(cfg.MaxHeaderBytes),
	}
}

// outgoing is r as the upstream gets it: in origin form, naming the judged host.
func outgoing(ctx context.Context, r *http.Request, t target, body io.ReadCloser) *http.Request {
	out := &http.Request{
		Method:        r.Method,
		URL:           &url.URL{Scheme: "http", Host: t.authority(), Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery},
		Host:          t.authority(),
		Header:        make(http.Header, len(r.Header)+1),
		Body:          body,
		ContentLength: r.ContentLength,
	}
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	copyHeader(out.Header, r.Header)
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // otherwise net/http adds its own
	}
	return out.WithContext(ctx)
}

// copyHeader copies what is end-to-end.
func copyHeader(to, from http.Header) {
	drop := make(map[string]bool, len(hopByHop))
	for _, h := range hopByHop {
		drop[h] = true
	}
	for _, list := range from["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			drop[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	for name, values := range from {
		if !drop[name] {
			to[name] = values
		}
	}
}

// copyBody hands the body on as it comes.
func copyBody(w http.ResponseWriter, resp *http.Response) error {
	buf, _ := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buf)
	to := flushing{w, http.NewResponseController(w)}
	if resp.ContentLength < 0 {
		if err := to.Flush(); err != nil {
			return err
		}
	}
	_, err := io.CopyBuffer(to, struct{ io.Reader }{resp.Body}, buf[:])
	return err
}

// flushing writes through.
type flushing struct {
	w http.ResponseWriter
	*http.ResponseController
}

// Write implements io.Writer.
func (f flushing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = f.Flush()
	}
	return n, err
}

// requestBody knows whether it was read to its end.
type requestBody struct {
	io.ReadCloser
	ended atomic.Bool
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// Close implements io.Closer. The server closes the body itself; closing here
// would wait for a read that is in flight.
func (b *requestBody) Close() error { return nil }

// endUnread ends the connection after the answer when the client is still
// sending a body that nobody wants.
func (c *clientConn) endUnread(w http.ResponseWriter, body *requestBody) {
	if body.ended.Load() || body.ReadCloser == http.NoBody {
		return
	}
	if http.NewResponseController(w).Flush() == nil && c.CloseWrite() == nil {
		select {
		case <-c.ctx.Done():
		case <-time.After(lingerTime):
		}
	}
	c.stop(nil)
}

// noAnswer is the refusal for a request that was sent, or begun, in vain.
func noAnswer(ctx context.Context, addr netip.AddrPort, err error) *refusal {
	if unlisted(ctx) {
		return denied(RuleNowUnlisted)
	}
	r := &refusal{verdict: Failed, rule: RuleUpstream, status: http.StatusBadGateway, addr: addr, text: "the host gave no proper answer"}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		r.status, r.text = http.StatusGatewayTimeout, "the host did not answer in time"
	}
	return r
}

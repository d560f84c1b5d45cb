package egress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var errNotHTTP = errors.New("the first byte begins no HTTP method")

// clientConn is one connection of a sandbox. As a net.Conn it counts traffic and
// keeps the watchdog quiet; http.Server reads requests from it.
type clientConn struct {
	net.Conn
	proxy   *Proxy
	session *Session

	ctx    context.Context //nolint:containedctx // lives exactly as long as the connection
	cancel context.CancelCauseFunc
	dog    *watchdog

	begun     bool        // the first byte was judged; reads are serial
	answering atomic.Bool // between a handler's start and the end of its answer
	hijacked  bool        // set and read by the handler's goroutine

	over     chan struct{} // closed when the server is done with the connection
	overOnce sync.Once
}

func newClientConn(ctx context.Context, p *Proxy, conn net.Conn, s *Session) *clientConn {
	c := &clientConn{Conn: conn, proxy: p, session: s, over: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	return c
}

// stop ends the connection, for a cause that its requests see.
func (c *clientConn) stop(cause error) {
	c.cancel(cause)
	_ = c.Conn.Close() // nothing is left to do with it
}

// refuseAll answers whatever is asked with r, without reading it.
func (c *clientConn) refuseAll(r *refusal) {
	c.proxy.report(c.session, r.decision(target{}))
	_ = c.Conn.SetDeadline(time.Now().Add(lingerTime)) // a client that does not read is closed
	if r.writeRaw(c.Conn, target{}) == nil {
		linger(c.Conn)
	}
}

// serve answers requests until the connection ends.
func (c *clientConn) serve() {
	cfg := &c.proxy.cfg
	c.dog = newWatchdog(cfg.IdleTimeout, func() { c.stop(errIdle) })
	defer c.dog.stop()
	defer context.AfterFunc(c.ctx, func() { _ = c.Conn.Close() })()
	server := &http.Server{
		Handler:                      http.HandlerFunc(c.handle),
		ReadHeaderTimeout:            cfg.HeaderTimeout,
		IdleTimeout:                  cfg.IdleTimeout,
		MaxHeaderBytes:               cfg.MaxHeaderBytes,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
		ConnState:                    c.observe,
		BaseContext:                  func(net.Listener) context.Context { return c.ctx },
	}
	_ = server.Serve(&oneConn{conn: c, over: c.over}) // ends by the listener's io.EOF
}

// observe follows the server: an idle connection has answered, a closed one is over.
func (c *clientConn) observe(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateIdle:
		c.answering.Store(false)
	case http.StateClosed:
		c.end()
	case http.StateNew, http.StateActive, http.StateHijacked:
	}
}

func (c *clientConn) end() { c.overOnce.Do(func() { close(c.over) }) }

// Read implements net.Conn. Bytes that cannot begin a request, such as a TLS or
// SOCKS greeting, are refused at once instead of after HeaderTimeout.
func (c *clientConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == 0 {
		return 0, err
	}
	c.dog.touch()
	c.session.traffic(n, &c.session.up)
	if !c.begun {
		c.begun = true
		if !isLetter(b[0]) {
			return 0, errNotHTTP
		}
	}
	return n, err
}

// Write implements net.Conn. What the server writes outside a handler is its own
// refusal of bytes that are no request.
func (c *clientConn) Write(b []byte) (int, error) {
	if !c.answering.Load() {
		c.answering.Store(true)
		c.proxy.report(c.session, denied(RuleTarget).decision(target{}))
	}
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.dog.touch()
		c.session.traffic(n, &c.session.down)
	}
	return n, err
}

// Close implements net.Conn, for the server.
func (c *clientConn) Close() error {
	c.stop(nil)
	return nil
}

// CloseWrite ends the direction to the sandbox, if the connection can.
func (c *clientConn) CloseWrite() error {
	if cw, ok := c.Conn.(closeWriter); ok {
		return cw.CloseWrite()
	}
	return errors.ErrUnsupported
}

func isLetter(b byte) bool { return 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z' }

// handle answers one request.
func (c *clientConn) handle(w http.ResponseWriter, r *http.Request) {
	c.answering.Store(true)
	defer c.endHijacked()
	if r.Method == http.MethodGet && r.RequestURI == "/healthz" {
		_, _ = io.WriteString(w, "ok\n") // a client that is gone is noticed by the server
		return
	}
	t, rule := parseTarget(r.Method, r.RequestURI)
	if rule == "" && !agrees(t, r) {
		rule = RuleTarget
	}
	if rule != "" {
		c.refuse(w, target{tunnel: r.Method == http.MethodConnect}, denied(rule))
		return
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	f, rule := c.session.admit(t, cancel)
	if rule != "" {
		c.refuse(w, t, denied(rule))
		return
	}
	defer c.session.release(f)
	c.carry(ctx, w, r, f)
}

func (c *clientConn) endHijacked() {
	if c.hijacked {
		c.stop(nil)
		c.end()
	}
}

// agrees reports whether net/http understood the target as parseTarget did, and
// a tunnel's request has no body.
func agrees(t target, r *http.Request) bool {
	if t.tunnel {
		return r.URL.Host == r.RequestURI && r.ContentLength == 0
	}
	host, _, _ := cutPort(r.URL.Host)
	return r.URL.Scheme == "http" && r.URL.User == nil && strings.ToLower(strings.TrimSuffix(host, ".")) == t.host
}

// carry connects an admitted request and moves its bytes.
func (c *clientConn) carry(ctx context.Context, w http.ResponseWriter, r *http.Request, f *flow) {
	upstream, addr, refused := c.proxy.open(ctx, f.target)
	if refused != nil {
		if unlisted(ctx) {
			refused = denied(RuleNowUnlisted)
		}
		c.refuse(w, f.target, refused)
		return
	}
	defer upstream.Close()
	defer context.AfterFunc(ctx, func() { _ = upstream.Close() })()
	d := Decision{
		Tunnel: f.target.tunnel, Host: f.target.host, Port: f.target.port,
		Verdict: Allowed, Rule: f.entry, Addr: addr,
	}
	var carried bool
	if f.target.tunnel {
		carried = c.tunnel(ctx, w, upstream, d)
	} else {
		carried = c.forward(ctx, w, r, f, upstream, d)
	}
	if carried && unlisted(ctx) {
		d.Verdict, d.Rule = Closed, string(RuleNowUnlisted)
		c.proxy.report(c.session, d)
	}
}

// unlisted reports whether a change of the list ended the request of ctx.
func unlisted(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errUnlisted) }

// refuse reports r and answers with it. A refused CONNECT ends the connection:
// what follows it was meant for the tunnel.
func (c *clientConn) refuse(w http.ResponseWriter, t target, r *refusal) {
	c.proxy.report(c.session, r.decision(t))
	if !t.tunnel {
		r.write(w, t)
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		r.write(w, t)
		return
	}
	c.hijacked = true
	if r.writeRaw(conn, t) == nil {
		linger(conn)
	}
}

// oneConn is a listener that accepts one connection, then waits for its end.
type oneConn struct {
	conn net.Conn
	over chan struct{}
}

// Accept implements net.Listener.
func (l *oneConn) Accept() (net.Conn, error) {
	if conn := l.conn; conn != nil {
		l.conn = nil
		return conn, nil
	}
	<-l.over
	return nil, io.EOF
}

// Close implements net.Listener.
func (l *oneConn) Close() error { return nil }

// Addr implements net.Listener.
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "sandbox", Net: "unix"} }

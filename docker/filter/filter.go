package filter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds on waiting. A stream, once the engine has answered 101, has none: it
// ends with either of its ends.
const (
	headerWait   = 10 * time.Second // for a request's header
	bodyWait     = 10 * time.Second // for a request's body
	lingerWait   = 2 * time.Second  // for the rest of a refused body
	idleWait     = 5 * time.Minute  // between two requests of a connection
	writeWait    = time.Minute      // for a client to take some of an answer
	dialWait     = 5 * time.Second
	answerWait   = 15 * time.Minute // for the engine's answer, a stop or a pull included
	upgradeWait  = 30 * time.Second // for the engine's answer to an exec start
	lookupWait   = 10 * time.Second
	shutdownWait = 5 * time.Second
)

// Bounds on size, in bytes.
const (
	maxHeader = 16 << 10
	maxAnswer = 1 << 20 // of an answer that the filter reads itself
)

// A Config says how a filter works.
type Config struct {
	// Policy says what is admitted. Required.
	Policy *Policy
	// Dial opens a connection to the engine. Required.
	Dial func(context.Context) (net.Conn, error)
	// Log takes the audit. Required.
	Log *slog.Logger
	// Hosts are the Host headers that are answered, for a listener that a
	// browser could reach; "*." in front stands for one label. Empty: all.
	Hosts []string
	// MaxConns is the most connections at once. Defaults to 1024.
	MaxConns int
}

// A Filter is the proxy. Make one with [New]; its methods may be called from
// several goroutines.
type Filter struct {
	policy    *Policy
	dial      func(context.Context) (net.Conn, error)
	log       *slog.Logger
	hosts     []string
	maxConns  int
	transport *http.Transport
	owners    owners
	// handlers is read-locked by every running handler, those of streams
	// included, which http.Server does not wait for. (A WaitGroup must not
	// grow from zero while somebody waits; a handler may begin late.)
	handlers sync.RWMutex
}

// New makes a filter. It dials nothing and starts nothing.
func New(c Config) (*Filter, error) {
	switch {
	case c.Policy == nil:
		return nil, errors.New("docker filter: Policy is missing")
	case c.Dial == nil:
		return nil, errors.New("docker filter: Dial is missing")
	case c.Log == nil:
		return nil, errors.New("docker filter: Log is missing")
	case c.MaxConns < 0:
		return nil, errors.New("docker filter: MaxConns is negative")
	case c.MaxConns == 0:
		c.MaxConns = 1024
	}
	if err := c.Policy.Validate(); err != nil {
		return nil, err
	}
	f := &Filter{policy: c.Policy, dial: c.Dial, log: c.Log, hosts: c.Hosts, maxConns: c.MaxConns}
	f.transport = newTransport(c.Dial)
	return f, nil
}

// Serve answers the connections of l until ctx ends, then closes the streams
// and returns when all is closed. The error is nil after ctx ended.
func (f *Filter) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler: f, ReadHeaderTimeout: headerWait, IdleTimeout: idleWait, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(f.log.Handler(), slog.LevelDebug),
		// A client that speaks HTTP/2 would be judged by another parser.
		Protocols: http1(),
		// Otherwise http.Server answers "OPTIONS *" without asking us.
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ConnState: f.unparsed,
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownWait)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			_ = srv.Close()
		}
	})
	err := srv.Serve(newLimitListener(l, f.maxConns))
	if !stop() {
		<-stopped
	}
	f.handlers.Lock()
	defer f.handlers.Unlock()
	f.transport.CloseIdleConnections()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	_ = srv.Close()
	return fmt.Errorf("docker filter: serve: %w", err)
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// unparsed notes the requests that http.Server itself refuses as malformed: they
// reach no handler, and their refusal belongs into the audit log all the same.
func (f *Filter) unparsed(c net.Conn, state http.ConnState) {
	l, ok := c.(*limitConn)
	switch {
	case !ok:
	case state == http.StateActive:
		l.unjudged.Store(true)
	case state == http.StateClosed && l.unjudged.Load():
		f.log.LogAttrs(context.Background(), slog.LevelWarn, "docker call refused",
			slog.String("rule", "frame.http"), slog.Int("status", http.StatusBadRequest))
	}
}

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// ServeHTTP judges one request and forwards it, or refuses it and closes the
// connection.
func (f *Filter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.handlers.RLock()
	defer f.handlers.RUnlock()
	if l, ok := r.Context().Value(connKey{}).(*limitConn); ok {
		l.unjudged.Store(false)
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyWait))
	call, refusal := f.judge(r)
	if refusal == nil {
		refusal = f.checkOwner(r.Context(), call)
	}
	if refusal != nil {
		// http.Server still reads what is left of the body before it closes.
		_ = rc.SetReadDeadline(time.Now().Add(lingerWait))
		f.refused(r, refusal)
		writeError(w, refusal.Status, refusal.message())
		return
	}
	_ = rc.SetReadDeadline(time.Time{})
	f.admitted(r, call)
	if call.Hijack {
		f.stream(w, r, call)
		return
	}
	f.forward(w, r, call)
}

func (f *Filter) judge(r *http.Request) (*Call, *Refusal) {
	if len(f.hosts) > 0 && !f.admitsHost(strings.ToLower(r.Host)) {
		return nil, refuse("frame.host", "a foreign Host header")
	}
	return f.policy.Judge(r)
}

// admitsHost compares with each of the hosts; "*." stands for one label.
func (f *Filter) admitsHost(host string) bool {
	return slices.ContainsFunc(f.hosts, func(h string) bool {
		if rest, ok := strings.CutPrefix(h, "*."); ok {
			_, parent, found := strings.Cut(host, ".")
			return found && parent == rest
		}
		return h == host
	})
}

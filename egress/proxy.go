package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Resolver looks names up. *net.Resolver is one.
type Resolver interface {
	// LookupNetIP returns all addresses of host, IPv4 and IPv6 ("ip"). host
	// ends in a dot: it is absolute, no search domain applies.
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Dialer connects to addresses that were judged. It takes no name, so that
// nothing can be resolved a second time.
type Dialer interface {
	// DialAddr connects by TCP to addr within ctx.
	DialAddr(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
}

// Config is what a [Proxy] needs. The zero value of every field is its default.
type Config struct {
	// Log receives every reported decision (level Info) and what goes wrong
	// inside (Warn). Defaults to no log.
	Log *slog.Logger
	// Decisions receives every reported decision, on the connection's own
	// goroutine: it must not block. Defaults to nobody.
	Decisions func(Decision)
	// DecisionsPerSecond bounds the reports per sandbox, with a burst of
	// twice as many; the rest is counted in Decision.Suppressed. The
	// session's counters are exact. Defaults to 50.
	DecisionsPerSecond float64

	// DeniedPrefixes are refused beside what is not public, for instance
	// the deployment's own public ranges. IPv4 prefixes also hold for the
	// addresses inside IPv6 forms.
	DeniedPrefixes []netip.Prefix
	// HostAddrs returns the machine's own addresses, which are refused. It is
	// asked at most every 5 s. Defaults to the addresses of all interfaces.
	HostAddrs func() ([]netip.Addr, error)
	// Resolver defaults to Go's own, with the machine's name servers. It and
	// Dialer exist for tests and must not be reachable from a setting.
	Resolver Resolver
	// Dialer defaults to TCP with a second address check at connect.
	Dialer Dialer

	// MaxHeaderBytes bounds a request's header, and a response's. Defaults to
	// 64 KiB; net/http adds 4 KiB.
	MaxHeaderBytes int
	// HeaderTimeout bounds the time from a connection's first wait, or a
	// later request's first byte, to the end of the header, and the wait for
	// a tunnel's ClientHello. Defaults to 10 s.
	HeaderTimeout time.Duration
	// DNSTimeout bounds a resolution. Defaults to 5 s.
	DNSTimeout time.Duration
	// ConnectTimeout bounds connecting, over all addresses of a name.
	// Defaults to 15 s.
	ConnectTimeout time.Duration
	// ResponseTimeout bounds the wait for a plain request's response header.
	// Defaults to 2 min.
	ResponseTimeout time.Duration
	// IdleTimeout ends a connection on which no byte moved. Defaults to 5 min.
	IdleTimeout time.Duration
	// HalfClosedTimeout replaces IdleTimeout once one direction has ended.
	// Defaults to 20 s.
	HalfClosedTimeout time.Duration
	// MaxConns bounds the connections of one sandbox at once, MaxTotalConns
	// those of all. Default to 256 and 4,096. A connection holds two
	// descriptors at most and, with a tunnel, 64 KiB of buffers while bytes move.
	MaxConns, MaxTotalConns int
}

// maxAnswer bounds the addresses of one DNS answer.
const maxAnswer = 64

// Proxy serves the egress of all sandboxes of a process.
type Proxy struct {
	cfg   Config
	guard *guard
	slots chan struct{} // one token per connection
}

// NewProxy checks cfg and fills in the defaults. It starts nothing.
func NewProxy(cfg Config) (*Proxy, error) {
	if err := cfg.normalise(); err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	if cfg.Dialer == nil {
		cfg.Dialer = newGuardedDialer(cfg.DeniedPrefixes)
	}
	return &Proxy{
		cfg:   cfg,
		guard: &guard{denied: cfg.DeniedPrefixes, own: &ownAddrs{read: cfg.HostAddrs}},
		slots: make(chan struct{}, cfg.MaxTotalConns),
	}, nil
}

func (c *Config) normalise() error {
	c.fill()
	if c.MaxHeaderBytes < 1024 || c.MaxConns < 1 || c.MaxTotalConns < 1 || c.DecisionsPerSecond < 1 {
		return errors.New("MaxHeaderBytes must be at least 1024; MaxConns, MaxTotalConns and DecisionsPerSecond at least 1")
	}
	for name, d := range map[string]time.Duration{
		"HeaderTimeout": c.HeaderTimeout, "DNSTimeout": c.DNSTimeout, "ConnectTimeout": c.ConnectTimeout,
		"ResponseTimeout": c.ResponseTimeout, "IdleTimeout": c.IdleTimeout, "HalfClosedTimeout": c.HalfClosedTimeout,
	} {
		if d < time.Millisecond {
			return fmt.Errorf("%s %s is below a millisecond", name, d)
		}
	}
	denied := make([]netip.Prefix, 0, len(c.DeniedPrefixes))
	for _, p := range c.DeniedPrefixes {
		p, err := normalPrefix(p)
		if err != nil {
			return fmt.Errorf("DeniedPrefixes: %w", err)
		}
		denied = append(denied, p)
	}
	c.DeniedPrefixes = denied
	return nil
}

func (c *Config) fill() {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Decisions == nil {
		c.Decisions = func(Decision) {}
	}
	if c.HostAddrs == nil {
		c.HostAddrs = interfaceAddrs
	}
	if c.Resolver == nil {
		c.Resolver = &net.Resolver{PreferGo: true}
	}
	orElse(&c.DecisionsPerSecond, 50)
	orElse(&c.MaxHeaderBytes, 64<<10)
	orElse(&c.HeaderTimeout, 10*time.Second)
	orElse(&c.DNSTimeout, 5*time.Second)
	orElse(&c.ConnectTimeout, 15*time.Second)
	orElse(&c.ResponseTimeout, 2*time.Minute)
	orElse(&c.IdleTimeout, 5*time.Minute)
	orElse(&c.HalfClosedTimeout, 20*time.Second)
	orElse(&c.MaxConns, 256)
	orElse(&c.MaxTotalConns, 4096)
}

func orElse[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ServeConn serves one connection of session's sandbox and returns when it has
// ended, with everything started for it gone. It closes conn. It ends early when
// ctx ends or the session is closed. Refusals are answered on the connection, so
// there is no error to return.
func (p *Proxy) ServeConn(ctx context.Context, conn net.Conn, session *Session) {
	c := newClientConn(ctx, p, conn, session)
	defer c.stop(nil)
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		c.refuseAll(tooMany())
		return
	}
	if refused := session.addConn(c, p.cfg.MaxConns); refused != nil {
		c.refuseAll(refused)
		return
	}
	defer session.removeConn(c)
	c.serve()
}

// report counts d and, within the bound, logs and passes it on.
func (p *Proxy) report(s *Session, d Decision) {
	s.count(d.Verdict)
	d.Time, d.Sandbox = time.Now(), s.sandbox
	ok, suppressed := s.reports.take(d.Time, p.cfg.DecisionsPerSecond)
	if !ok {
		return
	}
	d.Suppressed = suppressed
	p.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "egress decision", slog.Any("decision", d))
	p.cfg.Decisions(d)
}

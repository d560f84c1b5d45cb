package egress_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"shoal/egress"
)

// rig is a proxy with one session, served over real TCP connections, whose world
// is a fake resolver and a dialer that leads every address to one local origin.
type rig struct {
	proxy   *egress.Proxy
	session *egress.Session
	dns     *fakeDNS
	dialer  *fakeDialer

	listener net.Listener
	serving  sync.WaitGroup

	mu        sync.Mutex // guards decisions
	decisions []egress.Decision
}

// rigConfig is what tests vary.
type rigConfig struct {
	egress  egress.Config // its Resolver, Dialer, Decisions and, when nil, HostAddrs are the rig's
	hosts   []string
	options egress.PolicyOptions
	names   map[string][]string // name → addresses
}

func newRig(t testing.TB, cfg rigConfig) *rig {
	t.Helper()
	policy, err := egress.ParsePolicy(cfg.hosts, cfg.options)
	if err != nil {
		t.Fatal(err)
	}
	return newRigWith(t, cfg.egress, policy, newFakeDNS(cfg.names))
}

func newRigWith(t testing.TB, cfg egress.Config, policy *egress.Policy, dns *fakeDNS) *rig {
	t.Helper()
	r := &rig{dns: dns, dialer: &fakeDialer{}, session: egress.NewSession("box", policy)}
	cfg.Resolver, cfg.Dialer = dns, r.dialer
	cfg.Decisions = r.decide
	if cfg.HostAddrs == nil {
		cfg.HostAddrs = func() ([]netip.Addr, error) { return nil, nil }
	}
	var err error
	if r.proxy, err = egress.NewProxy(cfg); err != nil {
		t.Fatal(err)
	}
	r.listener = listen(t)
	t.Cleanup(func() {
		r.session.Close()
		_ = r.listener.Close()
		r.serving.Wait()
	})
	return r
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// connect opens one connection of the sandbox, as the agent's stream would.
func (r *rig) connect(t testing.TB) *net.TCPConn {
	t.Helper()
	client, err := net.Dial("tcp", r.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	server, err := r.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r.serving.Go(func() { r.proxy.ServeConn(context.Background(), server, r.session) })
	return client.(*net.TCPConn)
}

func (r *rig) decide(d egress.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decisions = append(r.decisions, d)
}

func (r *rig) reported() []egress.Decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.decisions)
}

// last waits for the n-th decision and returns it.
func (r *rig) decision(t testing.TB, n int) egress.Decision {
	t.Helper()
	eventually(t, 3*time.Second, "decision", func() bool { return len(r.reported()) >= n })
	return r.reported()[n-1]
}

func eventually(t testing.TB, within time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, within)
		}
	}
}

// fakeDNS answers from a table. It refuses names that are not absolute, so a
// search domain can never apply.
type fakeDNS struct {
	mu      sync.Mutex // guards what follows
	names   map[string]*fakeName
	lookups map[string]int
}

type fakeName struct {
	answers [][]string // of the 1st, 2nd … lookup; the last repeats
	failure string     // nxdomain, servfail, timeout
}

func newFakeDNS(names map[string][]string) *fakeDNS {
	d := &fakeDNS{names: make(map[string]*fakeName), lookups: make(map[string]int)}
	for n, addrs := range names {
		d.names[n] = &fakeName{answers: [][]string{addrs}}
	}
	return d
}

func (d *fakeDNS) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	name, absolute := strings.CutSuffix(host, ".")
	if !absolute || network != "ip" {
		return nil, errors.New("test: lookup of a name that is not absolute, or of one family: " + network + " " + host)
	}
	d.mu.Lock()
	n := d.lookups[name]
	d.lookups[name]++
	entry := d.names[name]
	d.mu.Unlock()
	switch {
	case entry == nil || entry.failure == "nxdomain":
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	case entry.failure == "servfail":
		return nil, &net.DNSError{Err: "server misbehaving", Name: host, IsTemporary: true}
	case entry.failure == "timeout":
		<-ctx.Done()
		return nil, &net.DNSError{Err: ctx.Err().Error(), Name: host, IsTimeout: true}
	}
	var addrs []netip.Addr
	for _, s := range entry.answers[min(n, len(entry.answers)-1)] {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	return addrs, nil
}

func (d *fakeDNS) count(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lookups[name]
}

// fakeDialer leads every address to one local listener and keeps what was asked.
type fakeDialer struct {
	mu     sync.Mutex // guards what follows
	to     string     // host:port of the origin
	refuse map[string]bool
	dialed []string
	block  bool // connect never ends by itself
}

func (d *fakeDialer) DialAddr(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	d.mu.Lock()
	d.dialed = append(d.dialed, addr.String())
	to, refused, block := d.to, d.refuse[addr.String()], d.block
	d.mu.Unlock()
	if block {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	}
	if refused || to == "" {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	var nd net.Dialer
	return nd.DialContext(ctx, "tcp", to)
}

func (d *fakeDialer) lead(to net.Listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.to = to.Addr().String()
}

func (d *fakeDialer) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.dialed)
}

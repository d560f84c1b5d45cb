package fleet_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/egress"
	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// A worker that drains hands over what is quiet at once, waits for open
// connections for most of its time, then cuts them, says how many, and hands
// their sandboxes over all the same: forwarded ports, files, and tunnels out.
func TestDrainCutsWhatOutlastsIt(t *testing.T) {
	t.Parallel()
	var log lines
	far := newOrigin(t)
	r := newRig(t, 0, func(c *fleet.Config) {
		c.DrainFor, c.Log = 12*time.Second, slog.New(slog.NewTextHandler(&log, nil))
		c.Proxy = egress.Config{Resolver: far, Dialer: far}
	})
	_, stop := r.worker()
	quiet, port, out, up := r.create("quiet"), r.create("port"), r.create("out"), r.create("up")
	forwarded, inside := r.forward(port)
	proxy := r.proxy(out)
	long, short := tunnelOut(t, proxy), tunnelOut(t, proxy)
	home := strings.TrimSpace(r.run(up, "echo $HOME"))
	file, sender := io.Pipe()
	uploaded := make(chan error, 1)
	go func() {
		_, err := r.client.Upload(t.Context(), messaging.PathTarget{Target: up, Path: home + "/f"}, file, sandbox.WriteOptions{Size: 6})
		uploaded <- err
	}()
	if _, err := sender.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	heir, _ := r.worker()
	began, drained := time.Now(), make(chan time.Time, 1)
	go func() {
		stop()
		drained <- time.Now()
	}()
	store := r.records()
	soon(t, 30*time.Second, "the quiet sandbox is handed over", func() bool {
		e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", quiet.Sandbox))
		return err == nil && e.Value.Owner == string(heir.ID())
	})
	for range 10 { // the others not yet, and what is open goes on
		if _, err := inside.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(forwarded, make([]byte, 5)); err != nil {
			t.Fatalf("the forwarded port while the worker waits: %v", err)
		}
		echo(t, long)
		time.Sleep(30 * time.Millisecond)
	}
	_ = short.Close() // in time
	if _, err := sender.Write([]byte("def")); err != nil {
		t.Fatal(err)
	}
	_ = sender.Close()
	if err := <-uploaded; err != nil {
		t.Errorf("a file that was being sent: %v", err)
	}
	if _, err := io.ReadAll(forwarded); err == nil {
		t.Error("the connection that was cut looks as if its other end had closed it")
	}
	if _, err := io.ReadAll(long); err == nil {
		t.Error("the tunnel that was cut looks as if its other end had closed it")
	}
	if d := (<-drained).Sub(began); d < 7*time.Second || d > 40*time.Second {
		t.Errorf("the drain of 12 s took %s", d)
	}
	if !strings.Contains(log.String(), `msg="connections that outlast the drain are cut"`) || !strings.Contains(log.String(), "connections=2") {
		t.Errorf("the log does not tell the two connections that were cut:\n%s", log.String())
	}
	echo(t, tunnelOut(t, proxy)) // at the heir, before anybody asks for the sandbox
	for _, box := range []messaging.Target{quiet, port, out, up} {
		if got := r.run(box, "echo on"); got != "on\n" {
			t.Fatalf("%s at the heir: %q", box.Sandbox, got)
		}
	}
}

// forward connects to a port inside box and returns both ends.
func (r *rig) forward(box messaging.Target) (outside, inside net.Conn) {
	r.t.Helper()
	// The loopback of such a sandbox is this machine's.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	defer l.Close()
	if outside, err = r.client.Dial(r.t.Context(), box, l.Addr().(*net.TCPAddr).Port); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = outside.Close() })
	if inside, err = l.Accept(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = inside.Close() })
	return outside, inside
}

// origin is an internet of one server, which echoes.
type origin struct{ l net.Listener }

const originHost = "far.example.com"

func newOrigin(t *testing.T) *origin {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return &origin{l}
}

// LookupNetIP implements [egress.Resolver].
func (o *origin) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
}

// DialAddr implements [egress.Dialer].
func (o *origin) DialAddr(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", o.l.Addr().String())
}

// proxy lets box reach the origin and returns the address of the proxy inside it.
func (r *rig) proxy(box messaging.Target) string {
	r.t.Helper()
	if _, err := r.client.AllowEgress(r.t.Context(), box, originHost); err != nil {
		r.t.Fatal(err)
	}
	e, err := r.records().Handles.Get(r.t.Context(), kv.HandleKey("main", box.Sandbox))
	if err != nil {
		r.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.fake().ServeEgress(e.Value.Handle, l); err != nil {
		r.t.Fatal(err)
	}
	return l.Addr().String()
}

// tunnelOut connects to the origin as a program of the sandbox does.
func tunnelOut(t *testing.T, proxy string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	const answer = "HTTP/1.1 200 Connection Established\r\n\r\n"
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, "CONNECT "+originHost+":80 HTTP/1.1\r\nHost: "+originHost+":80\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(answer))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != answer {
		t.Fatalf("the proxy answers %q, %v", got, err)
	}
	return conn
}

// echo sends something through a tunnel and waits until it comes back.
func echo(t *testing.T, tunnel net.Conn) {
	t.Helper()
	if _, err := tunnel.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(tunnel, got); err != nil || string(got) != "ping" {
		t.Fatalf("the tunnel answers %q, %v", got, err)
	}
}

// A sandbox that is being made for the pool, and takes its time, keeps no other
// from being handed over.
func TestDrainWaitsForNoPool(t *testing.T) {
	t.Parallel()
	r, box, stop, release := stuckPool(t)
	defer release() // before any worker is waited for
	heir, _ := r.worker()
	go stop()
	store := r.records()
	soon(t, 30*time.Second, "it is handed over", func() bool {
		e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", box.Sandbox))
		return err == nil && e.Value.Owner == string(heir.ID())
	})
}

// A worker that drains takes nothing back, however long its drain goes on: the
// sandbox is the next worker's.
func TestDrainTakesNothingBack(t *testing.T) {
	t.Parallel()
	r, box, stop, release := stuckPool(t)
	defer release() // before any worker is waited for
	go stop()
	store := r.records()
	owner := func() string {
		e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", box.Sandbox))
		if err != nil {
			t.Fatal(err)
		}
		return e.Value.Owner
	}
	soon(t, 30*time.Second, "it is nobody's", func() bool { return owner() == "" })
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // sweeps go on
		if by := owner(); by != "" {
			t.Fatalf("it was taken back by %s", by)
		}
	}
	heir, _ := r.worker()
	soon(t, 30*time.Second, "the next worker has it", func() bool { return owner() == string(heir.ID()) })
}

// stuckPool returns a sandbox whose worker is making another for its pool, which
// does not end before release.
func stuckPool(t *testing.T) (r *rig, box messaging.Target, stop, release func()) {
	t.Helper()
	r = newRig(t, 0, func(c *fleet.Config) { c.Warm, c.DrainFor = 1, time.Minute })
	making, released := make(chan struct{}, 1), make(chan struct{})
	r.fake().SetHook(func(op string, h sandbox.Handle) error {
		if op == "Create" && h.Tenant == sandbox.PoolTenant {
			select {
			case making <- struct{}{}:
			default:
			}
			<-released
		}
		return nil
	})
	_, stop = r.worker()
	<-making
	return r, r.create("d"), stop, func() { close(released) }
}

// Without another worker the sandbox has no owner after a drain; its commands
// run on, and the next worker and the waiting client find them.
func TestDrainWithoutAPeer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, nil)
	w, stop := r.worker()
	box := r.create("d")
	p, err := r.client.Exec(t.Context(), box, sandbox.Command{Shell: "for i in $(seq 1 60); do echo $i; sleep 0.05; done"})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if w.Sound() {
		t.Error("a worker that has drained calls itself ready")
	}
	store := r.records()
	e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", box.Sandbox))
	if err != nil || e.Value.Owner != "" || e.Value.State != kv.Running {
		t.Fatalf("owner %q, %s, %v", e.Value.Owner, e.Value.State, err)
	}
	r.worker()
	var out strings.Builder
	end, err := p.Copy(t.Context(), &out, &out)
	if err != nil || end.Code == nil || *end.Code != 0 || strings.Count(out.String(), "\n") != 60 || p.Lost() != 0 {
		t.Fatalf("end %+v with %d lines, %v", end, strings.Count(out.String(), "\n"), err)
	}
}

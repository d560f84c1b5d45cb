package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/docker/dockertest"
	"shoal/messaging"
	"shoal/sandbox"
)

func (i *internet) setEgress(e sandbox.Egress) {
	i.t.Helper()
	if _, err := i.f.client.SetEgress(i.t.Context(), i.box, e); err != nil {
		i.t.Fatalf("egress.set %v: %v", e, err)
	}
}

// reaches checks whether a name can be reached now.
func (i *internet) reaches(name string, want bool) {
	i.t.Helper()
	code, out := i.run("curl -sS -m 20 https://" + name + "/hello")
	if got := code == 0 && strings.Contains(out, "hello from "+name); got != want {
		i.t.Errorf("%s is reached: %t, want %t: %q", name, got, want, out)
	}
}

// holder opens a tunnel and says when it ends.
const holder = `
import socket, sys
host = sys.argv[1].encode()
s = socket.create_connection(("127.0.0.1", 3128))
s.sendall(b"CONNECT %s:80 HTTP/1.1\r\nHost: %s:80\r\n\r\n" % (host, host))
while b"ping" not in s.recv(4096):
    pass
print("open", flush=True)
try:
    while s.recv(4096):
        pass
except OSError:
    pass
print("closed", flush=True)
`

// hold opens a tunnel from inside the sandbox and returns a channel of what
// becomes of it.
func (i *internet) hold(name string) <-chan string {
	i.t.Helper()
	p, err := i.f.client.Exec(i.t.Context(), i.box, sandbox.Command{Argv: []string{"python3", "/workspace/holder.py", name}})
	if err != nil {
		i.t.Fatal(err)
	}
	lines := make(chan string, 4)
	go func() {
		defer close(lines)
		w := &lineWriter{lines: lines}
		_, _ = p.Copy(i.t.Context(), w, w)
	}()
	return lines
}

// lineWriter sends each line that is written to it.
type lineWriter struct {
	lines chan<- string
	rest  string
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.rest += string(b)
	for {
		line, rest, ok := strings.Cut(w.rest, "\n")
		if !ok {
			return len(b), nil
		}
		w.lines <- line
		w.rest = rest
	}
}

func next(t *testing.T, lines <-chan string, d time.Duration, want string) {
	t.Helper()
	select {
	case line := <-lines:
		if line != want {
			t.Fatalf("the tunnel says %q, want %q", line, want)
		}
	case <-time.After(d):
		t.Fatalf("the tunnel does not say %q within %s", want, d)
	}
}

// talk sends something at once and again, until the other side ends.
func talk(c *net.TCPConn) {
	go func() {
		for {
			if _, err := c.Write([]byte("ping")); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	_, _ = bufio.NewReader(c).ReadByte()
}

// EG-17: a new list holds at once, for what is open too.
func TestEgressSetLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.raw(t, listed, talk)
	w.raw(t, second, talk)
	f := newEgressFleet(t, w, 1)
	i := newInternet(t, f, w, messaging.CreateRequest{Egress: allow(listed, second)})
	i.put("holder.py", holder)
	goes, stays := i.hold(listed), i.hold(second)
	next(t, goes, 20*time.Second, "open")
	next(t, stays, 20*time.Second, "open")
	i.setEgress(allow(second))
	took := within(t, 8*time.Second, "closing a tunnel to a host that is no longer listed", func() { next(t, goes, 10*time.Second, "closed") })
	t.Logf("closed %s after the answer", took.Round(time.Millisecond))
	i.reaches(listed, false)
	i.reaches(second, true)
	select {
	case line := <-stays:
		t.Errorf("the tunnel to the host that is still listed says %q", line)
	default:
	}
	i.setEgress(sandbox.Egress{Mode: sandbox.EgressNone})
	within(t, 8*time.Second, "closing the last tunnel", func() { next(t, stays, 10*time.Second, "closed") })
	i.reaches(second, false)
	i.setEgress(allow(unlisted))
	i.reaches(unlisted, true)
	for _, mode := range []sandbox.SuspendMode{sandbox.SuspendMemory, sandbox.SuspendDisk} {
		if _, err := f.client.Suspend(t.Context(), messaging.SuspendRequest{Target: i.box, Mode: mode, Force: true}); err != nil {
			t.Fatalf("suspend %s: %v", mode, err)
		}
		i.setEgress(allow(second)) // while it sleeps
		i.reaches(second, true)
		i.reaches(unlisted, false)
		i.setEgress(allow(unlisted))
		i.reaches(unlisted, true)
	}
}

// Egress goes on after the owner's death, by the list that was set last, without
// anybody asking.
func TestEgressAfterTakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := newEgressFleet(t, w, 2)
	i := newInternet(t, f, w, messaging.CreateRequest{Egress: allow(listed, unlisted)})
	i.setEgress(allow(second))
	_, err := f.client.Exec(t.Context(), i.box, sandbox.Command{
		Shell: "while :; do curl -s -m 12 https://" + second + "/hello; curl -s -m 12 https://" + unlisted + "/hello; sleep 0.1; done",
		Env:   i.env, Background: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	hits := func() int64 { return w.hits[second].Load() }
	eventually(t, 20*time.Second, "requests arrive", func() error {
		if hits() == 0 {
			return fmt.Errorf("none yet")
		}
		return nil
	})
	var gaps []time.Duration
	for range takeovers(t) {
		p, former := f.owner(i.box)
		p.kill()
		at, killed := hits(), time.Now()
		eventually(t, 20*time.Second, "requests arrive again", func() error {
			if hits() <= at {
				return fmt.Errorf("none since the owner's death")
			}
			return nil
		})
		gaps = append(gaps, time.Since(killed))
		f.replaceDead()
		if _, now := f.owner(i.box); now == former {
			t.Error("the owner is the dead one")
		}
	}
	judge(t, "egress back after the owner's death", gaps, 5*time.Second, 10*time.Second)
	if n := w.hits[unlisted].Load(); n != 0 {
		t.Errorf("%d requests reached a host that was taken off the list", n)
	}
	i.reaches(second, true)
	i.reaches(listed, false)
}

// While no worker is there a connection waits at most 10 s; then it gets 503.
func TestEgressWithoutWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := newEgressFleet(t, w, 1)
	info, err := f.client.Create(t.Context(), messaging.CreateRequest{Name: "alone", Limits: sandbox.Limits{MemoryMB: 512, Pids: 256}, Egress: allow(listed)})
	if err != nil {
		t.Fatal(err)
	}
	i := &internet{t: t, f: f, w: w, box: messaging.Target{Sandbox: info.Name, Generation: info.Generation}}
	i.env = w.trust(t, f, i.box)
	_, err = f.client.Exec(t.Context(), i.box, sandbox.Command{
		Shell:      "sleep 3; curl -s -o /dev/null -m 30 -w '%{http_connect} %{time_total}' https://" + listed + "/hello > waited; touch done",
		Background: true, Env: i.env,
	})
	if err != nil {
		t.Fatal(err)
	}
	f.workers[0].kill()
	time.Sleep(15 * time.Second) // the sleep, the wait, and some
	f.workers = nil
	f.add()
	f.settle()
	var status string
	var seconds float64
	eventually(t, 30*time.Second, "the connection has ended", func() error {
		code, out := i.run("test -e done && cat waited")
		if code != 0 {
			return fmt.Errorf("exit code %d", code)
		}
		_, err := fmt.Sscan(out, &status, &seconds)
		return err
	})
	if status != "503" || seconds < 9 || seconds > 12 {
		t.Errorf("without a worker: status %s after %.1f s, want 503 after 10 s", status, seconds)
	}
	i.reaches(listed, true)
}

// A setup command has a list of its own; afterwards the sandbox's holds.
func TestEgressOfSetup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := newEgressFleet(t, w, 1)
	own := allow(listed)
	i := newInternet(t, f, w, messaging.CreateRequest{
		Egress: sandbox.Egress{Mode: sandbox.EgressNone},
		Setup: []sandbox.Setup{
			{Shell: "curl -sSk https://" + listed + "/hello > got && ! curl -sSk https://" + second + "/hello", Egress: &own},
			{Shell: "! curl -sSk https://" + listed + "/hello"},
		},
	})
	i.must("what setup got", "cat got", "hello from "+listed)
	i.reaches(listed, false)
	_, err := f.client.Create(t.Context(), messaging.CreateRequest{
		Name: "failed", Limits: sandbox.Limits{MemoryMB: 256}, Egress: allow(second),
		Setup: []sandbox.Setup{{Shell: "curl -sSk https://" + listed + "/hello"}},
	})
	if sandbox.CodeOf(err) != sandbox.StartFailed {
		t.Errorf("a setup command that must not reach a host: %v", err)
	}
}

// Open egress is fixed at the create, and refused where the deployment does
// not allow it.
func TestEgressOpenIsFixed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network := dockertest.Network(t, dockertest.Client(t), map[string]string{"com.docker.network.bridge.enable_icc": "false"})
	f := newEgressFleet(t, w, 1, "--network", network)
	open := newInternet(t, f, w, messaging.CreateRequest{Egress: sandbox.Egress{Mode: sandbox.EgressOpen}})
	_, err := f.client.SetEgress(t.Context(), open.box, allow(listed))
	if sandbox.CodeOf(err) != sandbox.Unsupported {
		t.Errorf("from open to a list: %v", err)
	}
	open.must("no proxy is in the way", "env | grep -ci _proxy || true", "0")
	shut := newInternet(t, f, w, messaging.CreateRequest{Egress: allow(listed)})
	_, err = f.client.SetEgress(t.Context(), shut.box, sandbox.Egress{Mode: sandbox.EgressOpen})
	if sandbox.CodeOf(err) != sandbox.Unsupported {
		t.Errorf("from a list to open: %v", err)
	}
	shut.reaches(listed, true)
	narrow := newEgressFleet(t, w, 1)
	box := narrow.create(messaging.CreateRequest{})
	for _, e := range []sandbox.Egress{{Mode: sandbox.EgressOpen}, allow("*.com"), allow("10.0.0.1")} {
		if _, err := narrow.client.SetEgress(t.Context(), box, e); err == nil {
			t.Errorf("accepted: %v", e)
		}
	}
}

// What is refused is told as it happens, and can be allowed at once.
func TestEgressWatchAndAllow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := newEgressFleet(t, w, 1)
	i := newInternet(t, f, w, messaging.CreateRequest{Egress: allow(listed)})
	var mu sync.Mutex
	var events []messaging.Event
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = f.client.Events(ctx, i.box.Sandbox, func(e messaging.Event) error {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
			return nil
		})
	})
	defer wg.Wait()
	defer stop()
	watch := start(t, "shoal", nil, "--nats-url", f.bus.url, "egress", "watch", string(i.box.Sandbox))
	time.Sleep(time.Second) // its subscription
	i.must("a refused request", "curl -s -o /dev/null -w '%{http_code}' 'http://"+unlisted+"/path?query=secret'; true", "403")
	want := "denied host=" + unlisted + " port=80 rule=not_listed verdict=denied"
	eventually(t, 5*time.Second, "the refusal is shown", func() error {
		if out := watch.output(); !strings.Contains(out, want) {
			return fmt.Errorf("shown: %q", out)
		}
		return nil
	})
	mu.Lock()
	for _, e := range events {
		if e.Kind == messaging.EventDenied && e.Generation != i.box.Generation {
			t.Errorf("an event of another generation: %+v", e)
		}
		if text := fmt.Sprint(e); strings.Contains(text, "secret") || strings.Contains(text, "/path") {
			t.Errorf("an event tells what was asked: %s", text)
		}
	}
	mu.Unlock()
	grant := start(t, "shoal", nil, "--nats-url", f.bus.url, "egress", "allow", string(i.box.Sandbox), unlisted)
	<-grant.done
	if code := grant.cmd.ProcessState.ExitCode(); code != 0 {
		t.Fatalf("shoal egress allow: exit code %d: %s", code, grant.output())
	}
	i.reaches(unlisted, true)
	i.reaches(listed, true)
	i.counts(2, 1)
}

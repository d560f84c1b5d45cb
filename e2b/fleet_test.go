package e2b

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/e2b/e2btest"
	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

// party is two workers, each with a provider of its own, on one fake account.
type party struct {
	t      *testing.T
	fake   *e2btest.Server
	srv    *server.Server
	client *messaging.Client
	conns  map[messaging.WorkerID]*nats.Conn
}

func newParty(t *testing.T) *party {
	t.Helper()
	fake, _ := contained(t, e2btest.Config{})
	p := &party{t: t, fake: fake, srv: messagingtest.Server(t), conns: map[messaging.WorkerID]*nats.Conn{}}
	nc := messagingtest.Conn(t, p.srv)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Create(t.Context(), js, kv.Config{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p.worker()
	}
	if p.client, err = messaging.NewClient(nc, messaging.Options{Tenant: "main"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.client.Close() })
	return p
}

func (p *party) worker() {
	p.t.Helper()
	provider, err := New(Config{APIKey: NewSecret(e2btest.Key), Template: "shoal", APIURL: p.fake.APIURL(), Domain: p.fake.Domain()})
	if err != nil {
		p.t.Fatal(err)
	}
	nc := messagingtest.Conn(p.t, p.srv)
	js, err := jetstream.New(nc)
	if err != nil {
		p.t.Fatal(err)
	}
	store, err := kv.Open(p.t.Context(), js, kv.Config{PresenceTTL: 4 * time.Second})
	if err != nil {
		p.t.Fatal(err)
	}
	w, err := fleet.New(fleet.Config{Conn: nc, Store: store, Provider: provider, DrainFor: 5 * time.Second})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.Run(ctx) }) // one of them is cut off and may say so
	p.t.Cleanup(func() { cancel(); wg.Wait() })
	p.conns[w.ID()] = nc
	for deadline := time.Now().Add(time.Minute); !w.Sound(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatal("the worker is not ready")
		}
	}
}

func (p *party) run(box messaging.Target, shell string) string {
	p.t.Helper()
	r, err := p.client.Run(p.t.Context(), box, sandbox.Command{Shell: shell}, messaging.RunOptions{})
	if err != nil {
		p.t.Fatalf("run %q: %v", shell, err)
	}
	return string(r.Stdout)
}

func TestTwoWorkersOnOneAccount(t *testing.T) {
	p := newParty(t)
	info, err := p.client.Create(t.Context(), messaging.CreateRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	box := info.Target()
	if info.Provider != Kind || len(info.Notes) == 0 {
		t.Errorf("%+v", info)
	}

	t.Run("at most two requests for a short command", func(t *testing.T) {
		for range 3 {
			p.run(box, "true")
		}
		time.Sleep(100 * time.Millisecond)
		p.fake.Forget()
		const commands = 20
		for range commands {
			p.run(box, "true")
		}
		time.Sleep(100 * time.Millisecond)
		requests := p.fake.Requests()
		for _, r := range requests {
			if !strings.HasSuffix(r.Path, "/SendInput") {
				t.Errorf("%s %s", r.Method, r.Path)
			}
		}
		t.Logf("%d requests for %d commands", len(requests), commands)
		if len(requests) > 2*commands {
			t.Errorf("%d requests for %d commands", len(requests), commands)
		}
	})

	t.Run("egress goes through the tunnel", func(t *testing.T) {
		out := p.run(box, "curl -s -m 20 -o /dev/null -w '%{http_code}' http://example.com; curl -s --noproxy '*' -m 5 http://1.1.1.1 || echo no way")
		if out != "403no way\n" {
			t.Errorf("%q", out)
		}
	})

	t.Run("a worker that is cut off is replaced, and nothing is lost", func(t *testing.T) { takeover(t, p, box) })

	t.Run("a suspended sandbox is woken by its use", func(t *testing.T) {
		if _, err := p.client.Suspend(t.Context(), messaging.SuspendRequest{Target: box, Mode: sandbox.SuspendMemory}); err != nil {
			t.Fatal(err)
		}
		if out := p.run(box, "echo awake"); out != "awake\n" {
			t.Errorf("%q", out)
		}
	})

	if d, err := p.client.Destroy(t.Context(), box); err != nil || !d.Existed || len(p.fake.Sandboxes()) != 0 {
		t.Errorf("%+v, %v, %+v", d, err, p.fake.Sandboxes())
	}
}

// takeover cuts the owner off from NATS in mid-output.
func takeover(t *testing.T, p *party, box messaging.Target) {
	t.Helper()
	const lines = 200
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	proc, err := p.client.Exec(ctx, box, sandbox.Command{Shell: fmt.Sprintf("for i in $(seq %d); do echo line $i; sleep 0.02; done; exit 7", lines)})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	info, err := p.client.Get(ctx, box)
	if err != nil {
		t.Fatal(err)
	}
	var hit, next time.Time
	seen := &watcher{wrote: func() {
		switch {
		case hit.IsZero():
		case next.IsZero():
			next = time.Now()
		}
	}}
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		time.Sleep(time.Second)
		seen.mu.Lock()
		hit = time.Now()
		seen.mu.Unlock()
		p.conns[info.Owner].Close()
	}()
	end, err := proc.Copy(ctx, seen, io.Discard)
	<-cut
	if err != nil || end.Code == nil || *end.Code != 7 || proc.Lost() != 0 {
		t.Fatalf("%+v, %v, %d lost", end, err, proc.Lost())
	}
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if seen.out.String() != want.String() {
		t.Error("the output differs")
	}
	after, err := p.client.Get(ctx, box)
	if err != nil || after.Owner == info.Owner {
		t.Errorf("%+v, %v", after, err)
	}
	t.Logf("next byte %s after the cut", next.Sub(hit))
}

// watcher keeps output and calls wrote at each piece.
type watcher struct {
	mu    sync.Mutex
	out   strings.Builder
	wrote func()
}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrote()
	return w.out.Write(p)
}

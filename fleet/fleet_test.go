package fleet_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
	"shoal/sandbox/sandboxtest"
)

// rig is a fleet inside the test process: real NATS, real agents, sandboxes as
// folders.
type rig struct {
	t      *testing.T
	srv    *server.Server
	engine sandbox.Provider
	client *messaging.Client
	tune   func(*fleet.Config)
}

func newRig(t *testing.T, workers int, tune func(*fleet.Config)) *rig {
	t.Helper()
	fake := sandboxtest.NewFake(t.TempDir())
	t.Cleanup(fake.Close)
	return newRigOn(t, fake, workers, tune)
}

func newRigOn(t *testing.T, engine sandbox.Provider, workers int, tune func(*fleet.Config)) *rig {
	t.Helper()
	r := &rig{t: t, srv: messagingtest.Server(t), engine: engine, tune: tune}
	nc := messagingtest.Conn(t, r.srv)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Create(t.Context(), js, kv.Config{}); err != nil {
		t.Fatal(err)
	}
	for range workers {
		r.worker()
	}
	r.client = r.kernel("main")
	return r
}

func (r *rig) store(nc *nats.Conn) *kv.Store {
	r.t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := kv.Open(r.t.Context(), js, kv.Config{PresenceTTL: 4 * time.Second})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// worker starts a worker and waits until it has compared its engine with the
// records; stop drains it and waits.
func (r *rig) worker() (w *fleet.Worker, stop func()) {
	r.t.Helper()
	w, stop = r.newcomer()
	for deadline := time.Now().Add(30 * time.Second); !w.Sound(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatal("the worker never compared its engine with the records")
		}
	}
	return w, stop
}

// newcomer starts a worker and waits until it serves.
func (r *rig) newcomer() (w *fleet.Worker, stop func()) {
	r.t.Helper()
	nc := messagingtest.Conn(r.t, r.srv)
	cfg := fleet.Config{
		Conn: nc, Store: r.store(nc), Provider: r.engine, Image: sandboxtest.DefaultImage,
		SweepEvery: 500 * time.Millisecond, SweepGrace: 2 * time.Second, DrainFor: 10 * time.Second,
	}
	if r.tune != nil {
		r.tune(&cfg)
	}
	w, err := fleet.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Run(ctx); err != nil {
			r.t.Errorf("run: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	r.t.Cleanup(stop)
	select {
	case <-w.Ready():
	case <-time.After(30 * time.Second):
		r.t.Fatal("the worker did not become ready")
	}
	return w, stop
}

func (r *rig) kernel(tenant sandbox.Tenant) *messaging.Client {
	r.t.Helper()
	c, err := messaging.NewClient(messagingtest.Conn(r.t, r.srv), messaging.Options{Tenant: tenant})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (r *rig) create(name sandbox.Name) messaging.Target {
	r.t.Helper()
	info, err := r.client.Create(r.t.Context(), messaging.CreateRequest{Name: name})
	if err != nil {
		r.t.Fatalf("create %s: %v", name, err)
	}
	return messaging.Target{Sandbox: info.Name, Generation: info.Generation}
}

func (r *rig) run(t messaging.Target, shell string) string {
	r.t.Helper()
	res, err := r.client.Run(r.t.Context(), t, sandbox.Command{Shell: shell}, messaging.RunOptions{})
	if err != nil {
		r.t.Fatalf("run %q: %v", shell, err)
	}
	return string(res.Stdout)
}

func code(t *testing.T, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Fatalf("code %q, want %q: %v", got, want, err)
	}
}

func TestLifeOfASandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, nil)
	box := r.create("a.b")
	if got := r.run(box, "echo hi"); got != "hi\n" {
		t.Fatalf("output %q", got)
	}
	_, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "a.b"})
	code(t, err, sandbox.Exists)
	for _, mode := range []sandbox.SuspendMode{sandbox.SuspendMemory, sandbox.SuspendDisk} {
		info, err := r.client.Suspend(t.Context(), messaging.SuspendRequest{Target: box, Mode: mode})
		if err != nil || info.State != messaging.Suspended || info.Mode != mode {
			t.Fatalf("suspend %s: %+v, %v", mode, info, err)
		}
		if got := r.run(box, "echo again"); got != "again\n" { // any use wakes it
			t.Fatalf("output %q", got)
		}
	}
	if d, err := r.client.Destroy(t.Context(), box); err != nil || !d.Existed {
		t.Fatalf("destroy: %+v, %v", d, err)
	}
	if d, err := r.client.Destroy(t.Context(), box); err != nil || d.Existed {
		t.Fatalf("destroying again: %+v, %v", d, err)
	}
	_, err = r.client.Run(t.Context(), box, sandbox.Command{Shell: "true"}, messaging.RunOptions{})
	code(t, err, sandbox.Gone)
	_, err = r.client.Run(t.Context(), messaging.Target{Sandbox: "never"}, sandbox.Command{Shell: "true"}, messaging.RunOptions{})
	code(t, err, sandbox.NotFound)
	if objects, err := r.engine.List(t.Context()); err != nil || len(objects) != 0 {
		t.Fatalf("left in the engine: %v, %v", objects, err)
	}
}

// NK-15: a handle of an older generation reaches nothing.
func TestOldGenerationIsStale(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, nil)
	old := r.create("x")
	info, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "x", Replace: true})
	if err != nil || info.Generation == old.Generation {
		t.Fatalf("replace: %+v, %v", info, err)
	}
	_, err = r.client.Run(t.Context(), old, sandbox.Command{Shell: "touch $HOME/ran"}, messaging.RunOptions{})
	code(t, err, sandbox.Stale)
	_, err = r.client.Destroy(t.Context(), old)
	code(t, err, sandbox.Stale)
	if got := r.run(messaging.Target{Sandbox: "x"}, "ls $HOME"); strings.Contains(got, "ran") {
		t.Fatalf("it ran in the replacement: %q", got)
	}
}

// LC-16: check and act are one step, whoever asks.
func TestQuotaIsExact(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, func(c *fleet.Config) { c.Quota = &fleet.Quota{Sandboxes: 10} })
	var made, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			_, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: sandbox.Name(fmt.Sprintf("q%d", i))})
			switch sandbox.CodeOf(err) {
			case "":
				made.Add(1)
			case sandbox.Quota:
				refused.Add(1)
			default:
				t.Errorf("create %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 10 || refused.Load() != 30 {
		t.Fatalf("%d made, %d refused", made.Load(), refused.Load())
	}
	list, err := r.client.List(t.Context(), messaging.ListRequest{})
	if err != nil || len(list.Sandboxes) != 10 {
		t.Fatalf("listed %d, %v", len(list.Sandboxes), err)
	}
	if _, err := r.client.Destroy(t.Context(), messaging.Target{Sandbox: list.Sandboxes[0].Name}); err != nil {
		t.Fatal(err)
	}
	r.create("after") // what was given back can be taken again
	_, err = r.kernel("other").Create(t.Context(), messaging.CreateRequest{Name: "free"})
	if err != nil {
		t.Fatalf("another tenant: %v", err)
	}
}

// Two workers, requests to either: the one that is not the owner forwards.
func TestAnyWorkerAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, nil)
	box := r.create("s")
	owners := map[messaging.WorkerID]bool{}
	for i := range 20 {
		c := r.kernel("main") // a client that knows nobody asks anybody
		res, err := c.Run(t.Context(), box, sandbox.Command{Shell: fmt.Sprintf("echo %d", i)}, messaging.RunOptions{})
		if err != nil || string(res.Stdout) != fmt.Sprintf("%d\n", i) {
			t.Fatalf("run %d: %+v, %v", i, res, err)
		}
		owners[res.Meta.Worker] = true
	}
	if len(owners) != 1 {
		t.Fatalf("%d workers served one sandbox", len(owners))
	}
	_, err := r.client.Run(t.Context(), box, sandbox.Command{Shell: "x", Cwd: "/nowhere"}, messaging.RunOptions{})
	code(t, err, sandbox.StartFailed)
}

// A create that is repeated with its request id makes one sandbox, also when
// many come at once through several workers.
func TestCreateIsIdempotent(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, nil)
	var wg sync.WaitGroup
	generations := make([]string, 8)
	for i := range generations {
		wg.Go(func() {
			info, err := r.kernel("main").Create(t.Context(), messaging.CreateRequest{Name: "one"})
			if err == nil {
				generations[i] = info.Generation
			} else if c := sandbox.CodeOf(err); c != sandbox.Exists && c != sandbox.Busy {
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	generations = slices.DeleteFunc(generations, func(s string) bool { return s == "" })
	if len(generations) != 1 {
		t.Fatalf("%d creates were answered with a sandbox", len(generations))
	}
	if objects, _ := r.engine.List(t.Context()); len(objects) != 1 {
		t.Fatalf("%d sandboxes in the engine", len(objects))
	}
}

// A command goes on while its sandbox moves to a second worker and to a third, by
// the drain of its owner each time.
func TestDrainLosesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, nil)
	owner, stop := r.worker()
	box := r.create("d")
	p, err := r.client.Exec(t.Context(), box, sandbox.Command{Shell: "for i in $(seq 1 100); do echo $i; sleep 0.03; done"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if info, err := r.client.Get(t.Context(), box); err != nil || info.Owner != owner.ID() {
			t.Fatalf("the owner is %s, %v; want %s", info.Owner, err, owner.ID())
		}
		drain := stop
		owner, stop = r.worker()
		drain()
	}
	var out strings.Builder
	end, err := p.Copy(t.Context(), &out, &out)
	if err != nil || end.Code == nil || *end.Code != 0 {
		t.Fatalf("end %+v, %v", end, err)
	}
	if got := strings.Count(out.String(), "\n"); got != 100 || p.Lost() != 0 {
		t.Fatalf("%d lines, %d bytes lost", got, p.Lost())
	}
}

package fleet_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
	"shoal/sandbox/sandboxtest"
)

func warm(n int) func(*fleet.Config) { return func(c *fleet.Config) { c.Warm = n } }

// warmed waits until all workers together have n members ready.
func (r *rig) warmed(n int) {
	r.t.Helper()
	soon(r.t, 60*time.Second, fmt.Sprintf("%d sandboxes are made ahead", n), func() bool {
		list, err := r.client.Workers(r.t.Context())
		have := 0
		for _, w := range list {
			have += w.Warm
		}
		return err == nil && have == n && len(r.members()) == n
	})
}

// members are the sandboxes of the pool in the engine.
func (r *rig) members() map[sandbox.Name]sandbox.Object {
	r.t.Helper()
	objects, err := r.engine.List(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	found := map[sandbox.Name]sandbox.Object{}
	for _, o := range objects {
		if o.Tenant == sandbox.PoolTenant {
			found[o.Name] = o
		}
	}
	return found
}

// calls counts the engine's calls.
type calls struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *calls) hook(op string, h sandbox.Handle) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[op]++
	if h.Tenant != sandbox.PoolTenant {
		c.n[op+" "+string(h.Name)]++
	}
	return nil
}

func (c *calls) of(op string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[op]
}

// A create that asks for what the pool has gets a member, and lacks nothing; it
// is then as any other sandbox. The pool is filled again, and counts to nobody.
func TestCreateFromThePool(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, func(c *fleet.Config) { c.Warm, c.Quota = 2, &fleet.Quota{Sandboxes: 2} })
	r.warmed(2)
	var count calls
	r.fake().SetHook(count.hook)
	info, err := r.client.Create(t.Context(), messaging.CreateRequest{
		Name: "a.b", Env: map[string]string{"SECRET": "s1"}, Metadata: map[string]string{"k": "v"},
		Limits: sandbox.Limits{CPU: 2, MemoryMB: 4096}, Setup: []sandbox.Setup{{Shell: "echo $SECRET > $HOME/made"}},
		Egress: sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"example.com"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if info.Tenant != "main" || info.Name != "a.b" || info.Metadata["k"] != "v" || info.Limits.CPU != 2 || info.Limits.MemoryMB != 4096 || info.State != messaging.Running {
		t.Fatalf("%+v", info)
	}
	box := messaging.Target{Sandbox: info.Name, Generation: info.Generation}
	if got := r.run(box, "cat $HOME/made; echo $SECRET $HTTP_PROXY"); got != "s1\ns1 http://127.0.0.1:3128\n" {
		t.Fatalf("inside: %q", got)
	}
	if count.of("Claim a.b") != 1 || count.of("Create a.b") != 0 || count.of("Attach a.b") != 0 {
		t.Fatalf("it was not taken from the pool: %v", count.n)
	}
	for _, mode := range []sandbox.SuspendMode{sandbox.SuspendMemory, sandbox.SuspendDisk} {
		if _, err := r.client.Suspend(t.Context(), messaging.SuspendRequest{Target: box, Mode: mode}); err != nil {
			t.Fatal(err)
		}
		if got := r.run(box, "cat $HOME/made; echo $SECRET"); got != "s1\ns1\n" {
			t.Fatalf("after %s: %q", mode, got)
		}
	}
	r.warmed(2)
	if _, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "again"}); err != nil {
		t.Fatalf("the pool counts to the tenant: %v", err)
	}
	r.warmed(2)
	_, err = r.client.Create(t.Context(), messaging.CreateRequest{Name: "third"})
	code(t, err, sandbox.Quota)
	list, err := r.client.List(t.Context(), messaging.ListRequest{})
	if err != nil || len(list.Sandboxes) != 2 {
		t.Fatalf("listed: %+v, %v", list, err)
	}
	workers, err := r.client.Workers(t.Context())
	if err != nil || len(workers) != 1 || workers[0].Warm != 2 || workers[0].Sandboxes > 2 {
		t.Fatalf("workers: %+v, %v", workers, err)
	}
	for _, name := range []sandbox.Name{"a.b", "again"} {
		if _, err := r.client.Destroy(t.Context(), messaging.Target{Sandbox: name}); err != nil {
			t.Fatal(err)
		}
	}
	if objects, _ := r.engine.List(t.Context()); len(objects) != 2 {
		t.Fatalf("%d sandboxes beside the pool", len(objects)-2)
	}
}

// What the pool does not have is made as ever.
func TestWhatThePoolDoesNotFit(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, warm(1))
	r.fake().SetImage("other:1", true)
	r.warmed(1)
	var count calls
	r.fake().SetHook(count.hook)
	for name, req := range map[sandbox.Name]messaging.CreateRequest{
		"image": {Image: "other:1"}, "disk": {Limits: sandbox.Limits{DiskMB: 64}},
	} {
		req.Name = name
		if _, err := r.client.Create(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if count.of("Create "+string(name)) != 1 || count.of("Claim "+string(name)) != 0 {
			t.Errorf("%s: %v", name, count.n)
		}
	}
	r.warmed(1)
}

// A setup that fails, and a destroy in its middle, leave nothing of a member.
func TestFailedClaimsLeaveNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, warm(1))
	r.warmed(1)
	_, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "x", Setup: []sandbox.Setup{{Shell: "exit 3"}}})
	code(t, err, sandbox.StartFailed)
	pooled := false
	for try := 0; try < 10 && !pooled; try++ { // what a worker says of its pool may be a moment old
		r.warmed(1)
		pooled = r.destroyInSetup("x")
	}
	if !pooled {
		t.Fatal("no create got a member of the pool")
	}
	r.warmed(1)
	soon(t, 10*time.Second, "nothing else is left", func() bool {
		objects, err := r.engine.List(t.Context())
		return err == nil && len(objects) == 1
	})
	r.poolSettles(1)
}

// destroyInSetup creates a sandbox and destroys it in the middle of its setup;
// it reports whether the sandbox came from the pool.
func (r *rig) destroyInSetup(name sandbox.Name) (pooled bool) {
	r.t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := r.client.Create(r.t.Context(), messaging.CreateRequest{Name: name, Setup: []sandbox.Setup{{Shell: "sleep 60"}}})
		if sandbox.CodeOf(err) != sandbox.Canceled {
			r.t.Errorf("the create that was destroyed: %v", err)
		}
	})
	store, destroyer := r.records(), r.kernel("main")
	soon(r.t, 20*time.Second, "it is being created", func() bool {
		e, err := store.Handles.Get(r.t.Context(), kv.HandleKey("main", name))
		if err != nil || e.Value.State != kv.Creating {
			return false
		}
		pooled = e.Value.Handle.Pool != ""
		return true
	})
	time.Sleep(100 * time.Millisecond) // into the setup
	if _, err := destroyer.Destroy(r.t.Context(), messaging.Target{Sandbox: name}); err != nil {
		r.t.Fatal(err)
	}
	wg.Wait()
	return pooled
}

// poolSettles waits until the records of the pool are those of n members.
func (r *rig) poolSettles(n int) {
	r.t.Helper()
	store := r.records()
	var entries []*kv.Entry[kv.Record]
	defer func() {
		if r.t.Failed() {
			for _, e := range entries {
				r.t.Logf("%s: %+v", e.Key, e.Value)
			}
		}
	}()
	soon(r.t, 20*time.Second, "the records of the pool are its members'", func() bool {
		var err error
		entries, err = store.Handles.List(r.t.Context(), string(sandbox.PoolTenant))
		running := 0
		for _, e := range entries {
			switch e.Value.State {
			case kv.Running:
				running++
			case kv.Gone:
			default:
				return false
			}
		}
		return err == nil && running == n
	})
}

// A member that has stopped or does not answer is passed over, and replaced.
func TestSickMembersArePassedOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, warm(2))
	for _, mode := range []sandbox.SuspendMode{sandbox.SuspendDisk, sandbox.SuspendMemory} {
		r.warmed(2)
		for _, m := range r.members() {
			if err := r.engine.Suspend(t.Context(), m.Handle, mode); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		name := sandbox.Name("after-" + mode)
		if got := r.run(r.create(name), "echo well"); got != "well\n" {
			t.Fatalf("output %q", got)
		}
		t.Logf("%s: %s", mode, time.Since(began))
		soon(t, 60*time.Second, "the sick ones are gone", func() bool {
			for _, m := range r.members() {
				if m.State != sandbox.Running {
					return false
				}
			}
			return true
		})
	}
	r.warmed(2)
	r.poolSettles(2)
}

// A worker that ends gives its members to another, which keeps what it wants;
// the last one removes them.
func TestDrainOfThePool(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, warm(2))
	_, stop := r.worker()
	r.warmed(2)
	first := r.members()
	r.fake().SetHook(func(op string, h sandbox.Handle) error {
		if op == "Create" && h.Tenant == sandbox.PoolTenant {
			return sandbox.Errorf(sandbox.Engine, "no more members")
		}
		return nil
	})
	_, stopLast := r.worker()
	agree := 0
	soon(t, 20*time.Second, "both know that the other serves", func() bool {
		list, err := r.client.Workers(t.Context())
		if agree++; err != nil || len(list) != 2 || list[0].State != "serving" || list[1].State != "serving" {
			agree = 0
		}
		return agree == 20 // either answers
	})
	stop()
	r.warmed(2) // the second has none of its own
	for name := range r.members() {
		if _, ok := first[name]; !ok {
			t.Errorf("%s is new", name)
		}
	}
	box := r.create("kept")
	r.run(box, "true")
	stopLast()
	objects, err := r.engine.List(t.Context())
	if err != nil || len(objects) != 1 || objects[0].Name != "kept" {
		t.Fatalf("left: %+v, %v", objects, err)
	}
}

// A worker without a pool, or with other limits, lets go of what it inherits.
func TestInheritedMembers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, warm(2))
	_, stop := r.worker()
	r.warmed(2)
	r.tune = func(c *fleet.Config) { c.Warm, c.Limits.MemoryMB = 1, 1024 }
	r.worker()
	soon(t, 20*time.Second, "the new one has its own", func() bool { return len(r.members()) == 3 })
	stop()
	soon(t, 30*time.Second, "what does not fit is gone", func() bool {
		now := r.members()
		for _, m := range now {
			if m.Limits.MemoryMB != 1024 {
				return false
			}
		}
		return len(now) == 1
	})
	r.poolSettles(1)
}

// A provider that cannot make sandboxes ahead has no pool, and says so.
func TestWarmNeedsAWarmer(t *testing.T) {
	t.Parallel()
	fake := sandboxtest.NewFake(t.TempDir())
	t.Cleanup(fake.Close)
	r := newRigOn(t, fake, 0, nil)
	for _, c := range []fleet.Config{
		{Warm: 1, Provider: struct{ sandbox.Provider }{fake}}, {Warm: -1, Provider: fake}, {Warm: 1001, Provider: fake},
	} {
		c.Conn, c.Store = messagingtest.Conn(t, r.srv), r.records()
		if _, err := fleet.New(c); sandbox.CodeOf(err) != sandbox.Invalid {
			t.Errorf("%+v: %v", c.Warm, err)
		}
	}
}

package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

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

// slow is a server whose answers come late now and then.
type slow struct{ server *server.Server }

func (s slow) InProcessConn() (net.Conn, error) {
	c, err := s.server.InProcessConn()
	return slowConn{c}, err
}

type slowConn struct{ net.Conn }

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if rand.IntN(8) == 0 {
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
	return n, err
}

// NK-13: 50 claims on 10 members by three workers, whose reads are delayed and
// some of which know an old record. Each member has one owner; a member that
// another worker has taken over meanwhile is not given away.
func TestNK13FiftyClaimsOnTen(t *testing.T) {
	t.Parallel()
	var started atomic.Int64
	r := newRig(t, 0, nil)
	r.tune = func(c *fleet.Config) {
		c.Warm = 3
		if started.Add(1) == 1 {
			c.Warm = 4
		}
		nc, err := nats.Connect("", nats.InProcessServer(slow{r.srv}), nats.ReconnectBufSize(-1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		c.Store = r.store(nc)    // the records alone: a worker that is slow in all is taken for dead
		c.SweepEvery = time.Hour // the stolen ones stay where they are
	}
	for range 3 {
		r.worker()
	}
	r.warmed(10)
	members := r.members()
	store := r.records()
	stolen := map[sandbox.Name]bool{}
	for name := range members {
		if len(stolen) == 2 {
			break
		}
		e, err := store.Handles.Get(t.Context(), kv.HandleKey(sandbox.PoolTenant, name))
		if err != nil {
			t.Fatal(err)
		}
		e.Value.Owner = "thief"
		if err := store.Handles.Put(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		stolen[name] = true
	}
	var mu sync.Mutex
	claimed := map[sandbox.Name][]sandbox.Name{}
	r.fake().SetHook(func(op string, h sandbox.Handle) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case op == "Claim":
			claimed[h.Pool] = append(claimed[h.Pool], h.Name)
		case op == "Create" && h.Tenant == sandbox.PoolTenant:
			return sandbox.Errorf(sandbox.Busy, "no more members")
		}
		return nil
	})
	var wg sync.WaitGroup
	generations := make([]string, 50)
	for i := range generations {
		wg.Go(func() {
			c := r.kernel("main")
			info, err := c.Create(t.Context(), messaging.CreateRequest{Name: sandbox.Name(fmt.Sprintf("s%d", i))})
			if err != nil {
				if sandbox.CodeOf(err) != sandbox.Busy {
					t.Errorf("create %d: %v", i, err)
				}
				return
			}
			generations[i] = info.Generation
			res, err := c.Run(t.Context(), messaging.Target{Sandbox: info.Name}, sandbox.Command{Shell: fmt.Sprintf("echo %d >> $HOME/who; cat $HOME/who", i)}, messaging.RunOptions{})
			if err != nil || string(res.Stdout) != fmt.Sprintf("%d\n", i) {
				t.Errorf("sandbox %d: %+v, %v", i, res, err)
			}
		})
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	for name, owners := range claimed {
		if len(owners) != 1 || stolen[name] {
			t.Errorf("member %s (stolen %t) was given to %v", name, stolen[name], owners)
		}
	}
	if len(claimed) != 8 {
		t.Errorf("%d members were given away, want 8", len(claimed))
	}
	seen := map[string]bool{}
	for _, g := range generations {
		if g != "" && seen[g] {
			t.Errorf("two sandboxes are one: %s", g)
		}
		seen[g] = true
	}
}

// NK-20: another image drains the members, never what was handed out.
func TestNK20NewRecipeDrainsMembersOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, warm(2))
	r.warmed(2)
	box := r.create("old")
	p, err := r.client.Exec(t.Context(), box, sandbox.Command{Shell: "sleep 4; echo kept"})
	if err != nil {
		t.Fatal(err)
	}
	r.warmed(2)
	old := r.members()
	r.fake().SetRecipe("new")
	soon(t, 30*time.Second, "the members are new ones", func() bool {
		now := r.members()
		for name := range old {
			if _, still := now[name]; still {
				return false
			}
		}
		return len(now) == 2
	})
	var out strings.Builder
	if end, err := p.Copy(t.Context(), &out, &out); err != nil || end.Code == nil || *end.Code != 0 || out.String() != "kept\n" {
		t.Fatalf("the sandbox that was handed out: %+v, %v, %q", end, err, out.String())
	}
	time.Sleep(time.Second) // two sweeps
	r.run(box, "true")
	r.poolSettles(2)
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

// NK-12 with a pool: what was handed out comes back under its name, the members
// of the lost bucket go.
func TestNK12WithAPool(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, func(c *fleet.Config) { c.Warm, c.SweepGrace = 1, time.Second })
	r.warmed(2)
	info, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "given", Env: map[string]string{"SECRET": "s"}, Metadata: map[string]string{"n": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	r.run(messaging.Target{Sandbox: "given"}, "echo kept > $HOME/file")
	r.warmed(2)
	lost := r.members()
	r.loseBuckets()
	soon(t, 60*time.Second, "it is listed again, complete", func() bool {
		list, err := r.client.List(t.Context(), messaging.ListRequest{})
		return err == nil && len(list.Sandboxes) == 1 && list.Sandboxes[0].Metadata["n"] == "1" && list.Sandboxes[0].Generation == info.Generation
	})
	if got := r.run(messaging.Target{Sandbox: "given", Generation: info.Generation}, "cat $HOME/file; echo $SECRET"); got != "kept\ns\n" {
		t.Errorf("%q", got)
	}
	soon(t, 60*time.Second, "the pool is a new one", func() bool {
		now := r.members()
		for name := range lost {
			if _, still := now[name]; still {
				return false
			}
		}
		return len(now) == 2
	})
	if _, err := r.client.Destroy(t.Context(), messaging.Target{Sandbox: "given"}); err != nil {
		t.Fatal(err)
	}
	r.warmed(2)
	if objects, _ := r.engine.List(t.Context()); len(objects) != 2 {
		t.Errorf("%d sandboxes in the engine", len(objects))
	}
}

// A claim that ended before the agent knew of it is not rebuilt: nobody was
// given that sandbox.
func TestNK12UnfinishedClaimIsNotRebuilt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, func(c *fleet.Config) { c.SweepGrace = 100 * time.Millisecond })
	spec := sandbox.Spec{
		Tenant: sandbox.PoolTenant, Name: "m", Generation: sandbox.NewID(), Bucket: "lost",
		Limits: sandbox.DefaultLimits(), Egress: sandbox.Egress{Mode: sandbox.EgressNone},
	}
	h, err := r.engine.Create(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec.Tenant, spec.Name = "main", "half"
	if _, err := r.fake().Claim(t.Context(), h, spec); err != nil {
		t.Fatal(err)
	}
	r.worker()
	soon(t, 20*time.Second, "it is removed", func() bool {
		objects, err := r.engine.List(t.Context())
		return err == nil && len(objects) == 0
	})
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

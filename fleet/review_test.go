package fleet_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
	"shoal/sandbox/sandboxtest"
)

// fake returns the rig's engine.
func (r *rig) fake() *sandboxtest.Fake { return r.engine.(*sandboxtest.Fake) }

func (r *rig) records() *kv.Store { return r.store(messagingtest.Conn(r.t, r.srv)) }

func soon(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", d, what)
		}
	}
}

// A creator that was stopped while another worker took its create over comes
// back and finds another generation under the name: that one is not touched.
func TestLateCreatorHarmsNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, nil)
	var first atomic.Bool
	entered, release := make(chan struct{}), make(chan struct{})
	r.fake().SetHook(func(op string, _ sandbox.Handle) error {
		if op == "Create" && first.CompareAndSwap(false, true) {
			close(entered)
			<-release
		}
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = r.client.Create(t.Context(), messaging.CreateRequest{Name: "x"})
	})
	<-entered
	// Another worker has adopted the record and made its own generation.
	store := r.records()
	e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", "x"))
	if err != nil {
		t.Fatal(err)
	}
	e.Value.Owner, e.Value.State, e.Value.Handle.Generation = "somebody", kv.Running, "successor"
	if err := store.Handles.Put(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	var destroyed sync.Map
	r.fake().SetHook(func(op string, h sandbox.Handle) error {
		if op == "Destroy" {
			destroyed.Store(h.Generation, true)
		}
		return nil
	})
	close(release)
	soon(t, 10*time.Second, "the creator removes what it made", func() bool {
		n := 0
		destroyed.Range(func(any, any) bool { n++; return true })
		return n > 0
	})
	if _, hit := destroyed.Load("successor"); hit {
		t.Fatal("the successor was destroyed")
	}
	e, err = store.Handles.Get(t.Context(), kv.HandleKey("main", "x"))
	if err != nil || e.Value.State != kv.Running || e.Value.Owner != "somebody" {
		t.Fatalf("the record: %+v, %v", e.Value, err)
	}
	if e.Value.Owner = ""; store.Handles.Remove(t.Context(), e) != nil {
		t.Fatal("clean up")
	}
	wg.Wait()
}

// LC-09: a sandbox that is being created can be destroyed, at once.
func TestDestroyEndsACreate(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, nil)
	store, destroyer := r.records(), r.kernel("main")
	var wg sync.WaitGroup
	wg.Go(func() {
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", "x"))
			if err == nil && e.Value.State == kv.Creating && e.Value.Epoch > 0 {
				break
			}
		}
		if _, err := destroyer.Destroy(t.Context(), messaging.Target{Sandbox: "x"}); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	began := time.Now()
	_, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "x", Setup: []sandbox.Setup{{Shell: "sleep 60"}}})
	wg.Wait()
	code(t, err, sandbox.Canceled)
	if d := time.Since(began); d > 20*time.Second {
		t.Fatalf("after %s", d)
	}
	if objects, _ := r.engine.List(t.Context()); len(objects) != 0 {
		t.Fatalf("left: %v", objects)
	}
}

// LC-09, LC-11: a destruction that the engine refused is finished later, and
// the name is free again.
func TestFailedDestroyIsFinished(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, nil)
	box := r.create("x")
	var failures atomic.Int64
	r.fake().SetHook(func(op string, _ sandbox.Handle) error {
		if op == "Destroy" && failures.Add(1) == 1 {
			return sandbox.Errorf(sandbox.Engine, "not now")
		}
		return nil
	})
	_, err := r.client.Destroy(t.Context(), box)
	code(t, err, sandbox.Engine)
	store := r.records()
	soon(t, 10*time.Second, "the owner finishes it", func() bool {
		e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", "x"))
		return err == nil && e.Value.State == kv.Gone
	})
	r.create("x")
}

// A suspension that the engine refused leaves a sandbox that works.
func TestFailedSuspendIsSettled(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, nil)
	box := r.create("x")
	var failures atomic.Int64
	r.fake().SetHook(func(op string, _ sandbox.Handle) error {
		if op == "Suspend" && failures.Add(1) == 1 {
			return sandbox.Errorf(sandbox.Engine, "not now")
		}
		return nil
	})
	_, err := r.client.Suspend(t.Context(), messaging.SuspendRequest{Target: box, Mode: sandbox.SuspendMemory})
	code(t, err, sandbox.Engine)
	store := r.records()
	soon(t, 10*time.Second, "the record says what the engine shows", func() bool {
		e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", "x"))
		return err == nil && e.Value.State == kv.Running
	})
	r.run(box, "true")
}

// loseBuckets replaces the buckets by empty ones, past a grace of a second.
func (r *rig) loseBuckets() {
	r.t.Helper()
	js, err := jetstream.New(messagingtest.Conn(r.t, r.srv))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, bucket := range []string{kv.HandlesBucket, kv.LocksBucket, kv.WorkersBucket} {
		if err := js.DeleteKeyValue(r.t.Context(), bucket); err != nil {
			r.t.Fatal(err)
		}
	}
	time.Sleep(1200 * time.Millisecond) // past the grace
	if err := kv.Create(r.t.Context(), js, kv.Config{}); err != nil {
		r.t.Fatal(err)
	}
}

// NK-12, LC-08: the bucket is lost under workers that run on. Nothing is taken
// for a leftover; records come back with what the agents keep.
func TestNK12LostBucketIsRebuilt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, func(c *fleet.Config) { c.Quota = &fleet.Quota{Sandboxes: 5}; c.SweepGrace = time.Second })
	var before []messaging.SandboxInfo
	for i := range 5 {
		info, err := r.client.Create(t.Context(), messaging.CreateRequest{
			Name: sandbox.Name(fmt.Sprintf("s%d", i)), Metadata: map[string]string{"n": fmt.Sprint(i)},
			Env: map[string]string{"SECRET": fmt.Sprint("e", i)}, Egress: sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"example.com"}},
			TTL: sandbox.Milliseconds(3_600_000 * (i + 1)),
		})
		if err != nil {
			t.Fatal(err)
		}
		// What was changed since the create comes back as well.
		if _, err := r.client.SetEgress(t.Context(), info.Target(), sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"example.com", "since.example"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.client.Pin(t.Context(), info.Target(), i%2 == 0); err != nil {
			t.Fatal(err)
		}
		r.run(messaging.Target{Sandbox: info.Name}, "echo kept > $HOME/file")
		before = append(before, info)
	}
	r.loseBuckets()
	soon(t, 40*time.Second, "all are listed again, complete", func() bool {
		list, err := r.client.List(t.Context(), messaging.ListRequest{})
		if err != nil || len(list.Sandboxes) != 5 {
			return false
		}
		for i, s := range list.Sandboxes {
			if s.Metadata["n"] != fmt.Sprint(i) || len(s.Egress.Hosts) != 2 || s.Pinned != (i%2 == 0) || s.Generation != before[i].Generation {
				return false
			}
			if s.Expires == nil || s.Expires.Sub(*before[i].Expires).Abs() > 10*time.Second {
				return false
			}
		}
		return true
	})
	for i, s := range before {
		if got := r.run(messaging.Target{Sandbox: s.Name, Generation: s.Generation}, "cat $HOME/file; echo $SECRET"); got != fmt.Sprintf("kept\ne%d\n", i) {
			t.Errorf("%s: %q", s.Name, got)
		}
	}
	soon(t, 20*time.Second, "the quota counts them again", func() bool {
		_, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "more"})
		if err == nil {
			_, _ = r.client.Destroy(t.Context(), messaging.Target{Sandbox: "more"})
		}
		return sandbox.CodeOf(err) == sandbox.Quota
	})
}

// NK-16: a worker whose engine does not answer gives its creates to another
// engine, and takes them again when it is well.
func TestNK16BadEngineLeavesPlacement(t *testing.T) {
	t.Parallel()
	bad, good := sandboxtest.NewFake(t.TempDir()), sandboxtest.NewFake(t.TempDir())
	t.Cleanup(bad.Close)
	t.Cleanup(good.Close)
	r := newRigOn(t, bad, 1, nil)
	r.engine = good
	r.worker()
	badID, err := bad.EngineID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	down := func(string, sandbox.Handle) error { return sandbox.Errorf(sandbox.Engine, "no engine here") }
	bad.SetHook(down)
	soon(t, 20*time.Second, "one worker is out", func() bool {
		list, err := r.client.Workers(t.Context())
		out := 0
		for _, w := range list {
			if (w.State == "engine_down") == (w.Engine == badID) {
				out++
			}
		}
		return err == nil && len(list) == 2 && out == 2 // one is out, the other serves
	})
	for i := range 8 {
		if _, err := r.kernel("main").Create(t.Context(), messaging.CreateRequest{Name: sandbox.Name(fmt.Sprintf("a%d", i))}); err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
	}
	bad.SetHook(nil)
	soon(t, 30*time.Second, "it takes creates again", func() bool {
		_, err := r.kernel("main").Create(t.Context(), messaging.CreateRequest{Name: sandbox.Name("b" + sandbox.NewID()[:6])})
		if err != nil {
			t.Fatal(err)
		}
		objects, _ := bad.List(t.Context())
		return len(objects) > 0
	})
}

// A full engine gives its creates to one with room, and answers busy when all
// are full.
func TestCreatesGoWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	one, two := sandboxtest.NewFake(t.TempDir()), sandboxtest.NewFake(t.TempDir())
	t.Cleanup(one.Close)
	t.Cleanup(two.Close)
	r := newRigOn(t, one, 1, func(c *fleet.Config) { c.Capacity.MemoryMB = 2048 })
	r.engine = two
	r.worker()
	r.sees(2)
	for i := range 4 {
		_, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: sandbox.Name(fmt.Sprintf("s%d", i)), Limits: sandbox.Limits{MemoryMB: 1024}})
		if err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	a, _ := one.List(t.Context())
	b, _ := two.List(t.Context())
	if len(a) != 2 || len(b) != 2 {
		t.Fatalf("%d and %d sandboxes", len(a), len(b))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if _, err := r.client.Create(ctx, messaging.CreateRequest{Name: "full", Limits: sandbox.Limits{MemoryMB: 1024}}); err == nil {
		t.Fatal("a fifth was made")
	}
}

// An exec on an attached sandbox does no KV operation and no engine call.
func TestExecTouchesNeitherRecordsNorEngine(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, func(c *fleet.Config) { c.SweepEvery = time.Hour })
	box := r.create("x")
	r.run(box, "true")
	time.Sleep(500 * time.Millisecond)
	var calls, writes atomic.Int64
	r.fake().SetHook(func(string, sandbox.Handle) error { calls.Add(1); return nil })
	nc := messagingtest.Conn(t, r.srv)
	for _, subject := range []string{"$KV.shoal_handles.>", "$KV.shoal_locks.>", "$JS.API.*.*.*.KV_shoal_handles.>", "$JS.API.STREAM.MSG.GET.>", "$JS.API.DIRECT.GET.>", "$JS.API.CONSUMER.CREATE.>"} {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
			if m.Subject != "$JS.API.STREAM.MSG.GET.KV_shoal_workers" { // the presence goes on
				writes.Add(1)
				t.Logf("%s %s", m.Subject, m.Data)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		r.run(box, "true")
	}
	if calls.Load() != 0 || writes.Load() != 0 {
		t.Fatalf("50 commands made %d engine calls and %d KV operations", calls.Load(), writes.Load())
	}
}

// RL-08: what an earlier run has left is removed by the sweep after a start.
func TestRL08LeftoversAreRemovedAtStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, func(c *fleet.Config) { c.SweepGrace = 100 * time.Millisecond })
	store := r.records()
	bucket, err := store.BucketID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		spec := sandbox.Spec{
			Tenant: "main", Name: sandbox.Name(fmt.Sprintf("old%d", i)), Generation: sandbox.NewID(), Bucket: bucket,
			Limits: sandbox.DefaultLimits(), Egress: sandbox.Egress{Mode: sandbox.EgressNone},
		}
		if _, err := r.engine.Create(t.Context(), spec, nil); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	r.worker() // returns when it has compared
	if objects, _ := r.engine.List(t.Context()); len(objects) != 0 {
		t.Fatalf("%d left", len(objects))
	}
}

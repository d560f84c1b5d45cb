package fleet_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// What nobody uses is paused, then stopped, then destroyed by its age; what is
// pinned, and what runs in the foreground, is let be.
func TestIdleStepsInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, func(c *fleet.Config) {
		c.PauseAfter, c.StopAfter, c.DestroyAfter = 3*time.Second, 5*time.Second, 7*time.Second
		c.DetachAfter = time.Second
	})
	idle, pinned, busy := r.create("idle"), r.create("pinned"), r.create("busy")
	// A command in the background is no use, unless it asks for it.
	if p, err := r.client.Exec(t.Context(), idle, sandbox.Command{Shell: "sleep 60", Background: true}); err != nil {
		t.Fatal(err)
	} else {
		p.Close()
	}
	if _, err := r.client.Pin(t.Context(), pinned, true); err != nil {
		t.Fatal(err)
	}
	p, err := r.client.Exec(t.Context(), busy, sandbox.Command{Shell: "sleep 60"})
	if err != nil {
		t.Fatal(err)
	}
	p.Close() // it runs on, though nobody reads
	store := r.records()
	var seen []string
	soon(t, 40*time.Second, "it is destroyed", func() bool {
		e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", idle.Sandbox))
		if err != nil {
			t.Fatal(err)
		}
		now := string(e.Value.State)
		switch e.Value.State {
		case kv.Suspended:
			now += " " + string(e.Value.Mode)
		case kv.Suspending, kv.Destroying:
			return false
		case kv.Gone:
			now += " " + e.Value.Last.Reason
		default:
		}
		if len(seen) == 0 || seen[len(seen)-1] != now {
			seen = append(seen, now)
		}
		return e.Value.State == kv.Gone
	})
	if want := []string{"running", "suspended memory", "suspended disk", "gone idle"}; !slices.Equal(seen, want) {
		t.Errorf("it was %q, want %q", seen, want)
	}
	for _, box := range []messaging.Target{pinned, busy} {
		e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", box.Sandbox))
		if err != nil || e.Value.State != kv.Running {
			t.Errorf("%s is %s, %v", box.Sandbox, e.Value.State, err)
		}
	}
}

// LC-06: sandboxes that are used at the very moment at which they fall due are
// either used or gone, and fall due again afterwards: none lives on for ever.
func TestLC06UseAtTheMomentOfExpiry(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, func(c *fleet.Config) { c.DestroyAfter = 2 * time.Second })
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			box := r.create(sandbox.Name(fmt.Sprintf("s%d", i)))
			time.Sleep(1900*time.Millisecond + rand.N(1300*time.Millisecond))
			res, err := r.client.Run(t.Context(), box, sandbox.Command{Shell: "echo used"}, messaging.RunOptions{})
			switch sandbox.CodeOf(err) {
			case "":
				if string(res.Stdout) != "used\n" {
					t.Errorf("%d: output %q", i, res.Stdout)
				}
			case sandbox.Gone, sandbox.OutcomeUnknown:
			default:
				t.Errorf("%d: neither used nor gone: %v", i, err)
			}
		})
	}
	wg.Wait()
	soon(t, 40*time.Second, "all are gone", func() bool {
		list, err := r.client.List(t.Context(), messaging.ListRequest{})
		return err == nil && len(list.Sandboxes) == 0
	})
	if left, err := r.engine.List(t.Context()); err != nil || len(left) != 0 {
		t.Fatalf("left in the engine: %d, %v", len(left), err)
	}
}

// LC-13: a time to live holds though the worker that was to see to it is no
// more, and though the sandbox is used; for one that nobody asks for as well.
func TestLC13TTLOutlivesItsKeeper(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, nil)
	store := r.records()
	began := time.Now()
	for _, name := range []sandbox.Name{"used", "left"} {
		if _, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: name, TTL: 5000}); err != nil {
			t.Fatal(err)
		}
		r.orphan(store, name)
	}
	for _, name := range []sandbox.Name{"used", "left"} {
		var e *kv.Entry[kv.Record]
		soon(t, 40*time.Second, "it is destroyed", func() bool {
			_, _ = r.client.Run(t.Context(), messaging.Target{Sandbox: "used"}, sandbox.Command{Shell: "true"}, messaging.RunOptions{})
			var err error
			if e, err = store.Handles.Get(t.Context(), kv.HandleKey("main", name)); err != nil {
				t.Fatal(err)
			}
			return e.Value.State == kv.Gone
		})
		if e.Value.Last.Reason != "ttl" || e.Value.Last.At.Sub(began) < 4*time.Second {
			t.Fatalf("%s: %+v", name, e.Value.Last)
		}
	}
}

// orphan gives a sandbox to a worker that does not exist, as after the death of
// its owner.
func (r *rig) orphan(store *kv.Store, name sandbox.Name) { r.orphanAs(store, name, "") }

// orphanAs does so in another state of the record than it has.
func (r *rig) orphanAs(store *kv.Store, name sandbox.Name, state kv.State) {
	r.t.Helper()
	for range 20 {
		e, err := store.Handles.Get(r.t.Context(), kv.HandleKey("main", name))
		if err != nil {
			r.t.Fatal(err)
		}
		e.Value.Owner, e.Value.State = "ghost", cmp.Or(state, e.Value.State)
		if err = store.Handles.Put(r.t.Context(), e); err == nil {
			return
		}
		if !kv.IsRevision(err) {
			r.t.Fatal(err)
		}
	}
	r.t.Fatal("the record changes too fast")
}

// NK-13, in part: workers that find a sandbox without a living owner at the
// same time make one owner, and no command runs twice or is lost.
func TestTwoAdoptersMakeOneOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, func(c *fleet.Config) { c.SweepEvery = 200 * time.Millisecond })
	box := r.create("x")
	store := r.records()
	ran := 0
	for round := range 8 {
		r.orphan(store, "x")
		var wg sync.WaitGroup
		for i := range 4 {
			c := r.kernel("main") // knows nobody, so any worker is asked
			wg.Go(func() {
				res, err := c.Run(t.Context(), box, sandbox.Command{Shell: fmt.Sprintf("echo %d.%d >> $HOME/ran", round, i)}, messaging.RunOptions{})
				if err != nil || res.Code != 0 {
					t.Errorf("round %d: %+v, %v", round, res, err)
				}
			})
			ran++
		}
		wg.Wait()
		// The commands may all have been started by an owner that had looked at
		// the record just before it was changed; then a sweep finds the ghost.
		soon(t, 30*time.Second, fmt.Sprintf("round %d: a worker owns the sandbox", round), func() bool {
			e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", "x"))
			return err == nil && e.Value.Owner != "ghost" && e.Value.Owner != ""
		})
	}
	if got := r.run(box, "sort $HOME/ran | uniq | wc -l; wc -l < $HOME/ran"); got != fmt.Sprintf("%d\n%d\n", ran, ran) {
		t.Fatalf("of %d commands, distinct and all: %q", ran, got)
	}
}

package fleet_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
	"shoal/sandbox/sandboxtest"
)

// late is an engine whose first create is made but answered late, by what answer
// says.
type late struct {
	sandbox.Provider

	answer        error
	made, release chan struct{}
	first         sync.Once
	destroyed     atomic.Int64
}

func (p *late) Create(ctx context.Context, spec sandbox.Spec, told sandbox.Progress) (sandbox.Handle, error) {
	h, err := p.Provider.Create(ctx, spec, told)
	p.first.Do(func() {
		close(p.made)
		<-p.release
		if p.answer != nil {
			h, err = sandbox.Handle{}, p.answer
		}
	})
	return h, err
}

func (p *late) Destroy(ctx context.Context, h sandbox.Handle) error {
	p.destroyed.Add(1)
	return p.Provider.Destroy(ctx, h)
}

// A creator that was stopped for a while finds that another worker has adopted the
// very sandbox that it is making: it leaves it alone, whatever its engine answers.
func TestCreatorLeavesWhatWasAdopted(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"made": nil, "answer lost": sandbox.Errorf(sandbox.Engine, "the connection broke").From(sandbox.FromEngine),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := sandboxtest.NewFake(t.TempDir())
			t.Cleanup(fake.Close)
			engine := &late{Provider: fake, answer: answer, made: make(chan struct{}), release: make(chan struct{})}
			release := sync.OnceFunc(func() { close(engine.release) })
			r := newRigOn(t, engine, 1, func(c *fleet.Config) { c.SweepEvery = time.Hour })
			t.Cleanup(release)
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "x"})
				if (err == nil) != (answer == nil) {
					t.Errorf("create: %v", err)
				}
			})
			<-engine.made
			store := r.records()
			e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", "x"))
			if err != nil {
				t.Fatal(err)
			}
			e.Value.Owner, e.Value.State = "somebody", kv.Running
			if err := store.Handles.Put(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			release()
			wg.Wait()
			box := messaging.Target{Sandbox: "x", Generation: e.Value.Handle.Generation}
			if got := r.run(box, "echo lives"); got != "lives\n" {
				t.Errorf("the adopted sandbox: %q", got)
			}
			if n := engine.destroyed.Load(); n != 0 {
				t.Errorf("it was destroyed %d times", n)
			}
		})
	}
}

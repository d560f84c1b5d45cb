package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"shoal/messaging"
	"shoal/sandbox"
)

const byCreate = "create, start, docker exec"

// createRows measure the time from a create to the first command's result.
func createRows(ctx context.Context, r *rig) error { return r.creates(ctx, "create_cold", 1) }

// burstRows measure it until 16 that begin at once have their results.
func burstRows(ctx context.Context, r *rig) error { return r.creates(ctx, "create16", 16) }

func (r *rig) creates(ctx context.Context, name string, n int) error {
	return r.measure(ctx, probe{
		name: name, unit: unitMS, long: true, seconds: n > 1, baseline: byCreate,
		ours: together(n, r.fresh), base: together(n, r.freshByHand),
	})
}

// fresh makes a sandbox and runs its first command; undo removes it.
func (r *rig) fresh(ctx context.Context) (undo func(context.Context) error, err error) {
	t, err := r.create(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return r.destroy(ctx, t) }, r.runTrue(ctx, t)
}

func (r *rig) freshByHand(ctx context.Context) (undo func(context.Context) error, err error) {
	id, err := r.engine.Create(ctx, r.handName())
	if err != nil {
		return nil, err
	}
	undo = func(ctx context.Context) error { return r.engine.Remove(ctx, id) }
	return undo, r.engine.Exec(ctx, id, []string{"bash", "-c", "true"}, nil, new(count))
}

// together makes a sample of the milliseconds until n that begin at once are
// all done; undoing them does not count.
func together(n int, do func(context.Context) (func(context.Context) error, error)) sample {
	return func(ctx context.Context) (float64, error) {
		undo := make([]func(context.Context) error, n)
		g, gctx := errgroup.WithContext(ctx)
		start := time.Now()
		for i := range n {
			g.Go(func() (err error) {
				undo[i], err = do(gctx)
				return err
			})
		}
		err := g.Wait()
		took := ms(time.Since(start))
		for _, u := range undo {
			if u == nil {
				continue
			}
			if uerr := u(ctx); err == nil {
				err = uerr
			}
		}
		return took, err
	}
}

// suspendRows measure suspending, and resuming until a command's result, in both
// modes.
func suspendRows(ctx context.Context, r *rig) error {
	for _, mode := range []sandbox.SuspendMode{sandbox.SuspendMemory, sandbox.SuspendDisk} {
		var down, up []float64
		for range r.effort.Rounds {
			start := time.Now()
			if _, err := r.client.Suspend(ctx, messaging.SuspendRequest{Target: r.box, Mode: mode}); err != nil {
				return fmt.Errorf("suspend with %s: %w", mode, err)
			}
			down = append(down, ms(time.Since(start)))
			start = time.Now()
			if _, err := r.client.Resume(ctx, r.box); err != nil {
				return fmt.Errorf("resume from %s: %w", mode, err)
			}
			if err := r.runTrue(ctx, r.box); err != nil {
				return fmt.Errorf("run after the resume from %s: %w", mode, err)
			}
			up = append(up, ms(time.Since(start)))
		}
		r.add(summarise(probe{name: "suspend_" + string(mode), unit: unitMS}, down, nil, nil))
		r.add(summarise(probe{name: "resume_" + string(mode), unit: unitMS}, up, nil, nil))
	}
	return nil
}

// lockRows measure taking a tag's lock and giving it back.
func lockRows(ctx context.Context, r *rig) error {
	return r.measure(ctx, probe{name: "lock", unit: unitMS, ours: func(ctx context.Context) (float64, error) {
		start := time.Now()
		lock, err := r.client.Lock(ctx, r.box, "bench", messaging.LockOptions{Holder: "bench"})
		took := ms(time.Since(start))
		if err != nil {
			return 0, err
		}
		return took, lock.Release(ctx, false)
	}})
}

package fleet

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// The steps of the idle policy, as people read them.
const (
	stepPause   = "suspended with its memory"
	stepStop    = "suspended without its memory"
	stepDestroy = "destroyed"
)

// keepFor bounds one thing that is done for a sandbox.
const keepFor = 3 * time.Minute

// useEvery is how often the last use is written down.
const useEvery = time.Minute

// keep does for one sandbox what is due now. It runs in the worker's tick, so
// slow work goes to a goroutine of its own, one per box.
func (b *box) keep(ctx context.Context, now time.Time) {
	rec := b.record()
	if b.pooled || rec.Owner != string(b.w.id) || rec.State == "" || rec.State == kv.Gone || b.w.isDraining() || !b.later.due(time.Now()) {
		return
	}
	if !b.keeping.CompareAndSwap(false, true) {
		return
	}
	act := b.due(rec, now)
	if act == nil {
		b.keeping.Store(false)
		return
	}
	b.w.bg.Go(func() {
		defer b.keeping.Store(false)
		ctx, cancel := context.WithTimeout(ctx, keepFor)
		defer cancel()
		err := act(ctx)
		b.later.note(err)
		if err != nil && sandbox.CodeOf(err) != sandbox.Busy {
			b.log.WarnContext(ctx, "looking after a sandbox", "error", err)
		}
	})
}

// backoff spaces the repeats of what failed, from one second to half a minute.
// It belongs to one goroutine at a time.
type backoff struct {
	until atomic.Int64 // Unix milliseconds
	wait  time.Duration
}

func (f *backoff) due(now time.Time) bool { return now.UnixMilli() >= f.until.Load() }

func (f *backoff) note(err error) {
	if err == nil {
		f.wait = 0
		return
	}
	f.wait = min(max(time.Second, 2*f.wait), 30*time.Second)
	f.until.Store(time.Now().Add(f.wait).UnixMilli())
}

// due returns what is to be done now, nil for nothing.
func (b *box) due(rec kv.Record, now time.Time) func(context.Context) error {
	used := b.lastUse()
	if act := b.stuck(rec); act != nil {
		return act
	}
	if rec.TTL > 0 && now.After(rec.Created.Add(rec.TTL.Duration())) {
		return func(ctx context.Context) error { return b.destroyAs(ctx, "ttl") }
	}
	if b.holds.Load() > 0 || b.egress.Active(time.Minute) {
		b.touch()
		used = now
	}
	if b.broken() && rec.State == kv.Running {
		return b.repair
	}
	if b.silent() && rec.State == kv.Running {
		return b.rouse
	}
	if used.Sub(rec.LastUse) >= useEvery {
		return func(ctx context.Context) error { return b.writeUse(ctx, used) }
	}
	rec.LastUse = used
	if step, at := b.w.nextIdleStep(rec); !rec.Pin && step != "" && now.After(at) {
		return func(ctx context.Context) error { return b.idle(ctx, step, used) }
	}
	if b.live() != nil && rec.State == kv.Running && !b.tunnelOn() &&
		now.Sub(used) > b.w.cfg.DetachAfter && now.Sub(time.UnixMilli(b.ran.Load())) > b.w.cfg.DetachAfter {
		return b.detachIdle
	}
	if time.Since(b.lastProof()) > proveEvery {
		return b.prove
	}
	return nil
}

// proveEvery is how old the proof of ownership of a sandbox that nobody uses
// may become: another worker may have taken it over unnoticed.
const proveEvery = time.Minute

func (b *box) lastProof() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proven
}

func (b *box) prove(ctx context.Context) error {
	_, err := b.load(ctx)
	return err // a box that is not ours any more is let go of by reap
}

// stuck returns what finishes an operation that failed in its middle: no other
// worker looks after a record whose owner lives. While an operation runs it
// holds the gate.
func (b *box) stuck(rec kv.Record) func(context.Context) error {
	var act func(context.Context) error
	switch rec.State {
	case kv.Suspending, kv.Resuming:
		act = b.settleHeld
	case kv.Destroying:
		act = func(ctx context.Context) error { return b.removeAs(ctx, b.record(), "destroyed") }
	case kv.Creating:
		if time.Since(rec.Changed) < b.w.cfg.SweepGrace {
			return nil // a repeat of the create may be on its way
		}
		act = func(ctx context.Context) error { return b.removeAs(ctx, b.record(), createUnfinished) }
	default:
		return nil
	}
	if !b.gate.idle() {
		return nil
	}
	return func(ctx context.Context) error {
		release, err := b.gate.alone(ctx)
		if err != nil {
			return err
		}
		defer release()
		if b.record().State != rec.State || b.record().Handle.Generation != rec.Handle.Generation {
			return nil // somebody was faster
		}
		return act(ctx)
	}
}

// broken reports whether the session ended without our doing.
func (b *box) broken() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.session != nil && b.session.Err() != nil
}

// repair attaches again, so that egress and the commands' clocks go on. When
// another worker has taken over, the box ends here.
func (b *box) repair(ctx context.Context) error {
	_, err := b.attached(ctx, false)
	switch {
	case sandbox.CodeOf(err) == sandbox.Fenced:
		b.w.drop(b, messaging.ErrMoved)
		return nil
	case err != nil && sandbox.AsError(err).Reason == "suspended":
		if err := b.stoppedItself(ctx); err != nil {
			return err
		}
		b.detach() // the next use wakes it
		return nil
	}
	return err
}

// idleBox is how long a box without a living sandbox stays.
const idleBox = time.Minute

// reap lets go of a box that stands for nothing any more.
func (w *Worker) reap(b *box, now time.Time) {
	if b.record().Owner == string(w.id) || b.holds.Load() > 0 || !b.gate.s.TryAcquire(gateWidth) {
		return
	}
	defer b.gate.s.Release(gateWidth)
	w.mu.Lock()
	idle := now.Sub(time.UnixMilli(b.seen.Load())) > idleBox && w.boxes[b.key] == b
	if idle {
		delete(w.boxes, b.key) // under the lock that requests find it by
	}
	w.mu.Unlock()
	if idle {
		b.close(messaging.ErrMoved)
	}
}

// nextIdleStep returns what the idle policy does next to a sandbox, and when.
func (w *Worker) nextIdleStep(r kv.Record) (step string, at time.Time) {
	for _, s := range []struct {
		step  string
		after time.Duration
		from  bool
	}{
		{stepPause, w.cfg.PauseAfter, r.State == kv.Running && w.canPause()},
		{stepStop, w.cfg.StopAfter, r.State == kv.Running || r.State == kv.Suspended && r.Mode == sandbox.SuspendMemory},
		{stepDestroy, w.cfg.DestroyAfter, r.State == kv.Running || r.State == kv.Suspended},
	} {
		if s.after > 0 && s.from && (step == "" || r.LastUse.Add(s.after).Before(at)) {
			step, at = s.step, r.LastUse.Add(s.after)
		}
	}
	return step, at
}

func (w *Worker) canPause() bool {
	return slices.Contains(w.caps.Suspend, sandbox.SuspendMemory)
}

// idle takes one step of the policy, unless something holds the sandbox awake.
func (b *box) idle(ctx context.Context, step string, used time.Time) error {
	busy, err := b.keptAwake(ctx)
	if err != nil {
		return err
	}
	if busy {
		b.touch()
	}
	if busy || b.lastUse().After(used) {
		return nil
	}
	if step == stepDestroy {
		return b.destroyAs(ctx, "idle")
	}
	mode := sandbox.SuspendMemory
	if step == stepStop {
		mode = sandbox.SuspendDisk
	}
	return b.suspend(ctx, mode, false)
}

func (b *box) destroyAs(ctx context.Context, why string) error {
	_, err := b.destroy(ctx, why)
	return err
}

// keptAwake reports whether a foreground command runs, or a background one
// that asked for it.
func (b *box) keptAwake(ctx context.Context) (bool, error) {
	if b.record().State != kv.Running {
		return false, nil
	}
	s, err := b.attached(ctx, false)
	if err != nil {
		return false, err
	}
	list, err := s.List(ctx)
	if err != nil {
		return false, err
	}
	for _, c := range list {
		if c.State == sandbox.CommandRunning && (!c.Background || c.KeepAwake) {
			return true, nil
		}
	}
	return false, nil
}

// detachIdle closes the session of a sandbox in which nothing runs; the next
// use attaches again.
func (b *box) detachIdle(ctx context.Context) error {
	s := b.live()
	if s == nil {
		return nil
	}
	list, err := s.List(ctx)
	if err != nil {
		return err
	}
	for _, c := range list {
		if c.State == sandbox.CommandRunning {
			b.ran.Store(b.w.clock.now().UnixMilli()) // no use of it: it may be suspended
			return nil
		}
	}
	release, err := b.gate.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	if b.holds.Load() == 0 {
		b.detach()
	}
	return nil
}

func (b *box) writeUse(ctx context.Context, used time.Time) error {
	return b.change(ctx, func(r *kv.Record) error {
		r.LastUse = used.UTC()
		return nil
	})
}

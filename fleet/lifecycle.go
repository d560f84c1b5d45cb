package fleet

import (
	"context"
	"slices"
	"time"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// engineFor bounds one life-cycle call to the engine.
const engineFor = time.Minute

// resume brings the sandbox to running if it is suspended.
func (b *box) resume(ctx context.Context) error {
	release, err := b.gate.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := b.own(ctx); err != nil {
		return err
	}
	return b.wakeLocked(ctx)
}

// wakeLocked resumes a suspended sandbox; the gate is held alone.
func (b *box) wakeLocked(ctx context.Context) error {
	rec := b.record()
	switch rec.State {
	case kv.Running:
		_, err := b.attached(ctx, true)
		return err
	case kv.Suspended, kv.Suspending, kv.Resuming:
	case kv.Creating:
		return errCreating()
	default:
		return errGone(rec)
	}
	if err := b.setState(ctx, kv.Resuming); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, engineFor)
	defer cancel()
	if err := b.w.provider.Resume(call, rec.Handle); err != nil {
		return b.attachFailed(ctx, err)
	}
	s, err := b.attached(ctx, true)
	if err != nil {
		return err
	}
	if rec.Mode == sandbox.SuspendMemory {
		if err := s.Release(ctx); err != nil {
			return err
		}
	}
	b.event(messaging.EventResumed, nil)
	return nil
}

func errCreating() error {
	return sandbox.Errorf(sandbox.Busy, "the sandbox is being created; ask again").After(time.Second).Because("creating").From(sandbox.FromWorker)
}

// suspend stops the sandbox, keeping what mode says.
func (b *box) suspend(ctx context.Context, mode sandbox.SuspendMode, force bool) error {
	if mode == "" {
		mode = b.w.caps.Suspend[0]
	}
	if !slices.Contains(b.w.caps.Suspend, mode) {
		return sandbox.Errorf(sandbox.Unsupported, "this provider cannot suspend keeping %s", mode).From(sandbox.FromWorker)
	}
	release, err := b.gate.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := b.own(ctx); err != nil {
		return err
	}
	rec := b.record()
	switch rec.State {
	case kv.Running:
	case kv.Suspended:
		if rec.Mode == mode || rec.Mode == sandbox.SuspendDisk {
			return nil
		}
	case kv.Creating:
		return errCreating()
	case kv.Suspending, kv.Resuming:
	default:
		return errGone(rec)
	}
	if err := b.quiesce(ctx, rec, mode, force); err != nil {
		b.unquiesce(ctx, mode)
		return err
	}
	err = b.stop(ctx, mode)
	if err != nil {
		b.unquiesce(ctx, mode)
	}
	return err
}

// unquiesce opens again what quiesce has closed, when the suspension failed
// before it was written down; afterwards the next attachment does it.
func (b *box) unquiesce(ctx context.Context, mode sandbox.SuspendMode) {
	s := b.live()
	if s == nil || b.record().State != kv.Running {
		return
	}
	b.restoreEgress()
	if mode == sandbox.SuspendMemory {
		if err := s.Release(context.WithoutCancel(ctx)); err != nil {
			b.log.DebugContext(ctx, "the hold ends by itself", "error", err)
		}
	}
}

// quiesce prepares the inside for a suspension: egress ends, clocks stand
// still (memory), programs are asked to end (disk).
func (b *box) quiesce(ctx context.Context, rec kv.Record, mode sandbox.SuspendMode, force bool) error {
	if rec.State == kv.Suspended {
		return nil
	}
	s, err := b.attached(ctx, false)
	if err != nil {
		if code := sandbox.CodeOf(err); code == sandbox.Gone || code == sandbox.Fenced {
			return err
		}
		return nil // nothing answers inside; the engine's call decides
	}
	if !force {
		list, err := s.List(ctx)
		if err != nil {
			return err
		}
		for _, c := range list {
			if c.State == sandbox.CommandRunning && !c.Background {
				return sandbox.Errorf(sandbox.Busy, "command %s runs in the foreground; wait for it, kill it, or force the suspension", c.ID).
					After(time.Second).Because("commands").From(sandbox.FromWorker)
			}
		}
	}
	b.egress.SetPolicy(nil)
	if mode == sandbox.SuspendMemory {
		err = s.Hold(ctx)
	} else if err = s.Suspend(ctx); err == nil {
		b.settlePumps(ctx)
	}
	if err != nil {
		b.restoreEgress() // it runs on
	}
	return err
}

// settlePumps gives the readers time to take the ends of the commands that a
// suspension has ended, before the stream closes under them.
func (b *box) settlePumps(ctx context.Context) {
	for range 40 {
		b.mu.Lock()
		n := len(b.pumps)
		b.mu.Unlock()
		if n == 0 || !pause(ctx, 50*time.Millisecond) {
			return
		}
	}
}

func (b *box) stop(ctx context.Context, mode sandbox.SuspendMode) error {
	err := b.change(ctx, func(r *kv.Record) error {
		r.State, r.Mode = kv.Suspending, mode
		return nil
	})
	if err != nil {
		b.restoreEgress() // it runs on
		return err
	}
	b.detach()
	call, cancel := context.WithTimeout(ctx, engineFor)
	defer cancel()
	if err := b.w.provider.Suspend(call, b.record().Handle, mode); err != nil {
		return b.attachFailed(ctx, err)
	}
	err = b.change(ctx, func(r *kv.Record) error {
		r.State, r.Mode = kv.Suspended, mode
		r.Last = &kv.Termination{Reason: "suspended", At: time.Now().UTC()}
		return nil
	})
	if err != nil {
		return err
	}
	b.event(messaging.EventSuspended, map[string]string{"mode": string(mode)})
	return nil
}

// destroy removes the sandbox; it existed if true.
func (b *box) destroy(ctx context.Context, why string) (bool, error) {
	b.abortCreate()
	release, err := b.gate.alone(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	rec := b.record()
	if !b.exists() || rec.State == kv.Gone {
		return false, nil
	}
	return true, b.removeAs(ctx, rec, why)
}

// remove destroys what the record stands for, to make room for another
// generation. The gate is held alone.
func (b *box) remove(ctx context.Context, rec kv.Record) error {
	return b.removeAs(ctx, rec, "replaced")
}

func (b *box) removeAs(ctx context.Context, rec kv.Record, why string) error {
	err := b.change(ctx, func(r *kv.Record) error {
		r.State, r.Owner = kv.Destroying, string(b.w.id)
		return nil
	})
	if err != nil {
		return err
	}
	gone := sandbox.Errorf(sandbox.Gone, "the sandbox was destroyed (%s)", why).Because(why).From(sandbox.FromWorker)
	b.egress.SetPolicy(nil)
	b.finish(gone)
	if err := b.own(ctx); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, engineFor)
	defer cancel()
	if err := b.w.provider.Destroy(call, rec.Handle); err != nil {
		return err
	}
	err = b.change(ctx, func(r *kv.Record) error {
		r.State, r.Owner, r.Epoch, r.Boot = kv.Gone, "", 0, ""
		r.Last = &kv.Termination{Reason: why, At: time.Now().UTC(), By: string(b.w.id)}
		return nil
	})
	if err != nil {
		return err
	}
	b.w.unreserve(ctx, rec.Spec)
	b.event(messaging.EventDestroyed, map[string]string{"reason": why})
	return nil
}

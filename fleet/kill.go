package fleet

import (
	"context"
	"time"

	"shoal/agent"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// kill ends commands. On a sandbox suspended with memory it wakes it, kills
// and leaves it running; without memory nothing ran.
func (w *Worker) kill(ctx context.Context, r *messaging.Request) (any, error) {
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	if rec := b.record(); rec.State == kv.Suspended && rec.Mode == sandbox.SuspendDisk {
		return sandbox.KillResult{}, nil
	}
	return b.kill(ctx, body[messaging.KillRequest](r).Kill)
}

// endsFor is how long the agent may take, after its own bound of a kill, to see
// the ends of what it killed.
const endsFor = 5 * time.Second

// kill ends what k selects. When that is not confirmed in time, the sandbox is
// reset: the last resort, which ends everything in it.
func (b *box) kill(ctx context.Context, k sandbox.KillRequest) (sandbox.KillResult, error) {
	return b.confirmed(ctx, func(ctx context.Context, s *agent.Session) (sandbox.KillResult, error) {
		return s.Kill(ctx, k)
	})
}

// confirmed runs a kill by the agent and resets the sandbox if it is not
// confirmed within the bound, or something survived it.
func (b *box) confirmed(ctx context.Context, fn func(context.Context, *agent.Session) (sandbox.KillResult, error)) (sandbox.KillResult, error) {
	var result sandbox.KillResult
	late := false
	err := b.call(ctx, func(ctx context.Context, s *agent.Session) (err error) {
		limited, cancel := context.WithTimeout(ctx, b.w.cfg.KillFor+endsFor)
		defer cancel()
		result, err = fn(limited, s)
		late = err != nil && limited.Err() != nil
		return err
	})
	switch {
	case err == nil && len(result.Survivors) == 0:
		return result, nil
	case ctx.Err() != nil:
		return result, sandbox.AsError(context.Cause(ctx))
	case err != nil && !late && !detached(err) && sandbox.CodeOf(err) != sandbox.Timeout:
		return result, err
	}
	b.log.WarnContext(ctx, "kill not confirmed; the sandbox is reset", "error", err, "survivors", len(result.Survivors))
	if err := b.resetAll(ctx); err != nil {
		return result, err
	}
	result.Reset, result.Survivors = true, nil
	return result, nil
}

// resetAll ends every process of the sandbox by the engine.
func (b *box) resetAll(ctx context.Context) error {
	release, err := b.gate.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := b.own(ctx); err != nil {
		return err
	}
	rec := b.record()
	b.mu.Lock()
	b.reset = rec.Boot
	b.mu.Unlock()
	b.detach()
	call, cancel := context.WithTimeout(ctx, engineFor)
	defer cancel()
	if err := b.w.provider.Reset(call, rec.Handle); err != nil {
		return b.attachFailed(ctx, err)
	}
	if err := b.change(ctx, func(r *kv.Record) error {
		r.Last = &kv.Termination{Reason: "reset", At: time.Now().UTC()}
		return nil
	}); err != nil {
		return err
	}
	b.event(messaging.EventTerminated, map[string]string{"reason": "reset"})
	_, err = b.attached(ctx, true)
	return err
}

// wasReset reports whether a reset of ours ended boot.
func (b *box) wasReset(boot string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return boot != "" && b.reset == boot
}

package fleet

import (
	"context"
	"time"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// idleSilence is how many times longer a session may be silent that nobody waits
// for.
const idleSilence = 6

// silent reports whether nothing has come from the agent for long. The engine may
// keep a stream open though its sandbox has ended (runsc when memory is used up).
func (b *box) silent() bool {
	s, most := b.live(), b.w.cfg.SilentFor
	if b.holds.Load() == 0 {
		most *= idleSilence
	}
	return s != nil && time.Since(s.Heard()) > most
}

// rouse asks the agent for a word. One that does not answer loses its session, and
// repair asks the engine for another: it knows what has become of the sandbox.
func (b *box) rouse(ctx context.Context) error {
	s := b.live()
	if s == nil {
		return nil
	}
	asked, cancel := context.WithTimeout(ctx, 2*b.w.cfg.SilentFor)
	defer cancel()
	err := s.Ask(asked)
	if err == nil || ctx.Err() != nil || b.record().State != kv.Running {
		return nil
	}
	b.log.WarnContext(ctx, "the sandbox's agent does not answer; attaching anew", "error", err)
	_ = s.Close()
	return nil
}

// restartFor is how long the engine may need to restart a sandbox.
const restartFor = 2 * time.Second

// stoppedItself writes down that a sandbox does not run any more though nobody
// asked for that: whoever follows its commands is told, and the next use starts it.
// One that is paused is left as it is: its commands sleep with it.
func (b *box) stoppedItself(ctx context.Context) error {
	if !pause(ctx, restartFor) { // somebody may just be restarting it
		return nil
	}
	release, err := b.gate.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	if b.live() != nil || b.record().State != kv.Running {
		return nil // a request was faster
	}
	if err := b.own(ctx); err != nil {
		return err
	}
	o, err := b.w.provider.Inspect(ctx, b.record().Handle)
	if err != nil || o.State != sandbox.Stopped {
		return err
	}
	reason := "stopped"
	if o.OOMKilled {
		reason = string(sandbox.OutOfMemory)
	}
	if err := b.change(ctx, func(r *kv.Record) error {
		r.State, r.Mode = kv.Suspended, sandbox.SuspendDisk
		r.Last = &kv.Termination{Reason: reason, At: time.Now().UTC()}
		return nil
	}); err != nil {
		return err
	}
	b.event(messaging.EventTerminated, map[string]string{"reason": reason})
	b.finish(sandbox.Errorf(sandbox.OutcomeUnknown, "the sandbox ended (%s) while the command ran; what it had done by then is done, its end was not seen; the next use starts the sandbox again", reason).
		Because(reason).From(sandbox.FromWorker))
	return nil
}

package fleet

import (
	"context"
	"errors"
	"time"

	"shoal/agent"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// awake returns a session to the running sandbox, waking it if it is
// suspended.
func (b *box) awake(ctx context.Context) (*agent.Session, error) {
	b.touch()
	if s := b.live(); s != nil && b.record().State == kv.Running {
		return s, nil
	}
	release, err := b.gate.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := b.own(ctx); err != nil {
		return nil, err
	}
	if err := b.wakeLocked(ctx); err != nil {
		return nil, err
	}
	if s := b.live(); s != nil {
		return s, nil
	}
	return nil, sandbox.Errorf(sandbox.Unavailable, "the stream to the sandbox broke; try again").From(sandbox.FromWorker)
}

// detached reports whether err says that the stream to the agent broke, so
// that another attachment can find out more.
func detached(err error) bool {
	e, ok := errors.AsType[*sandbox.Error](err)
	return ok && (e.Reason == "detached" || e.Reason == "held")
}

// call runs fn on a session of the awake sandbox, beside other calls; life-cycle
// operations wait for it, so fn must be short. A stream that breaks is replaced
// and fn run again, so fn must be harmless when repeated.
func (b *box) call(ctx context.Context, fn func(context.Context, *agent.Session) error) error {
	return b.free(ctx, func(ctx context.Context, s *agent.Session) error {
		release, err := b.gate.share(ctx)
		if err != nil {
			return err
		}
		defer release()
		return fn(ctx, s)
	})
}

// free is call for what may take long: life-cycle operations do not wait for
// it, they break it.
func (b *box) free(ctx context.Context, fn func(context.Context, *agent.Session) error) error {
	var err error
	for try := range 4 {
		if try > 0 && !pause(ctx, time.Duration(try)*50*time.Millisecond) {
			return err
		}
		var s *agent.Session
		if s, err = b.awake(ctx); err == nil {
			err = fn(ctx, s)
		}
		if !detached(err) {
			return err
		}
	}
	return err
}

// pause waits for d; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// exec starts a command and follows it.
func (w *Worker) exec(ctx context.Context, r *messaging.Request) (any, error) {
	body := body[messaging.ExecRequest](r)
	starting, cancel := context.WithDeadline(ctx, r.Deadline)
	defer cancel()
	b, err := w.owned(starting, r)
	if err != nil {
		return nil, err
	}
	b.holds.Add(1)
	defer b.holds.Add(-1)
	began := time.Now()
	st, err := b.start(starting, body, r)
	if err != nil {
		return nil, err
	}
	r.Timing.Start = time.Since(began).Microseconds()
	b.fill(r)
	info := st.Started()
	err = r.Output().Started(info.Offset, messaging.Started{
		ID: body.Command.ID, Pid: info.Info.Pid, Replayed: !info.Fresh,
		Unbound: body.Boot == "", Oldest: info.Info.Oldest,
	})
	if err != nil || body.Detach {
		st.Close()
		return messaging.Done{}, err
	}
	return b.follow(ctx, r, st, false)
}

// start starts a command once. When the stream breaks before the answer, the
// same start is sent again, bound to the boot of the first try: the agent runs
// it at most once.
func (b *box) start(ctx context.Context, req *messaging.ExecRequest, r *messaging.Request) (*agent.Stream, error) {
	boot, sent := req.Boot, false
	var st *agent.Stream
	err := b.call(ctx, func(ctx context.Context, s *agent.Session) error {
		if boot == "" {
			boot = s.Hello().Boot
		}
		var err error
		st, err = s.Start(ctx, agent.StartRequest{Boot: boot, Command: req.Command, Window: r.Output().Window()})
		if sent && sandbox.CodeOf(err) == sandbox.Restarted {
			return errOutcome()
		}
		sent = sent || detached(err)
		return err
	})
	_, moved := errors.AsType[movedError](err)
	if detached(err) || moved && sent && req.Boot == "" { // elsewhere it would be bound to another boot
		return nil, errOutcome()
	}
	return st, err
}

func errOutcome() error {
	return sandbox.Errorf(sandbox.OutcomeUnknown, "the sandbox was lost while the command was being started; it may have run").From(sandbox.FromWorker)
}

// followCommand attaches to a running or recently ended command.
func (w *Worker) followCommand(ctx context.Context, r *messaging.Request) (any, error) {
	body := body[messaging.FollowRequest](r)
	starting, cancel := context.WithDeadline(ctx, r.Deadline)
	defer cancel()
	b, err := w.owned(starting, r)
	if err != nil {
		return nil, err
	}
	b.holds.Add(1)
	defer b.holds.Add(-1)
	var st *agent.Stream
	err = b.call(starting, func(ctx context.Context, s *agent.Session) (err error) {
		st, err = s.Follow(ctx, agent.FollowRequest{ID: body.ID, Offset: body.From, Watch: body.Watch, Window: r.Output().Window()})
		return err
	})
	if err != nil {
		return nil, err
	}
	b.fill(r)
	info := st.Started()
	err = r.Output().Started(info.Offset, messaging.Started{ID: body.ID, Pid: info.Info.Pid, Replayed: true, Oldest: info.Info.Oldest})
	if err != nil {
		st.Close()
		return nil, err
	}
	return b.follow(ctx, r, st, body.Watch)
}

// follow pumps a command's output to the client until it ends.
func (b *box) follow(ctx context.Context, r *messaging.Request, st *agent.Stream, watch bool) (any, error) {
	p := &pump{b: b, r: r, out: r.Output(), id: st.Started().Info.ID, boot: st.Started().Boot, watch: watch, next: st.Started().Offset, changed: make(chan struct{})}
	life := b.life()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	defer stop()
	if !watch {
		b.addPump(p)
		defer b.removePump(p)
	}
	end, err := p.run(ctx, st)
	if err != nil && life.Err() != nil {
		return nil, context.Cause(life)
	}
	return end, err
}

// runCollect runs a command to its end and keeps the tail of its output.
func runCollect(ctx context.Context, s *agent.Session, cmd sandbox.Command) (*sandbox.End, string, error) {
	const keep = 2 << 10
	st, err := s.Start(ctx, agent.StartRequest{Boot: s.Hello().Boot, Command: cmd})
	if err != nil {
		return nil, "", err
	}
	defer st.Close()
	var tail []byte
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			return nil, "", err
		}
		switch e.Kind {
		case agent.EventOutput:
			tail = append(tail, e.Data...)
			if len(tail) > keep {
				tail = tail[len(tail)-keep:]
			}
			if err := st.Ack(ctx, e.Offset+int64(len(e.Data))); err != nil {
				return nil, "", err
			}
		case agent.EventEnd:
			_ = st.AckEnd(ctx, e.Offset) // kept a while longer otherwise
			return e.End, string(tail), nil
		default: // nobody reads gaps, input or roles here
		}
	}
}

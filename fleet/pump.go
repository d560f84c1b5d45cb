package fleet

import (
	"context"
	"sync"
	"time"

	"shoal/agent"
	"shoal/messaging"
	"shoal/sandbox"
)

// pump carries one command's output to one reader. It outlives the session to
// the agent: when that breaks it attaches again and follows from its own
// offset.
type pump struct {
	b     *box
	r     *messaging.Request
	out   *messaging.Output
	id    sandbox.CommandID
	watch bool
	boot  string // in which the command runs
	next  int64  // the offset that the reader has been sent up to; run's own

	mu      sync.Mutex
	stream  *agent.Stream // guarded by mu: the present one
	input   agent.Event   // guarded by mu: the last word on stdin
	changed chan struct{} // guarded by mu: closed and replaced when the above change
}

// run pumps until the command ends or ctx does.
func (p *pump) run(ctx context.Context, st *agent.Stream) (*sandbox.End, error) {
	for {
		p.set(st)
		end, err := p.copy(ctx, st)
		st.Close()
		if end != nil || ctx.Err() != nil || !detached(err) {
			return end, err
		}
		if st, err = p.again(ctx, err); err != nil {
			if p.b.wasReset(p.boot) && sandbox.CodeOf(err) == sandbox.OutcomeUnknown {
				return &sandbox.End{Reason: sandbox.Killed, By: "reset", Signal: 9, Bytes: p.next}, nil
			}
			return nil, err
		}
	}
}

// set makes st the stream for input.
func (p *pump) set(st *agent.Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stream = st
	p.notifyLocked()
}

func (p *pump) notifyLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// copy carries events until the end, and acknowledgements the other way.
func (p *pump) copy(ctx context.Context, st *agent.Stream) (*sandbox.End, error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { p.acknowledge(ctx, st) })
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			return nil, err
		}
		switch e.Kind {
		case agent.EventOutput:
			if err := p.out.Data(ctx, e.Stream, e.Data); err != nil {
				return nil, err
			}
			p.next = e.Offset + int64(len(e.Data))
		case agent.EventGap:
			if err := p.out.Gap(e.Bytes); err != nil {
				return nil, err
			}
			p.next = e.Offset + e.Bytes
		case agent.EventInput:
			p.mu.Lock()
			p.input = e
			p.notifyLocked()
			p.mu.Unlock()
		case agent.EventRole:
			if !e.Primary && !p.watch {
				return nil, messaging.ErrMoved // another reader has taken the command over
			}
		case agent.EventEnd:
			return e.End, p.finish(ctx, st, e)
		}
	}
}

// finish hands the end to the reader, and lets the agent forget the command
// once the reader has it.
func (p *pump) finish(ctx context.Context, st *agent.Stream, e agent.Event) error {
	if p.watch {
		return nil
	}
	if err := p.out.End(ctx, e.End); err != nil {
		return err
	}
	_ = st.AckEnd(ctx, e.Offset) // kept a while longer otherwise
	return nil
}

// acknowledge passes the reader's word on: what it consumed frees the ring,
// and the same offset again says that it lives.
func (p *pump) acknowledge(ctx context.Context, st *agent.Stream) {
	for {
		select {
		case <-ctx.Done():
			return
		case offset := <-p.out.Acks():
			if st.Ack(ctx, offset) != nil {
				return // Recv learns of it too
			}
		}
	}
}

// reattachFor is how long a pump tries to find its command again.
const reattachFor = 30 * time.Second

// again follows from the next offset after the stream broke, on a session that
// does not wake the sandbox.
func (p *pump) again(ctx context.Context, broke error) (*agent.Stream, error) {
	deadline := time.Now().Add(reattachFor)
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		if !pause(ctx, wait) {
			return nil, context.Cause(ctx)
		}
		st, err := p.tryAgain(ctx)
		if err == nil {
			return st, nil
		}
		switch code := sandbox.CodeOf(err); {
		case sandbox.AsError(err).Reason == "suspended":
			deadline = time.Now().Add(reattachFor) // the command sleeps with its sandbox
		case code == sandbox.Fenced:
			return nil, messaging.ErrMoved
		case code == sandbox.Gone:
			return nil, err
		case code == sandbox.NotFound:
			return nil, errLost()
		case time.Now().After(deadline):
			return nil, broke
		}
	}
}

func (p *pump) tryAgain(ctx context.Context) (*agent.Stream, error) {
	s, err := p.b.attached(ctx, false)
	if err != nil {
		return nil, err
	}
	return s.Follow(ctx, agent.FollowRequest{ID: p.id, Offset: p.next, Watch: p.watch, Window: p.out.Window()})
}

// errLost says what became of a command that the sandbox does not know any
// more: its boot is over, and how it ended was not seen.
func errLost() error {
	return sandbox.Errorf(sandbox.OutcomeUnknown, "the sandbox was restarted while the command ran; what it had done by then is done, its end was not seen").
		Because(string(sandbox.SandboxRestarted)).From(sandbox.FromWorker)
}

// addPump makes p the command's reader for input and signals.
func (b *box) addPump(p *pump) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pumps == nil {
		b.pumps = map[sandbox.CommandID]*pump{}
	}
	b.pumps[p.id] = p
}

func (b *box) removePump(p *pump) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pumps[p.id] == p {
		delete(b.pumps, p.id)
	}
}

func (b *box) pump(id sandbox.CommandID) *pump {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pumps[id]
}

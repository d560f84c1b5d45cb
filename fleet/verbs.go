package fleet

import (
	"context"
	"time"

	"shoal/agent"
	"shoal/messaging"
	"shoal/sandbox"
)

// stdin takes a piece of a command's standard input and answers what it wants
// next.
func (w *Worker) stdin(ctx context.Context, r *messaging.Request) (any, error) {
	body := body[messaging.StdinRequest](r)
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	p := b.pump(body.ID)
	if p == nil {
		return nil, errNoReader()
	}
	return p.feed(ctx, body)
}

func errNoReader() error {
	return sandbox.Errorf(sandbox.NotFound, "nobody follows this command through this worker; follow it first").Because("stream").From(sandbox.FromWorker)
}

// feed sends what the command's input has room for. The answer comes when the
// agent has taken it, so that offset and credit in it are the agent's own.
func (p *pump) feed(ctx context.Context, req *messaging.StdinRequest) (messaging.InputAnswer, error) {
	const wait = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	end := req.Offset + int64(len(req.Data))
	for sent := false; ; {
		p.mu.Lock()
		st, in, changed := p.stream, p.input, p.changed
		p.mu.Unlock()
		answer := messaging.InputAnswer{Offset: in.Offset, Credit: in.Credit, Closed: in.Closed}
		switch {
		case in.Closed || req.Offset > in.Offset:
			return answer, nil
		case in.Offset >= end && !req.Close:
			return answer, nil
		case in.Kind != 0 && !sent:
			if err := send(ctx, st, in, req); err != nil {
				return answer, err
			}
			sent = true
			if req.Close && in.Offset+in.Credit >= end {
				return messaging.InputAnswer{Offset: end, Closed: true}, nil
			}
			if in.Credit == 0 {
				return answer, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return answer, nil // nothing taken yet: the client asks again
		}
		if p.advanced(in.Offset) {
			sent = false
		}
	}
}

func (p *pump) advanced(from int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.input.Offset > from || p.input.Closed
}

// send sends the part of req that lies within the agent's credit.
func send(ctx context.Context, st *agent.Stream, in agent.Event, req *messaging.StdinRequest) error {
	end := req.Offset + int64(len(req.Data))
	fresh := req.Data[in.Offset-req.Offset:]
	fits := min(int64(len(fresh)), in.Credit)
	if fits > 0 {
		if err := st.Stdin(ctx, in.Offset, fresh[:fits]); err != nil {
			return err
		}
	}
	if req.Close && in.Offset+fits == end {
		return st.CloseStdin(ctx, end)
	}
	return nil
}

// signal sends a signal to a command's process group.
func (w *Worker) signal(ctx context.Context, r *messaging.Request) (any, error) {
	body := body[messaging.SignalRequest](r)
	return w.onStream(ctx, r, body.ID, func(ctx context.Context, st *agent.Stream) error {
		return st.Signal(ctx, body.Seq, body.Signal)
	})
}

// resize sets the size of a command's terminal.
func (w *Worker) resize(ctx context.Context, r *messaging.Request) (any, error) {
	body := body[messaging.ResizeRequest](r)
	return w.onStream(ctx, r, body.ID, func(ctx context.Context, st *agent.Stream) error {
		return st.Resize(ctx, body.Seq, body.TTY)
	})
}

// onStream runs fn on the stream of a command: that of its reader, or one that
// watches for the moment.
func (w *Worker) onStream(ctx context.Context, r *messaging.Request, id sandbox.CommandID, fn func(context.Context, *agent.Stream) error) (any, error) {
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	if p := b.pump(id); p != nil {
		p.mu.Lock()
		st := p.stream
		p.mu.Unlock()
		return messaging.Done{}, fn(ctx, st)
	}
	return messaging.Done{}, b.call(ctx, func(ctx context.Context, s *agent.Session) error {
		st, err := s.Follow(ctx, agent.FollowRequest{ID: id, Offset: -1, Watch: true})
		if err != nil {
			return err
		}
		defer st.Close()
		return fn(ctx, st)
	})
}

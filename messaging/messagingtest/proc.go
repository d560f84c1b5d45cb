package messagingtest

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// Proc is a running command of the fake. All of its output is kept.
type Proc struct {
	Command sandbox.Command

	mu     sync.Mutex // guards the rest
	parts  []part
	next   int64
	stdin  []byte
	stdinN int64
	closed bool // stdin
	end    *sandbox.End
	signal []int
	size   sandbox.TTY
	more   chan struct{} // replaced and closed at every change
	cancel context.CancelFunc
}

type part struct {
	offset int64
	stream sandbox.Stream
	data   []byte
}

func (p *Proc) changedLocked() {
	close(p.more)
	p.more = make(chan struct{})
}

// Stdout and Stderr write output; it never blocks.
func (p *Proc) Stdout() io.Writer { return procWriter{p, sandbox.Stdout} }

// Stderr is the other stream.
func (p *Proc) Stderr() io.Writer { return procWriter{p, sandbox.Stderr} }

type procWriter struct {
	p      *Proc
	stream sandbox.Stream
}

func (w procWriter) Write(b []byte) (int, error) {
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parts = append(p.parts, part{p.next, w.stream, append([]byte(nil), b...)})
	p.next += int64(len(b))
	p.changedLocked()
	return len(b), nil
}

// Read reads standard input.
func (p *Proc) Read(b []byte) (int, error) {
	for {
		p.mu.Lock()
		if len(p.stdin) > 0 {
			n := copy(b, p.stdin)
			p.stdin = p.stdin[n:]
			p.mu.Unlock()
			return n, nil
		}
		closed, more := p.closed || p.end != nil, p.more
		p.mu.Unlock()
		if closed {
			return 0, io.EOF
		}
		<-more
	}
}

// Signals returns the signals that came.
func (p *Proc) Signals() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int(nil), p.signal...)
}

// Size returns the size of the terminal.
func (p *Proc) Size() sandbox.TTY {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

func (f *Fake) exec(ctx context.Context, r *messaging.Request, b *box, body *messaging.ExecRequest) (any, error) {
	p, fresh, err := f.start(b, body)
	if err != nil {
		return nil, err
	}
	if err := r.Output().Started(0, messaging.Started{ID: body.Command.ID, Pid: 7, Replayed: !fresh, Unbound: body.Boot == ""}); err != nil {
		return nil, err
	}
	if body.Detach {
		return nil, nil
	}
	return p.pump(ctx, r.Output(), 0)
}

func (f *Fake) start(b *box, body *messaging.ExecRequest) (*Proc, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if body.Boot != "" && body.Boot != f.boot {
		e := sandbox.Errorf(sandbox.Restarted, "the sandbox has another boot; nothing was started")
		e.Boot = f.boot
		return nil, false, e
	}
	if p, ok := b.procs[body.Command.ID]; ok {
		return p, false, nil
	}
	program, ok := f.Programs[body.Command.Shell+strings.Join(body.Command.Argv, " ")]
	if !ok {
		return nil, false, sandbox.Errorf(sandbox.StartFailed, "there is no such program")
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proc{Command: body.Command, more: make(chan struct{}), cancel: cancel, stdin: body.Command.Input}
	p.closed = body.Command.Stdin != sandbox.StdinStream
	b.procs[body.Command.ID] = p
	f.starts++
	go func() {
		code := program(ctx, p)
		p.finish(sandbox.End{Reason: sandbox.Exited, Code: &code})
	}()
	return p, true, nil
}

func (p *Proc) finish(e sandbox.End) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		e.Bytes = p.next
		p.end = &e
		p.changedLocked()
	}
}

func (f *Fake) follow(ctx context.Context, r *messaging.Request, b *box, body *messaging.FollowRequest) (any, error) {
	f.mu.Lock()
	p := b.procs[body.ID]
	f.mu.Unlock()
	if p == nil {
		return nil, sandbox.Errorf(sandbox.NotFound, "there is no command %s", body.ID)
	}
	from := max(body.From, 0)
	if err := r.Output().Started(from, messaging.Started{ID: body.ID, Pid: 7, Replayed: true}); err != nil {
		return nil, err
	}
	return p.pump(ctx, r.Output(), from)
}

// pump sends what is kept from an offset on, and what comes.
func (p *Proc) pump(ctx context.Context, out *messaging.Output, from int64) (any, error) {
	for {
		p.mu.Lock()
		var send []part
		for _, a := range p.parts {
			if a.offset+int64(len(a.data)) > from {
				send = append(send, a)
			}
		}
		end, more := p.end, p.more
		p.mu.Unlock()
		for _, a := range send {
			if err := out.Data(ctx, a.stream, a.data[max(from-a.offset, 0):]); err != nil {
				return nil, err
			}
			from = out.Next()
		}
		if len(send) > 0 {
			continue
		}
		if end != nil {
			err := out.End(ctx, *end)
			return *end, ignoreGone(err)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func ignoreGone(err error) error {
	if errors.Is(err, messaging.ErrReaderGone) {
		return nil
	}
	return err
}

func (f *Fake) toProc(ctx context.Context, r *messaging.Request, b *box) (any, error) {
	var id sandbox.CommandID
	switch body := r.Body.(type) {
	case *messaging.StdinRequest:
		id = body.ID
	case *messaging.SignalRequest:
		id = body.ID
	case *messaging.ResizeRequest:
		id = body.ID
	case *messaging.WaitRequest:
		id = body.ID
	}
	f.mu.Lock()
	p := b.procs[id]
	f.mu.Unlock()
	if p == nil {
		return nil, sandbox.Errorf(sandbox.NotFound, "there is no command %s", id)
	}
	if _, ok := r.Body.(*messaging.WaitRequest); ok {
		return p.wait(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.changedLocked()
	switch body := r.Body.(type) {
	case *messaging.SignalRequest:
		p.signal = append(p.signal, body.Signal)
	case *messaging.ResizeRequest:
		p.size = body.TTY
	case *messaging.StdinRequest:
		return p.inputLocked(body), nil
	}
	return messaging.Done{}, nil
}

func (p *Proc) inputLocked(body *messaging.StdinRequest) messaging.InputAnswer {
	const room = messaging.MaxStdin
	end := body.Offset + int64(len(body.Data))
	if body.Offset <= p.stdinN && end >= p.stdinN && !p.closed {
		fresh := body.Data[p.stdinN-body.Offset:]
		fresh = fresh[:min(len(fresh), room-len(p.stdin))]
		p.stdin = append(p.stdin, fresh...)
		p.stdinN += int64(len(fresh))
		p.closed = body.Close && p.stdinN == end
	}
	return messaging.InputAnswer{Offset: p.stdinN, Credit: int64(room - len(p.stdin)), Closed: p.closed}
}

func (p *Proc) wait(ctx context.Context) (any, error) {
	for {
		p.mu.Lock()
		info, more := p.infoLocked(), p.more
		p.mu.Unlock()
		if info.End != nil {
			return info, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Proc) infoLocked() sandbox.CommandInfo {
	i := sandbox.CommandInfo{ID: p.Command.ID, State: sandbox.CommandRunning, Shell: p.Command.Shell, Started: time.Now(), Next: p.next, End: p.end}
	if p.end != nil {
		i.State = sandbox.CommandEnded
	}
	return i
}

func (f *Fake) kill(b *box, body *messaging.KillRequest) sandbox.KillResult {
	f.mu.Lock()
	defer f.mu.Unlock()
	var k sandbox.KillResult
	for id, p := range b.procs {
		for _, want := range body.Kill.IDs {
			if id == want {
				p.cancel()
				p.finish(sandbox.End{Reason: sandbox.Killed, By: "kill", Signal: 9})
				k.Commands = append(k.Commands, id)
				k.Processes++
			}
		}
	}
	return k
}

func (f *Fake) commands(b *box) messaging.CommandsAnswer {
	f.mu.Lock()
	defer f.mu.Unlock()
	var a messaging.CommandsAnswer
	for _, p := range b.procs {
		p.mu.Lock()
		a.Commands = append(a.Commands, p.infoLocked())
		p.mu.Unlock()
	}
	return a
}

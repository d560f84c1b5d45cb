package messaging

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"shoal/sandbox"
)

// Process is a command as its client sees it: a stream of output, and ways to
// send to it. Next, Copy and Wait are for one goroutine at a time; the other
// methods may be called from any.
type Process struct {
	c      *Client
	target Target
	id     sandbox.CommandID
	s      *stream
	seq    atomic.Uint64
	lost   atomic.Int64

	stdinMu sync.Mutex // serialises the writers of stdin
	stdin   int64      // offset of the next byte of stdin
}

// Exec starts a command and returns when it has started. ctx bounds the start
// only. The command's id is made up when it is empty; the start is bound to the
// sandbox's boot, so that nothing starts it a second time.
//
// Close the process when its output is not wanted any more.
func (c *Client) Exec(ctx context.Context, t Target, cmd sandbox.Command) (*Process, error) {
	if cmd.ID == "" {
		cmd.ID = sandbox.CommandID(sandbox.NewID())
	}
	first := &ExecRequest{Target: t, Command: cmd}
	if err := first.Validate(); err != nil {
		return nil, sandbox.AsError(err).From(sandbox.FromClient)
	}
	if c.place(t.Sandbox).boot == "" {
		if _, err := c.Get(ctx, t); err != nil {
			return nil, err
		}
	}
	p := &Process{c: c, target: t, id: cmd.ID}
	open := func(s *stream, silent WorkerID) (Op, request) {
		if s.begun() {
			return p.follow(false)(s, silent)
		}
		// A copy must name the boot of the first one: a later boot knows
		// nothing of a command that an earlier one has run.
		if s.copies == 0 {
			first.Boot = c.place(t.Sandbox).boot
		} else if first.Boot == "" {
			return OpExec, nil // a repeat is not safe
		}
		first.Window = s.window
		return OpExec, first
	}
	return p, p.start(ctx, open)
}

// FollowOptions say how a command is followed.
type FollowOptions struct {
	// From is the offset of the first byte; -1 = the oldest kept one.
	From int64
	// Watch reads along without governing the command.
	Watch bool
}

// Follow attaches to a running or recently ended command.
func (c *Client) Follow(ctx context.Context, t Target, id sandbox.CommandID, o FollowOptions) (*Process, error) {
	r := FollowRequest{Target: t, ID: id, From: o.From, Watch: o.Watch}
	if err := r.Validate(); err != nil {
		return nil, sandbox.AsError(err).From(sandbox.FromClient)
	}
	p := &Process{c: c, target: t, id: id}
	open := func(s *stream, silent WorkerID) (Op, request) {
		if s.begun() {
			return p.follow(o.Watch)(s, silent)
		}
		r.Window = s.window
		return OpFollow, &r
	}
	return p, p.start(ctx, open)
}

func (p *Process) start(ctx context.Context, open func(*stream, WorkerID) (Op, request)) error {
	p.s = p.c.newStream(AreaCommand, p.target.Sandbox, string(p.id), startDeadline(ctx), open)
	return p.s.start(ctx)
}

func startDeadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(defaultRequestTime)
}

// follow makes the request that carries on from what has been received.
func (p *Process) follow(watch bool) func(*stream, WorkerID) (Op, request) {
	return func(s *stream, silent WorkerID) (Op, request) {
		from := s.recv
		if !counts {
			from = 0
		}
		return OpFollow, &FollowRequest{
			Target: p.target, ID: p.id, From: from, Watch: watch, Window: s.window, Silent: silent,
		}
	}
}

// ID returns the command's id.
func (p *Process) ID() sandbox.CommandID { return p.id }

// Meta returns what the last start of the stream said: worker, boot, epoch and
// timing.
func (p *Process) Meta() Meta {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.s.info
}

// Next returns the next piece of output; io.EOF when the command has ended and
// everything has been returned. The piece before counts as consumed: this is
// what lets the command go on.
func (p *Process) Next(ctx context.Context) (Segment, error) {
	p.s.consumeAll()
	g, err := p.s.next(ctx)
	if err == nil && g.Lost > 0 {
		p.lost.Add(g.Lost)
	}
	return g, err
}

// Lost returns how many bytes of output were not kept, as gaps have told.
func (p *Process) Lost() int64 { return p.lost.Load() }

// End returns how the command ended; call it after Next returned io.EOF.
func (p *Process) End() (sandbox.End, error) {
	var a answer[sandbox.End]
	if err := p.s.decodeEnd(&a); err != nil {
		return sandbox.End{}, err
	}
	return a.Result, nil
}

// Copy writes the output to stdout and stderr until the command has ended; nil
// discards. A failing writer ends the copying, not the command.
func (p *Process) Copy(ctx context.Context, stdout, stderr io.Writer) (sandbox.End, error) {
	for {
		g, err := p.Next(ctx)
		if errors.Is(err, io.EOF) {
			return p.End()
		}
		if err != nil {
			return sandbox.End{}, err
		}
		w := stdout
		if g.Stream == sandbox.Stderr {
			w = stderr
		}
		if w == nil || len(g.Data) == 0 {
			continue
		}
		if _, err := w.Write(g.Data); err != nil {
			return sandbox.End{}, err
		}
	}
}

// Wait discards what is left of the output and returns how the command ended.
func (p *Process) Wait(ctx context.Context) (sandbox.End, error) { return p.Copy(ctx, nil, nil) }

// Kill ends the command and everything it started, and returns when that is
// done.
func (p *Process) Kill(ctx context.Context) (sandbox.KillResult, error) {
	return p.c.Kill(ctx, p.target, sandbox.KillRequest{IDs: []sandbox.CommandID{p.id}})
}

// Close leaves the stream. A command that still runs goes on as its
// onDisconnect says.
func (p *Process) Close() { p.s.close() }

// Signal sends a signal by its number.
func (p *Process) Signal(ctx context.Context, signal int) error {
	r := &SignalRequest{Seq: p.seq.Add(1), Signal: signal}
	_, err := tell[Done](ctx, p, VerbSignal, r)
	return err
}

// Resize changes the size of the command's terminal.
func (p *Process) Resize(ctx context.Context, size sandbox.TTY) error {
	r := &ResizeRequest{Seq: p.seq.Add(1), TTY: size}
	_, err := tell[Done](ctx, p, VerbResize, r)
	return err
}

// WriteStdin sends b as standard input and returns when the sandbox has taken
// it. Calls from several goroutines follow one another.
func (p *Process) WriteStdin(ctx context.Context, b []byte) error { return p.send(ctx, b, false) }

// CloseStdin ends the standard input.
func (p *Process) CloseStdin(ctx context.Context) error { return p.send(ctx, nil, true) }

func (p *Process) send(ctx context.Context, b []byte, final bool) error {
	p.stdinMu.Lock()
	defer p.stdinMu.Unlock()
	wait := time.Millisecond
	for {
		n := min(len(b), MaxStdin)
		a, err := tell[InputAnswer](ctx, p, VerbStdin, &StdinRequest{Offset: p.stdin, Data: b[:n], Close: final && n == len(b)})
		if err != nil {
			return err
		}
		taken := min(max(a.Offset-p.stdin, 0), int64(n))
		p.stdin += taken
		b = b[taken:]
		switch {
		case a.Closed && len(b) > 0:
			return io.ErrClosedPipe
		case len(b) == 0 && int(taken) == n:
			return nil
		case taken > 0:
			wait = time.Millisecond
			continue
		}
		if err := pause(ctx, wait); err != nil { // the command does not read
			return clientError(ctx)
		}
		wait = min(2*wait, 250*time.Millisecond)
	}
}

// Stdin returns the standard input as a writer bound to ctx; Close ends the
// input.
func (p *Process) Stdin(ctx context.Context) io.WriteCloser { return &stdinWriter{p: p, ctx: ctx} }

type stdinWriter struct {
	p   *Process
	ctx context.Context //nolint:containedctx // an io.Writer has no other way to end its waits
}

func (w *stdinWriter) Write(b []byte) (int, error) {
	if err := w.p.WriteStdin(w.ctx, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (w *stdinWriter) Close() error { return w.p.CloseStdin(w.ctx) }

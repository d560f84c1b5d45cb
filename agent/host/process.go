package host

import (
	"context"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"shoal/agent"
	"shoal/agent/launch"
	"shoal/agent/proc"
	"shoal/sandbox"
)

// process implements agent.Process.
type process struct {
	host    *Host
	started *launch.Process
	mark    proc.Mark
}

var _ agent.Process = (*process)(nil)

func (p *process) Pid() int              { return p.started.Pid() }
func (p *process) Done() <-chan struct{} { return p.started.Done() }

func (p *process) Exit() agent.Exit {
	x := p.started.Exit()
	return agent.Exit{Code: x.Code, Signal: int(x.Signal), CPU: x.CPU, PeakMemory: x.MaxRSS}
}

func (p *process) Stdout() agent.Pipe {
	if t := p.started.Terminal; t != nil {
		return pipe{t}
	}
	return pipe{p.started.Stdout}
}

func (p *process) Stderr() agent.Pipe {
	if p.started.Terminal != nil {
		return nil
	}
	return pipe{p.started.Stderr}
}

func (p *process) Stdin() io.WriteCloser {
	switch {
	case p.started.Terminal != nil:
		return keyboard{p.started.Terminal}
	case p.started.Stdin != nil:
		return p.started.Stdin
	}
	return nil
}

func (p *process) Signal(sig syscall.Signal) error { return p.started.SignalGroup(sig) }

func (p *process) Resize(size sandbox.TTY) error {
	if p.started.Terminal == nil {
		return os.ErrInvalid
	}
	return p.started.Terminal.Resize(launch.Size{Rows: size.Rows, Cols: size.Cols})
}

func (p *process) Finish(ctx context.Context) (agent.Killed, error) {
	r, err := p.host.table.Finish(ctx, p.mark)
	return killed(r), err
}

func (p *process) Keep()      { p.host.table.Keep(p.mark) }
func (p *process) Kept() bool { return p.host.kept(p.mark) }

func (p *process) Close() { p.started.Close() }

// readable is a pipe's or terminal's reading end.
type readable interface {
	io.Reader
	SetReadDeadline(at time.Time) error
	SyscallConn() (syscall.RawConn, error)
}

// pipe implements agent.Pipe.
type pipe struct{ readable }

// Pending asks the kernel how much stands in the pipe.
func (p pipe) Pending() int {
	raw, err := p.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = raw.Control(func(fd uintptr) {
		n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
	})
	if err != nil {
		return 0
	}
	return n
}

// keyboard writes to a terminal, which only hanging up closes.
type keyboard struct{ *launch.Terminal }

func (keyboard) Close() error { return nil }

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"shoal/messaging"
	"shoal/sandbox"
)

// detachKey is Ctrl-].
const detachKey = 0x1d

type shellCmd struct {
	named
	Program []string `arg:"" optional:"" passthrough:"" help:"Program and arguments, after --; empty = bash."`
	Cwd     string   `short:"w" help:"Working directory; empty = /workspace."`
	Tag     string   `help:"Tag of the shell."`
	Token   string   `help:"Token of the tag's lock."`
}

// Run opens a terminal in a sandbox.
func (c *shellCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	argv := c.Program
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		argv = []string{"bash", "-l"}
	}
	rows, cols := a.windowSize()
	cmd := sandbox.Command{
		Argv: argv, Cwd: c.Cwd, Tag: sandbox.Tag(c.Tag), Token: c.Token, Stdin: sandbox.StdinStream,
		TTY: &sandbox.TTY{Rows: rows, Cols: cols}, Timeout: sandbox.Millis(sandbox.MaxForeground),
		OnDisconnect: sandbox.DisconnectKeep,
	}
	ctx, cancel := contextFor(a.ctx, startTime)
	p, err := client.Exec(ctx, c.target(), cmd)
	cancel()
	if err != nil {
		return err
	}
	defer p.Close()
	return a.terminal(c.Sandbox, p)
}

// windowSize returns the size of our terminal, 24 × 80 without one.
func (a *app) windowSize() (rows, cols uint16) {
	if f, ok := a.stdout.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 && w <= 4096 && h <= 4096 {
			return uint16(h), uint16(w)
		}
	}
	return 24, 80
}

// errDetached ends a terminal whose program goes on.
var errDetached = errors.New("detached")

// terminal joins our terminal with a command's until the command ends or the
// detach key is typed. Ctrl-C goes to the program.
func (a *app) terminal(name string, p *messaging.Process) error {
	restore := a.rawMode()
	defer restore()
	ctx, stop := context.WithCancelCause(context.WithoutCancel(a.ctx))
	defer stop(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop(nil)
	defer a.onInterrupt(func() { stop(errDetached) })() // not Ctrl-C, which is a byte now
	wg.Go(func() { a.resize(ctx, p) })
	go a.keys(ctx, p, stop) // ends with this program: a read of a terminal cannot be interrupted
	end, err := p.Copy(ctx, a.stdout, a.stderr)
	restore()
	if errors.Is(context.Cause(ctx), errDetached) {
		fmt.Fprintf(a.stderr, "\nshoal: detached; `shoal attach %s %s` comes back\n", name, p.ID())
		return nil
	}
	if err != nil {
		return err
	}
	a.sayEnd(p, end)
	a.code = end.ShellCode()
	return nil
}

// rawMode gives every key to the program; restore may be called twice.
func (a *app) rawMode() (restore func()) {
	f, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return func() {}
	}
	return sync.OnceFunc(func() { _ = term.Restore(int(f.Fd()), before) }) // nothing else can be tried
}

// keys sends what is typed until the detach key.
func (a *app) keys(ctx context.Context, p *messaging.Process, stop context.CancelCauseFunc) {
	buf := make([]byte, 4096)
	for {
		n, err := a.stdin.Read(buf)
		part := buf[:n]
		for i, b := range part {
			if b == detachKey {
				part = part[:i]
				_ = p.WriteStdin(ctx, part) // what was typed before
				stop(errDetached)
				return
			}
		}
		if len(part) > 0 && p.WriteStdin(ctx, part) != nil {
			return // it has ended, or we are leaving
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				_ = p.CloseStdin(ctx) // it may have ended
			}
			return
		}
	}
}

// resize tells the program the size of our terminal whenever it changes.
func (a *app) resize(ctx context.Context, p *messaging.Process) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	defer signal.Stop(changed)
	for {
		rows, cols := a.windowSize()
		sized, cancel := context.WithTimeout(ctx, 10*time.Second)
		_ = p.Resize(sized, sandbox.TTY{Rows: rows, Cols: cols}) // the next change tries again
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

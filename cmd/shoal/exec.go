package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// The times of commands that are run from the command line.
const (
	startTime   = 2 * time.Minute
	execGrace   = 15 * time.Second // after this program is gone
	killTime    = 15 * time.Second
	destroyTime = 60 * time.Second
)

// commandFlags describe a command to run.
type commandFlags struct {
	Shell       string        `short:"c" help:"Run this by bash instead of a program with arguments."`
	Stdin       bool          `short:"i" help:"Pass standard input on."`
	Cwd         string        `short:"w" help:"Working directory; empty = /workspace."`
	Tag         string        `help:"Tag of the command."`
	Token       string        `help:"Token of the tag's lock."`
	Timeout     time.Duration `help:"Time limit of the command; 0 = 10 min."`
	MaxOutput   int64         `help:"Most bytes of output; 0 = no cap."`
	CommandName string        `name:"id" help:"Id of the command; empty = made up."`
}

func (f *commandFlags) command(argv []string) (sandbox.Command, error) {
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 && f.Shell == "" {
		return sandbox.Command{}, sandbox.InvalidField("command", "what shall be run? give a program after --, or -c 'shell text'")
	}
	cmd := sandbox.Command{
		ID: sandbox.CommandID(f.CommandName), Shell: f.Shell, Argv: argv, Cwd: f.Cwd,
		Tag: sandbox.Tag(f.Tag), Token: f.Token, Timeout: sandbox.Millis(f.Timeout), MaxOutput: f.MaxOutput,
		Grace: sandbox.Millis(execGrace),
	}
	if f.Stdin {
		cmd.Stdin = sandbox.StdinStream
	}
	return cmd, nil
}

type execCmd struct {
	Sandbox    string            `arg:"" help:"Name of the sandbox."`
	Command    []string          `arg:"" optional:"" passthrough:"" help:"Program and arguments, after --."`
	Env        map[string]string `short:"e" mapsep:"none" help:"Environment of the command, NAME=VALUE; may be repeated."`
	Background bool              `short:"d" help:"Start it, print its id and leave it alone."`
	commandFlags
}

// Run runs a command in a sandbox; its exit code becomes ours.
func (c *execCmd) Run(a *app) error {
	cmd, err := c.command(c.Command)
	if err != nil {
		return err
	}
	cmd.Env = c.Env
	target := messaging.Target{Sandbox: sandbox.Name(c.Sandbox)}
	if c.Background {
		cmd.Background, cmd.Grace = true, 0
		return a.background(target, cmd)
	}
	return a.exec(target, cmd)
}

type runCmd struct {
	Command []string `arg:"" optional:"" passthrough:"" help:"Program and arguments, after --."`
	commandFlags
	boxFlags
}

// Run creates a sandbox, runs a command in it and destroys it, also when it is
// interrupted.
func (c *runCmd) Run(a *app) error {
	cmd, err := c.command(c.Command)
	if err != nil {
		return err
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	name := sandbox.Name(newName())
	defer func() {
		ctx, cancel := a.after(destroyTime)
		defer cancel()
		if _, err := client.Destroy(ctx, messaging.Target{Sandbox: name}); err != nil {
			fmt.Fprintf(a.stderr, "shoal: destroy %s: %s\n", name, plain(err))
		}
	}()
	info, err := a.create(c.request(name))
	if err != nil {
		return err
	}
	return a.exec(info.Target(), cmd)
}

// exec runs a command with our own standard streams.
func (a *app) exec(target messaging.Target, cmd sandbox.Command) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	if a.cli.JSON {
		return a.execJSON(client, target, cmd)
	}
	ctx, cancel := contextFor(a.ctx, startTime)
	p, err := client.Exec(ctx, target, cmd)
	cancel()
	if err != nil {
		return err
	}
	defer p.Close()
	if cmd.Stdin == sandbox.StdinStream {
		go a.feed(p) // ends with this program: a read of a terminal cannot be interrupted
	}
	return a.follow(p)
}

// background starts a command and prints its id.
func (a *app) background(target messaging.Target, cmd sandbox.Command) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	ctx, cancel := contextFor(a.ctx, startTime)
	defer cancel()
	p, err := client.Exec(ctx, target, cmd)
	if err != nil {
		return err
	}
	p.Close()
	if a.cli.JSON {
		return a.printJSON(map[string]any{"id": p.ID()})
	}
	fmt.Fprintln(a.stdout, p.ID())
	return nil
}

// follow prints a command's output until it ends. The first Ctrl-C kills the
// command, the second leaves it.
func (a *app) follow(p *messaging.Process) error {
	ctx, leave := context.WithCancelCause(context.WithoutCancel(a.ctx))
	defer leave(nil)
	var kills atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer a.onInterrupt(func() {
		if kills.Add(1) > 1 {
			leave(errInterrupted)
			return
		}
		fmt.Fprintln(a.stderr, "shoal: killing the command; once more to leave it")
		wg.Go(func() { a.kill(p) })
	})()
	if a.ctx.Err() != nil { // it came while the command started
		a.interrupt()
	}
	end, err := p.Copy(ctx, a.stdout, a.stderr)
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return fmt.Errorf("left the command %s; it is killed %s after its last reader went", p.ID(), execGrace)
	}
	if err != nil {
		return err
	}
	a.sayEnd(p, end)
	a.code = end.ShellCode()
	if kills.Load() > 0 && end.Reason == sandbox.Killed {
		a.code = 130 // as a shell says of Ctrl-C
	}
	return nil
}

func (a *app) kill(p *messaging.Process) {
	ctx, cancel := a.after(killTime)
	defer cancel()
	r, err := p.Kill(ctx)
	switch {
	case err != nil:
		fmt.Fprintf(a.stderr, "shoal: kill: %s\n", plain(err))
	case len(r.Survivors) > 0:
		fmt.Fprintf(a.stderr, "shoal: processes that did not end: %v\n", r.Survivors)
	}
}

// sayEnd tells what the exit code alone does not.
func (a *app) sayEnd(p *messaging.Process, end sandbox.End) {
	if end.Code == nil {
		fmt.Fprintf(a.stderr, "shoal: the command was ended: %s\n", ending(&end))
	}
	if end.Truncated {
		fmt.Fprintln(a.stderr, "shoal: output beyond the cap was not kept")
	}
	if lost := p.Lost(); lost > 0 {
		fmt.Fprintf(a.stderr, "shoal: %d bytes of output were not kept\n", lost)
	}
	if len(end.Survivors) > 0 {
		fmt.Fprintf(a.stderr, "shoal: processes that did not end: %v\n", end.Survivors)
	}
}

// feed sends our standard input.
func (a *app) feed(p *messaging.Process) {
	w := p.Stdin(a.ctx)
	_, err := io.Copy(w, a.stdin)
	if err == nil {
		err = w.Close()
	}
	if err != nil && !errors.Is(err, io.ErrClosedPipe) && sandbox.CodeOf(err) != sandbox.Gone && a.ctx.Err() == nil {
		fmt.Fprintf(a.stderr, "shoal: standard input: %s\n", plain(err))
	}
}

// result is what exec --json prints.
type result struct {
	ID        sandbox.CommandID `json:"id"`
	Code      int               `json:"code"`
	End       sandbox.End       `json:"end"`
	Stdout    string            `json:"stdout"`
	Stderr    string            `json:"stderr"`
	Truncated bool              `json:"truncated"`
	Lost      int64             `json:"lost"`
	Worker    string            `json:"worker"`
	Timing    messaging.Timing  `json:"timing"`
}

func (a *app) execJSON(client *messaging.Client, target messaging.Target, cmd sandbox.Command) error {
	if cmd.Stdin == sandbox.StdinStream {
		return sandbox.InvalidField("stdin", "--json collects the output and takes no input; leave -i out")
	}
	r, err := client.Run(a.ctx, target, cmd, messaging.RunOptions{MaxOutput: cmd.MaxOutput})
	if err != nil {
		return err
	}
	a.code = r.Code
	return a.printJSON(result{
		ID: r.ID, Code: r.Code, End: r.End, Stdout: text(r.Stdout), Stderr: text(r.Stderr),
		Truncated: r.Truncated, Lost: r.Lost, Worker: string(r.Meta.Worker), Timing: r.Meta.Timing,
	})
}

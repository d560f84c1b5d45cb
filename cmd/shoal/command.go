package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"shoal/messaging"
	"shoal/sandbox"
)

type psCmd struct{ named }

// Run lists running and recently ended commands.
func (c *psCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	commands, err := client.Commands(a.ctx, c.target())
	if err != nil {
		return err
	}
	rows := make([][]string, 0, len(commands))
	for _, i := range commands {
		rows = append(rows, []string{string(i.ID), string(i.State), string(i.Tag), strconv.Itoa(i.Pid), ago(i.Started), ending(i.End), program(i)})
	}
	return a.table(commands, "ID STATE TAG PID STARTED END COMMAND", rows)
}

type killCmd struct {
	named
	IDs []string `arg:"" optional:"" help:"Ids of the commands."`
	Tag []string `help:"All commands of this tag; may be repeated."`
	All bool     `help:"All commands."`
}

// Run ends commands and says what was ended.
func (c *killCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	k := sandbox.KillRequest{All: c.All}
	for _, id := range c.IDs {
		k.IDs = append(k.IDs, sandbox.CommandID(id))
	}
	for _, tag := range c.Tag {
		k.Tags = append(k.Tags, sandbox.Tag(tag))
	}
	r, err := client.Kill(a.ctx, c.target(), k)
	if err != nil {
		return err
	}
	if len(r.Survivors) > 0 {
		a.code = 1
	}
	if a.cli.JSON {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.stdout, "%d commands, %d processes ended\n", len(r.Commands), r.Processes)
	if r.Reset {
		fmt.Fprintln(a.stderr, "shoal: the kill was not confirmed, the sandbox was restarted")
	}
	if len(r.Survivors) > 0 {
		fmt.Fprintf(a.stderr, "shoal: processes that did not end: %v\n", r.Survivors)
	}
	return nil
}

type attachCmd struct {
	named
	ID    string `arg:"" help:"Id of the command."`
	From  int64  `default:"-1" help:"Offset to begin at; -1 = the oldest byte kept."`
	Watch bool   `help:"Read along without taking the command over."`
	Stdin bool   `short:"i" help:"Pass standard input on, from its beginning."`
}

// Run follows a running command; with a terminal of its own it becomes ours.
func (c *attachCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	info, err := a.find(client, c.target(), sandbox.CommandID(c.ID))
	if err != nil {
		return err
	}
	ctx, cancel := contextFor(a.ctx, startTime)
	p, err := client.Follow(ctx, c.target(), info.ID, messaging.FollowOptions{From: c.From, Watch: c.Watch})
	cancel()
	if err != nil {
		return err
	}
	defer p.Close()
	if info.TTY && !c.Watch && info.End == nil {
		return a.terminal(c.Sandbox, p)
	}
	if c.Stdin {
		go a.feed(p) // ends with this program
	}
	return a.follow(p)
}

// find returns one command of a sandbox.
func (a *app) find(client *messaging.Client, target messaging.Target, id sandbox.CommandID) (sandbox.CommandInfo, error) {
	commands, err := client.Commands(a.ctx, target)
	if err != nil {
		return sandbox.CommandInfo{}, err
	}
	for _, i := range commands {
		if i.ID == id {
			return i, nil
		}
	}
	return sandbox.CommandInfo{}, sandbox.Errorf(sandbox.NotFound, "there is no command %s in %s; `shoal ps %s` lists them", id, target.Sandbox, target.Sandbox)
}

type logsCmd struct {
	named
	ID     string `arg:"" help:"Id of the command."`
	Follow bool   `short:"f" help:"Go on until the command ends."`
}

// Run prints the kept output of a command.
func (c *logsCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	info, err := a.find(client, c.target(), sandbox.CommandID(c.ID))
	if err != nil {
		return err
	}
	if !c.Follow && info.End == nil && info.Next <= info.Oldest {
		return nil // nothing yet
	}
	p, err := client.Follow(a.ctx, c.target(), info.ID, messaging.FollowOptions{From: -1, Watch: true})
	if err != nil {
		return err
	}
	defer p.Close()
	for {
		g, err := p.Next(a.ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if g.Lost > 0 {
			fmt.Fprintf(a.stderr, "shoal: %d bytes of output are not kept any more\n", g.Lost)
		}
		w := a.stdout
		if g.Stream == sandbox.Stderr {
			w = a.stderr
		}
		if _, err := w.Write(g.Data); err != nil {
			return err
		}
		if !c.Follow && info.End == nil && g.Offset+int64(len(g.Data))+g.Lost >= info.Next {
			return nil
		}
	}
}

type statsCmd struct{ named }

// Run shows what a sandbox uses.
func (c *statsCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	s, err := client.Stats(a.ctx, c.target())
	if err != nil {
		return err
	}
	if a.cli.JSON {
		return a.printJSON(s)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "cpu time   %s\n", s.CPU.Duration())
	fmt.Fprintf(&b, "memory     %s of %s, %d times out of memory\n", size(s.Memory), size(s.MemoryLimit), s.OOMKills)
	fmt.Fprintf(&b, "disk       %s of %s\n", size(s.DiskUsed), size(s.DiskTotal))
	fmt.Fprintf(&b, "processes  %d of %d, %d zombies\n", s.Pids, s.PidsLimit, s.Zombies)
	fmt.Fprintf(&b, "commands   %d running\n", s.Running)
	_, err = io.WriteString(a.stdout, b.String())
	return err
}

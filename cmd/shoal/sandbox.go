package main

import (
	"fmt"
	"strings"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// callTime bounds the operations that are quick.
const callTime = 60 * time.Second

// named is the sandbox that most commands are about.
type named struct {
	Sandbox string `arg:"" help:"Name of the sandbox."`
}

func (n named) target() messaging.Target {
	return messaging.Target{Sandbox: sandbox.Name(n.Sandbox)}
}

// text is output as text: what is not UTF-8 is replaced.
func text(b []byte) string { return strings.ToValidUTF8(string(b), "�") }

type lsCmd struct {
	Metadata map[string]string `mapsep:"none" help:"Only those with this metadata, NAME=VALUE; may be repeated."`
	State    string            `help:"Only those in this state; empty = all that are not gone."`
	Quiet    bool              `short:"q" help:"Print names only."`
}

// Run lists the sandboxes of the tenant.
func (c *lsCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	all := []messaging.SandboxInfo{}
	r := messaging.ListRequest{Metadata: c.Metadata, State: messaging.SandboxState(c.State), Limit: messaging.MaxListed}
	for {
		page, err := client.List(a.ctx, r)
		if err != nil {
			return err
		}
		all = append(all, page.Sandboxes...)
		if page.Next == "" {
			break
		}
		r.After = page.Next
	}
	if c.Quiet && !a.cli.JSON {
		for _, s := range all {
			fmt.Fprintln(a.stdout, s.Name)
		}
		return nil
	}
	rows := make([][]string, 0, len(all))
	for _, s := range all {
		rows = append(rows, []string{string(s.Name), state(s), s.Provider, s.Image, string(s.Egress.Mode), ago(s.Created), ago(s.LastUse), string(s.Owner)})
	}
	return a.table(all, "NAME STATE PROVIDER IMAGE EGRESS CREATED USED OWNER", rows)
}

func state(s messaging.SandboxInfo) string {
	if s.Mode != "" && s.State == messaging.Suspended {
		return fmt.Sprintf("%s(%s)", s.State, s.Mode)
	}
	return string(s.State)
}

type suspendCmd struct {
	named
	Mode  string `enum:",memory,disk" default:"" help:"What is kept: memory or disk; empty = memory where it can be."`
	Force bool   `help:"Suspend also while foreground commands run."`
}

// Run suspends a sandbox.
func (c *suspendCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	info, err := client.Suspend(a.ctx, messaging.SuspendRequest{Target: c.target(), Mode: sandbox.SuspendMode(c.Mode), Force: c.Force})
	return a.said(info, err)
}

type resumeCmd struct{ named }

// Run resumes a sandbox.
func (c *resumeCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	info, err := client.Resume(a.ctx, c.target())
	return a.said(info, err)
}

// said prints what a life-cycle operation made of a sandbox.
func (a *app) said(info messaging.SandboxInfo, err error) error {
	if err != nil {
		return err
	}
	if a.cli.JSON {
		return a.printJSON(info)
	}
	fmt.Fprintf(a.stdout, "%s %s\n", info.Name, state(info))
	return nil
}

type rmCmd struct {
	Sandboxes []string `arg:"" help:"Names of the sandboxes."`
}

// Run destroys sandboxes; one that is missing is no failure.
func (c *rmCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for _, name := range c.Sandboxes {
		answer, err := client.Destroy(a.ctx, messaging.Target{Sandbox: sandbox.Name(name)})
		if err != nil {
			return fmt.Errorf("destroy %s: %w", name, err)
		}
		gone[name] = answer.Existed
		if !answer.Existed && !a.cli.JSON {
			fmt.Fprintf(a.stderr, "shoal: there was no sandbox %s\n", name)
		}
	}
	if a.cli.JSON {
		return a.printJSON(map[string]any{"existed": gone})
	}
	return nil
}

package main

import (
	"fmt"
	"strings"

	"shoal/messaging"
	"shoal/sandbox"
)

type egressCmd struct {
	Get   egressGetCmd   `cmd:"" help:"Show the policy in force."`
	Set   egressSetCmd   `cmd:"" help:"Replace the policy while the sandbox runs."`
	Allow egressAllowCmd `cmd:"" help:"Add hosts to the allowlist while the sandbox runs."`
	Watch egressWatchCmd `cmd:"" help:"Print what is refused, as it happens."`
}

type egressGetCmd struct{ named }

// Run shows the policy in force.
func (c *egressGetCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	e, err := client.Egress(a.ctx, c.target())
	if err != nil {
		return err
	}
	if a.cli.JSON {
		return a.printJSON(e)
	}
	if n := e.Counts; n != nil {
		fmt.Fprintf(a.stderr, "%d allowed, %d denied, %d failed, %d closed; %s up, %s down\n",
			n.Allowed, n.Denied, n.Failed, n.Closed, size(int64(n.BytesUp)), size(int64(n.BytesDown)))
	}
	return a.saidEgress(e.Egress, nil)
}

func (a *app) saidEgress(e sandbox.Egress, err error) error {
	if err != nil {
		return err
	}
	if a.cli.JSON {
		return a.printJSON(e)
	}
	fmt.Fprintln(a.stdout, strings.TrimSpace(string(e.Mode)+" "+strings.Join(e.Hosts, " ")))
	return nil
}

type egressSetCmd struct {
	named
	Mode  string   `arg:"" enum:"none,allowlist,open" help:"none, allowlist or open."`
	Hosts []string `arg:"" optional:"" help:"Hosts of the allowlist."`
}

// Run replaces the policy.
func (c *egressSetCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	e, err := client.SetEgress(a.ctx, c.target(), sandbox.Egress{Mode: sandbox.EgressMode(c.Mode), Hosts: c.Hosts})
	return a.saidEgress(e, err)
}

type egressAllowCmd struct {
	named
	Hosts []string `arg:"" help:"Hosts to add."`
}

// Run adds hosts to the allowlist.
func (c *egressAllowCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	e, err := client.AllowEgress(a.ctx, c.target(), c.Hosts...)
	return a.saidEgress(e, err)
}

type egressWatchCmd struct {
	Sandbox string `arg:"" optional:"" help:"Name of the sandbox; empty = all of the tenant."`
}

// Run prints what the egress proxy refuses until it is interrupted.
func (c *egressWatchCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	return client.Events(a.ctx, sandbox.Name(c.Sandbox), func(e messaging.Event) error {
		if e.Kind == messaging.EventDenied || e.Kind == messaging.EventAllowed || e.Kind == messaging.EventEgress {
			return a.printEvent(e)
		}
		return nil
	})
}

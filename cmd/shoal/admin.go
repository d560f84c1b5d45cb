package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

type locksCmd struct {
	Sandbox string `arg:"" optional:"" help:"Name of the sandbox; empty = all of the tenant."`
}

// Run lists tag locks.
func (c *locksCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	locks, err := client.Locks(a.ctx, sandbox.Name(c.Sandbox))
	if err != nil {
		return err
	}
	rows := make([][]string, 0, len(locks))
	for _, l := range locks {
		rows = append(rows, []string{string(l.Sandbox), string(l.Tag), l.State, l.Holder, l.TTL.Duration().String(), ago(l.Since)})
	}
	return a.table(locks, "SANDBOX TAG STATE HOLDER TTL SINCE", rows)
}

type workersCmd struct{}

// Run lists the living workers.
func (c *workersCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	workers, err := client.Workers(a.ctx)
	if err != nil {
		return err
	}
	rows := make([][]string, 0, len(workers))
	for _, w := range workers {
		rows = append(rows, []string{
			string(w.ID), w.State, w.Provider, w.Version, strconv.Itoa(w.Sandboxes), strconv.Itoa(w.Warm),
			fmt.Sprintf("%g", w.Used.CPU), strconv.Itoa(w.Used.MemoryMB), ago(w.Started),
		})
	}
	return a.table(workers, "WORKER STATE PROVIDER VERSION SANDBOXES WARM CPU MEMORY-MB STARTED", rows)
}

type eventsCmd struct {
	Sandbox string `arg:"" optional:"" help:"Name of the sandbox; empty = all of the tenant."`
}

// Run prints events until it is interrupted.
func (c *eventsCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	return client.Events(a.ctx, sandbox.Name(c.Sandbox), a.printEvent)
}

// printEvent prints one event on one line.
func (a *app) printEvent(e messaging.Event) error {
	if a.cli.JSON {
		return json.NewEncoder(a.stdout).Encode(e)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", e.Time.Format(time.TimeOnly), e.Sandbox, e.Kind)
	for _, k := range slices.Sorted(maps.Keys(e.Data)) {
		fmt.Fprintf(&b, " %s=%s", k, printable(e.Data[k]))
	}
	_, err := fmt.Fprintln(a.stdout, b.String())
	return err
}

type explainCmd struct{ named }

// Run says what is known about a sandbox.
func (c *explainCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	e, err := client.Explain(a.ctx, c.target())
	if err != nil {
		return err
	}
	if a.cli.JSON {
		return a.printJSON(e)
	}
	for _, line := range e.Lines {
		fmt.Fprintln(a.stdout, printable(line))
	}
	return nil
}

type sweepCmd struct {
	DryRun bool `help:"Say what a sweep would do and do nothing."`
}

// Run sweeps, or says what a sweep would do.
func (c *sweepCmd) Run(a *app) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	actions, err := client.Sweep(a.ctx, c.DryRun)
	if err != nil {
		return err
	}
	rows := make([][]string, 0, len(actions))
	for _, s := range actions {
		rows = append(rows, []string{s.Action, string(s.Tenant), string(s.Sandbox), s.Generation, strconv.FormatBool(s.Done), s.Why})
	}
	return a.table(actions, "ACTION TENANT SANDBOX GENERATION DONE WHY", rows)
}

type initCmd struct {
	Replicas int `default:"1" help:"Replicas of the records: 1 on one machine, 3 in a cluster."`
}

// Run makes the buckets that workers only open.
func (c *initCmd) Run(a *app) error {
	url, opts, err := a.natsOptions()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(a.ctx)
	defer cancel(nil)
	opts = append(opts, nats.Name("shoal init"), nats.CustomInboxPrefix(operatorInbox),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) { // otherwise it would look like a server that is silent
				cancel(sandbox.Errorf(sandbox.Denied, "these credentials may not make buckets; use the operator's").Wrap(err))
			}
		}))
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	if err := makeBuckets(ctx, nc, c.Replicas); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	if !a.cli.JSON {
		fmt.Fprintln(a.stdout, "the buckets are there")
	}
	return nil
}

func makeBuckets(ctx context.Context, nc *nats.Conn, replicas int) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := contextFor(ctx, callTime)
	defer cancel()
	return kv.Create(ctx, js, kv.Config{Replicas: replicas})
}

type versionCmd struct{}

// Run prints the version.
func (c *versionCmd) Run(a *app) error {
	if a.cli.JSON {
		return a.printJSON(map[string]string{"version": version, "protocol": messaging.Protocol})
	}
	_, err := fmt.Fprintf(a.stdout, "shoal %s, protocol %s\n", version, messaging.Protocol)
	return err
}

package main

import (
	"fmt"
	"strings"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// boxFlags describe a sandbox to create.
type boxFlags struct {
	Image    string            `help:"Image of the sandbox; empty = the deployment's default."`
	Egress   string            `enum:",none,allowlist,open" default:"" help:"What it may reach: none, allowlist, open; empty = the deployment's default."`
	Host     []string          `help:"Host of the allowlist: example.com or *.example.com, optionally :port. Implies --egress allowlist."`
	CPU      float64           `help:"Cores; 0 = the deployment's default."`
	MemoryMB int               `name:"memory-mb" help:"Memory in MiB; 0 = the deployment's default."`
	DiskMB   int               `name:"disk-mb" help:"Disk in MiB; 0 = the deployment's default."`
	Pids     int               `help:"Processes and threads; 0 = the deployment's default."`
	Env      map[string]string `short:"e" mapsep:"none" help:"Environment of its commands, NAME=VALUE; may be repeated."`
	Metadata map[string]string `mapsep:"none" help:"Metadata NAME=VALUE; may be repeated."`
	Setup    []string          `sep:"none" help:"Shell command that prepares it; may be repeated."`
	TTL      time.Duration     `name:"ttl" help:"Destroy it after this time; 0 = never."`
}

func (f *boxFlags) request(name sandbox.Name) messaging.CreateRequest {
	r := messaging.CreateRequest{
		Name: name, Image: f.Image,
		Limits: sandbox.Limits{CPU: f.CPU, MemoryMB: f.MemoryMB, DiskMB: f.DiskMB, Pids: f.Pids},
		Egress: sandbox.Egress{Mode: sandbox.EgressMode(f.Egress), Hosts: f.Host},
		Env:    f.Env, Metadata: f.Metadata, TTL: sandbox.Millis(f.TTL),
	}
	if len(f.Host) > 0 && f.Egress == "" {
		r.Egress.Mode = sandbox.EgressAllowlist
	}
	for _, shell := range f.Setup {
		r.Setup = append(r.Setup, sandbox.Setup{Shell: shell})
	}
	return r
}

// createTime bounds a create: a missing image is pulled for up to 3 minutes.
const createTime = 5 * time.Minute

type createCmd struct {
	Name    string `arg:"" optional:"" help:"Name; empty = one is made up and printed."`
	Replace bool   `help:"Destroy a sandbox of this name first."`
	Pin     bool   `help:"Keep it from idle suspension and destruction."`
	boxFlags
}

// Run creates a sandbox and prints its name.
func (c *createCmd) Run(a *app) error {
	if c.Name == "" {
		c.Name = newName()
	}
	r := c.request(sandbox.Name(c.Name))
	r.Replace, r.Pin = c.Replace, c.Pin
	info, err := a.create(r)
	if err != nil {
		return err
	}
	if a.cli.JSON {
		return a.printJSON(info)
	}
	fmt.Fprintln(a.stdout, info.Name)
	return nil
}

func newName() string { return "box-" + strings.ToLower(sandbox.NewID()[:8]) }

// create makes a sandbox, tells what takes long and what it warns of.
func (a *app) create(r messaging.CreateRequest) (messaging.SandboxInfo, error) {
	c, err := a.client()
	if err != nil {
		return messaging.SandboxInfo{}, err
	}
	ctx, cancel := contextFor(a.ctx, createTime)
	defer cancel()
	stop := a.showProgress(ctx, c, r.Name)
	info, err := c.Create(ctx, r)
	stop()
	for _, note := range info.Notes {
		fmt.Fprintf(a.stderr, "shoal: note: %s\n", printable(note))
	}
	return info, err
}

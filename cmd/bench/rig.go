package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/docker/dockerbench"
	"shoal/messaging"
	"shoal/sandbox"
)

// rig is what is measured: a fleet, a sandbox in it, and a container made by
// hand beside it.
type rig struct {
	settings *settings
	effort   effort
	stderr   io.Writer
	result   result

	dir     string // for the workers' state and logs
	fleet   string
	flags   []string // of its workers
	home    *worker  // with NATS inside; nil when the fleet is given
	homeURL string   // of that NATS server
	client  *messaging.Client
	engine  *dockerbench.Engine
	box     messaging.Target // a sandbox for all rows
	hand    string           // a container made by hand
}

// newRig starts what is needed; when it fails nothing stays.
func newRig(ctx context.Context, s *settings, stderr io.Writer) (_ *rig, err error) {
	r := &rig{settings: s, effort: s.effort(), stderr: stderr, fleet: "bench-" + strings.ToLower(rand.Text()[:12])}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(context.WithoutCancel(ctx)))
		}
	}()
	if r.dir, err = os.MkdirTemp("", "shoal-bench-"); err != nil {
		return nil, fmt.Errorf("make a directory for the workers: %w", err)
	}
	if r.engine, err = dockerbench.Open(ctx, s.endpoint, s.image, r.byHand(), limits()); err != nil {
		return nil, err
	}
	r.result = result{Settings: newSurroundings(s, r.fleet), Rows: []row{}}
	r.say("%s, %d CPUs, load %s, image %s, fleet %s, %+v", r.result.Settings.System, r.result.Settings.CPUs,
		r.result.Settings.Load, s.image, r.fleet, r.effort)
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	if r.box, err = r.create(ctx); err != nil {
		return nil, err
	}
	if r.hand, err = r.engine.Create(ctx, r.handName()); err != nil {
		return nil, err
	}
	return r, nil
}

// byHand is the label of what is made without Shoal: another fleet's, so that
// no worker takes it for its own.
func (r *rig) byHand() string { return r.fleet + "-hand" }

func (r *rig) handName() string { return r.byHand() + "-" + sandbox.NewID()[:8] }

// connect connects to the given fleet, or starts one.
func (r *rig) connect(ctx context.Context) (err error) {
	url := r.settings.natsURL
	var opts []nats.Option
	if r.settings.natsCreds != "" {
		opts = append(opts, nats.UserCredentials(r.settings.natsCreds))
	}
	if url == "" {
		if r.home, r.homeURL, err = startHome(ctx, r); err != nil {
			return err
		}
		url = r.homeURL
	}
	r.client, err = messaging.Connect(url, messaging.Options{Tenant: sandbox.Tenant(r.settings.tenant)}, opts...)
	if err != nil {
		return err
	}
	_, err = r.newcomer(ctx, nil)
	return err
}

// eventually tries do until it succeeds, for two minutes at most.
func eventually(ctx context.Context, what string, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// create makes a sandbox; the end of the run removes it where nobody did before.
func (r *rig) create(ctx context.Context) (messaging.Target, error) {
	return r.createOf(ctx, limits())
}

func (r *rig) createOf(ctx context.Context, l sandbox.Limits) (messaging.Target, error) {
	info, err := r.client.Create(ctx, messaging.CreateRequest{
		Name: sandbox.Name("bench-" + sandbox.NewID()[:12]), Limits: l,
		Egress: sandbox.Egress{Mode: sandbox.EgressNone}, TTL: sandbox.Milliseconds(r.settings.timeout.Milliseconds()),
		Metadata: map[string]string{"bench": r.fleet},
	})
	return info.Target(), err
}

func (r *rig) destroy(ctx context.Context, t messaging.Target) error {
	_, err := r.client.Destroy(ctx, t)
	return err
}

func (r *rig) add(w row) {
	r.result.Rows = append(r.result.Rows, w)
	r.say("%s", strings.ReplaceAll(w.line(), "\t", "  "))
}

func (r *rig) say(format string, args ...any) {
	fmt.Fprintf(r.stderr, "bench: "+format+"\n", args...)
}

// close removes everything that the run made, also when it was broken off.
func (r *rig) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var failed []error
	if r.client != nil {
		failed = append(failed, r.destroyAll(ctx), r.client.Close())
	}
	if r.home != nil {
		failed = append(failed, r.home.stop())
	}
	if r.engine != nil {
		failed = append(failed, r.engine.Sweep(ctx, r.fleet), r.engine.Sweep(ctx, r.byHand()), r.engine.Close())
	}
	if r.dir != "" {
		failed = append(failed, os.RemoveAll(r.dir)) //nolint:gosec // MkdirTemp made it
	}
	return errors.Join(failed...)
}

// destroyAll destroys the sandboxes of this run by their metadata, whoever
// holds a handle to them.
func (r *rig) destroyAll(ctx context.Context) error {
	var failed []error
	for next := sandbox.Name(""); ; {
		page, err := r.client.List(ctx, messaging.ListRequest{Metadata: map[string]string{"bench": r.fleet}, After: next})
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		for _, info := range page.Sandboxes {
			if info.State != messaging.Gone {
				failed = append(failed, r.destroy(ctx, info.Target()))
			}
		}
		if next = page.Next; next == "" {
			return errors.Join(failed...)
		}
	}
}

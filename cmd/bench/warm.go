package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"shoal/messaging"
	"shoal/sandbox"
)

// warmMembers is the size of the pool that is measured.
const warmMembers = 2

// warmRows measure the time from a create to the first command's result when a
// sandbox was made ahead: as it was made, and with more memory than it was made
// with. Between two samples the pool fills up, which does not count.
func warmRows(ctx context.Context, r *rig) (err error) {
	w, err := r.warmFleet(ctx)
	if err != nil {
		return errors.Join(err, w.leave(ctx, r))
	}
	defer func() { err = errors.Join(err, w.leave(ctx, r)) }()
	more := limits()
	more.MemoryMB *= 2
	for _, p := range []probe{
		{name: "create_warm", ours: w.claim(limits()), baseline: byCreate, base: together(1, r.freshByHand)},
		{name: "create_warm_limits", ours: w.claim(more), baseline: byCreate, base: together(1, r.freshByHand)},
	} {
		p.unit, p.long = unitMS, true
		if err := r.measure(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// warmFleet starts a fleet of its own whose worker has a warm pool.
func (r *rig) warmFleet(ctx context.Context) (*rig, error) {
	l := limits()
	w := &rig{
		settings: r.settings, effort: r.effort, stderr: r.stderr, fleet: r.fleet + "-warm", dir: filepath.Join(r.dir, "warm"),
		flags: []string{
			"--warm", strconv.Itoa(warmMembers), "--cpu", fmt.Sprint(l.CPU), "--memory-mb", strconv.Itoa(l.MemoryMB),
			"--disk-mb", strconv.Itoa(l.DiskMB), "--pids", strconv.Itoa(l.Pids),
		},
	}
	if err := os.Mkdir(w.dir, 0o700); err != nil { //nolint:gosec // MkdirTemp made its parent
		return w, fmt.Errorf("make a directory for the worker: %w", err)
	}
	return w, w.connect(ctx)
}

// leave removes everything of the fleet.
func (r *rig) leave(ctx context.Context, home *rig) error {
	return errors.Join(r.close(context.WithoutCancel(ctx)), home.engine.Sweep(context.WithoutCancel(ctx), r.fleet))
}

// claim is a sample of a create from a full pool and its first command.
func (r *rig) claim(l sandbox.Limits) sample {
	do := together(1, func(ctx context.Context) (func(context.Context) error, error) {
		t, err := r.createOf(ctx, l)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error { return r.destroy(ctx, t) }, r.runTrue(ctx, t)
	})
	return func(ctx context.Context) (float64, error) {
		err := eventually(ctx, "the pool is full", func() error {
			list, err := r.client.Workers(ctx)
			if err == nil && !full(list) {
				err = errors.New("it is not")
			}
			return err
		})
		if err != nil {
			return 0, err
		}
		return do(ctx)
	}
}

func full(list []messaging.WorkerInfo) bool { return len(list) == 1 && list[0].Warm == warmMembers }

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// takeoverRows measure how long a command's output stands still when the
// owner's process is killed with SIGKILL, until the next byte arrives through
// another worker. Every line must come once and in order.
func takeoverRows(ctx context.Context, r *rig) error {
	return r.measure(ctx, probe{name: "takeover", unit: unitMS, long: true, seconds: true, ours: r.takeover})
}

func (r *rig) takeover(ctx context.Context) (float64, error) {
	before, err := r.client.Workers(ctx)
	if err != nil {
		return 0, err
	}
	victim, err := startWorker(r, r.homeURL)
	if err != nil {
		return 0, err
	}
	defer victim.kill()
	id, err := r.newcomer(ctx, before)
	if err != nil {
		return 0, err
	}
	box, err := r.ownedBy(ctx, id)
	if err != nil {
		return 0, err
	}
	gap, err := r.gap(ctx, box, victim)
	return ms(gap), errors.Join(err, r.destroy(ctx, box))
}

// newcomer waits for a serving worker that is not among those before: the
// presence of a dead one lasts for a while.
func (r *rig) newcomer(ctx context.Context, before []messaging.WorkerInfo) (id messaging.WorkerID, err error) {
	err = eventually(ctx, "another worker serves", func() error {
		list, err := r.client.Workers(ctx)
		if err != nil {
			return err
		}
		for _, w := range list {
			known := slices.ContainsFunc(before, func(b messaging.WorkerInfo) bool { return b.ID == w.ID })
			if !known && w.State == "serving" {
				id = w.ID
				return nil
			}
		}
		return errors.New("none does")
	})
	return id, err
}

// ownedBy makes a sandbox whose owner is the given worker: any worker may take
// a create.
func (r *rig) ownedBy(ctx context.Context, id messaging.WorkerID) (messaging.Target, error) {
	for range 40 {
		box, err := r.create(ctx)
		if err != nil {
			return box, err
		}
		info, err := r.client.Get(ctx, box)
		if err != nil {
			return box, err
		}
		if info.Owner == id {
			return box, nil
		}
		if err := r.destroy(ctx, box); err != nil {
			return box, err
		}
	}
	return messaging.Target{}, errors.New("the second worker took none of 40 sandboxes")
}

// ticks prints numbered lines for a minute.
const ticks = `for ((i = 1; i <= 6000; i++)); do echo $i; sleep 0.01; done`

// gap kills the owner in mid-output and returns the time to the next byte.
func (r *rig) gap(ctx context.Context, box messaging.Target, owner *worker) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p, err := r.client.Exec(ctx, box, sandbox.Command{Shell: ticks})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	epoch := p.Meta().Epoch
	var lines counting
	var killed time.Time
	var gap time.Duration
	for last := time.Now().Add(500 * time.Millisecond); gap == 0 || time.Now().Before(last); {
		s, err := p.Next(ctx)
		if err != nil {
			return 0, fmt.Errorf("follow the command: %w", err)
		}
		if s.Lost > 0 {
			return 0, fmt.Errorf("%d bytes were lost", s.Lost)
		}
		if err := lines.take(s.Data); err != nil {
			return 0, err
		}
		switch now := time.Now(); {
		case killed.IsZero() && now.After(last):
			killed = now
			owner.kill()
		case !killed.IsZero() && gap == 0 && p.Meta().Epoch != epoch: // what the old owner had sent does not count
			gap = now.Sub(killed)
			last = now.Add(300 * time.Millisecond) // enough to see a line repeated or lost
		}
	}
	_, err = p.Kill(ctx)
	return gap, err
}

// counting checks that what arrives is the numbers from 1 on, a line each.
type counting struct {
	last int
	rest []byte // of a line that has not ended
}

func (c *counting) take(data []byte) error {
	c.rest = append(c.rest, data...)
	for {
		line, rest, whole := bytes.Cut(c.rest, []byte("\n"))
		if !whole {
			return nil
		}
		if n, err := strconv.Atoi(string(line)); err != nil || n != c.last+1 {
			return fmt.Errorf("line %q came after line %d", line, c.last)
		}
		c.last++
		c.rest = rest
	}
}

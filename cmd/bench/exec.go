package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"shoal/messaging"
	"shoal/sandbox"
)

const byExec = "docker exec"

// execRows measure bash -c true: one after another, and 16 at once.
func execRows(ctx context.Context, r *rig) error {
	err := r.measure(ctx, probe{
		name: "exec", unit: unitMS, baseline: byExec, floor: r.spawns,
		ours: timed(func(ctx context.Context) error { return r.runTrue(ctx, r.box) }),
		base: timed(r.handTrue),
	})
	if err != nil {
		return err
	}
	return r.atOnce(ctx, 16)
}

// rateRows measure it at other numbers at once, and over eight sandboxes.
func rateRows(ctx context.Context, r *rig) error {
	for _, n := range []int{1, 4, 64} {
		if err := r.atOnce(ctx, n); err != nil {
			return err
		}
	}
	return r.withBoxes(ctx, 8, func(boxes []messaging.Target) error {
		return r.measure(ctx, probe{name: "exec64_over_8", unit: unitRate, more: true, long: true, ours: r.rate(boxes, 64)})
	})
}

// atOnce measures the rate of n at once in one sandbox.
func (r *rig) atOnce(ctx context.Context, n int) error {
	p := probe{name: "exec" + strconv.Itoa(n), unit: unitRate, more: true, long: true, ours: r.rate([]messaging.Target{r.box}, n)}
	if n <= 16 { // by hand 64 would only wait for one another, for seconds
		p.baseline = byExec
		p.base = func(ctx context.Context) (float64, error) { return perSecond(ctx, n, max(n, 8), r.handTrue) }
	}
	return r.measure(ctx, p)
}

// runTrue runs bash -c true through a kernel's client.
func (r *rig) runTrue(ctx context.Context, t messaging.Target) error {
	res, err := r.client.Run(ctx, t, sandbox.Command{Shell: "true"}, messaging.RunOptions{})
	if err == nil && res.Code != 0 {
		err = fmt.Errorf("bash -c true ended with %d", res.Code)
	}
	return err
}

func (r *rig) handTrue(ctx context.Context) error {
	return r.engine.Exec(ctx, r.hand, []string{"bash", "-c", "true"}, nil, io.Discard)
}

// rate makes a sample of commands per second, n at once, over boxes in turn.
func (r *rig) rate(boxes []messaging.Target, n int) sample {
	var next atomic.Int64
	return func(ctx context.Context) (float64, error) {
		return perSecond(ctx, n, max(8*n, 32), func(ctx context.Context) error {
			return r.runTrue(ctx, boxes[int(next.Add(1))%len(boxes)])
		})
	}
}

// perSecond does a thing total times, n at once, and returns the rate.
func perSecond(ctx context.Context, n, total int, do func(context.Context) error) (float64, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(n)
	start := time.Now()
	for range total {
		g.Go(func() error { return do(ctx) })
	}
	err := g.Wait()
	return float64(total) / time.Since(start).Seconds(), err
}

// spawnLoop prints how many microseconds each bash -c true takes when a shell
// inside the sandbox starts it.
const spawnLoop = `for ((i = 0; i < %d; i++)); do s=$EPOCHREALTIME; bash -c true; e=$EPOCHREALTIME; echo $((${e/./} - ${s/./})); done`

// spawns measures the floor of exec: the spawn alone.
func (r *rig) spawns(ctx context.Context) ([]float64, error) {
	res, err := r.client.Run(ctx, r.box, sandbox.Command{Shell: fmt.Sprintf(spawnLoop, max(r.effort.Samples, 20))}, messaging.RunOptions{})
	if err != nil {
		return nil, err
	}
	var all []float64
	for line := range strings.Lines(string(res.Stdout)) {
		us, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		if err != nil {
			return nil, fmt.Errorf("the loop printed %q: %w", line, err)
		}
		all = append(all, us/1000)
	}
	return all, nil
}

// withBoxes lends n sandboxes.
func (r *rig) withBoxes(ctx context.Context, n int, use func([]messaging.Target) error) error {
	boxes, err := r.grow(ctx, nil, n)
	if err == nil {
		err = use(boxes)
	}
	for _, b := range boxes {
		if derr := r.destroy(ctx, b); err == nil {
			err = derr
		}
	}
	return err
}

// grow adds sandboxes to boxes until there are n.
func (r *rig) grow(ctx context.Context, boxes []messaging.Target, n int) ([]messaging.Target, error) {
	for len(boxes) < n {
		b, err := r.create(ctx)
		if err != nil {
			return boxes, err
		}
		boxes = append(boxes, b)
	}
	return boxes, nil
}

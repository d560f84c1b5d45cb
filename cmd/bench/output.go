package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"shoal/sandbox"
)

// outputRows measure bulk output, on one stream and on eight, and what it costs
// the worker.
func outputRows(ctx context.Context, r *rig) error {
	var cpu, grown []float64
	ours := r.output(1)
	if r.home != nil {
		ours = r.home.watched(ours, r.effort.Output, &cpu, &grown)
	}
	one := probe{
		name: "output", unit: unitMiBps, more: true, long: true, baseline: "docker exec stdout",
		ours: ours, base: r.outputByHand(1),
	}
	if err := r.measure(ctx, one); err != nil {
		return err
	}
	if r.home != nil {
		r.add(summarise(probe{name: "output_worker_cpu", unit: unitMiBcpu, more: true}, cpu, nil, nil))
		r.add(summarise(probe{name: "output_worker_growth", unit: unitMiB}, grown, nil, nil))
	}
	return r.measure(ctx, probe{
		name: "output8", unit: unitMiBps, more: true, long: true, baseline: "8 docker exec stdout",
		ours: r.output(8), base: r.outputByHand(8),
	})
}

// zeros prints n bytes.
func zeros(n int64) []string { return []string{"head", "-c", strconv.FormatInt(n, 10), "/dev/zero"} }

// output makes a sample of MiB per second over n streams at once, which share
// the bytes of one run.
func (r *rig) output(n int) sample {
	each := r.effort.Output / int64(n)
	return throughput(n, each, func(ctx context.Context) (int64, error) {
		p, err := r.client.Exec(ctx, r.box, sandbox.Command{Argv: zeros(each)})
		if err != nil {
			return 0, err
		}
		defer p.Close()
		var got count
		_, err = p.Copy(ctx, &got, &got)
		return int64(got), err
	})
}

func (r *rig) outputByHand(n int) sample {
	each := r.effort.Output / int64(n)
	return throughput(n, each, func(ctx context.Context) (int64, error) {
		var got count
		err := r.engine.Exec(ctx, r.hand, zeros(each), nil, &got)
		return int64(got), err
	})
}

// count counts the bytes written to it.
type count int64

func (c *count) Write(p []byte) (int, error) {
	*c += count(len(p))
	return len(p), nil
}

// throughput runs read n times at once; each must return so many bytes.
func throughput(n int, each int64, read func(context.Context) (int64, error)) sample {
	return func(ctx context.Context) (float64, error) {
		g, ctx := errgroup.WithContext(ctx)
		start := time.Now()
		for range n {
			g.Go(func() error {
				got, err := read(ctx)
				if err == nil && got != each {
					err = fmt.Errorf("%d bytes came instead of %d", got, each)
				}
				return err
			})
		}
		err := g.Wait()
		return mib(each*int64(n)) / time.Since(start).Seconds(), err
	}
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// watched takes along what the worker spends on a sample that moves so many
// bytes: MiB per second of CPU, and MiB of memory at its peak above before.
func (w *worker) watched(s sample, bytes int64, cpu, grown *[]float64) sample {
	return func(ctx context.Context) (float64, error) {
		before, err := w.restPeak()
		if err != nil {
			return 0, err
		}
		spent, err := cpuTime(w.pid())
		if err != nil {
			return 0, err
		}
		v, err := s(ctx)
		if err != nil {
			return 0, err
		}
		after, err := cpuTime(w.pid())
		if err != nil {
			return 0, err
		}
		peak, err := statusKiB(w.pid(), "VmHWM:")
		*cpu = append(*cpu, mib(bytes)/(after-spent).Seconds())
		*grown = append(*grown, float64(peak-before)/1024)
		return v, err
	}
}

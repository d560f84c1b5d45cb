package main

import (
	"context"
	"fmt"
	"time"
)

// The units of rows.
const (
	unitMS     = "ms"
	unitRate   = "1/s"
	unitMiBps  = "MiB/s"
	unitMiBcpu = "MiB/CPU s"
	unitMiB    = "MiB"
	unitKiB    = "KiB"
)

// row is one line of the result; the package's comment says what its fields mean.
type row struct {
	Name        string   `json:"name"`
	Unit        string   `json:"unit"`
	P50         float64  `json:"p50"`
	P99         float64  `json:"p99"`
	Baseline    *string  `json:"baseline"`
	BaselineP50 *float64 `json:"baseline_p50"`
	Ratio       *float64 `json:"ratio"`
	FloorP50    *float64 `json:"floor_p50"`
}

// sample does a thing once and returns what was measured, in the row's unit.
type sample func(context.Context) (float64, error)

// probe is a row to measure.
type probe struct {
	name, unit string
	more       bool // more is better
	ours       sample
	baseline   string // what it is compared to
	base       sample // nil = nothing
	added      string // also add a row of this name: by how much ours is more
	floor      func(context.Context) ([]float64, error)
	long       bool // takes long enough for Rounds, and needs no warm-up
	seconds    bool // takes seconds: a quarter of them will do
}

// timed makes a sample of milliseconds.
func timed(do func(context.Context) error) sample {
	return func(ctx context.Context) (float64, error) {
		start := time.Now()
		err := do(ctx)
		return ms(time.Since(start)), err
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// measure does both sides in turns and adds the row.
func (r *rig) measure(ctx context.Context, p probe) error {
	warm := min(5, r.effort.Samples)
	if p.long {
		warm = 0
	}
	var ours, base []float64
	start := time.Now()
	for i := 0; !r.enough(p, len(ours), time.Since(start)); i++ {
		a, b, err := p.pair(ctx)
		if err != nil {
			return err
		}
		if i >= warm {
			ours, base = append(ours, a), append(base, b)
		}
	}
	var floor []float64
	if p.floor != nil {
		var err error
		if floor, err = p.floor(ctx); err != nil {
			return fmt.Errorf("%s, its floor: %w", p.name, err)
		}
	}
	r.add(summarise(p, ours, base, floor))
	if p.added != "" {
		r.add(summarise(probe{name: p.added, unit: p.unit}, differences(ours, base), nil, nil))
	}
	return nil
}

// enough says whether n samples, taken in this time, will do.
func (r *rig) enough(p probe, n int, passed time.Duration) bool {
	switch {
	case p.seconds:
		return n >= (r.effort.Rounds+3)/4
	case p.long:
		return n >= r.effort.Rounds
	case r.effort.For > 0:
		return n > 0 && passed >= r.effort.For
	}
	return n >= r.effort.Samples
}

// rest is the pause before each side's turn: an engine goes on cleaning up after
// an exec for some 20 ms, and that is not the other side's time.
const rest = 50 * time.Millisecond

// pair measures both sides one after another.
func (p *probe) pair(ctx context.Context) (ours, base float64, err error) {
	if p.base != nil {
		if err := pause(ctx); err != nil {
			return 0, 0, err
		}
	}
	if ours, err = p.ours(ctx); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", p.name, err)
	}
	if p.base == nil {
		return ours, 0, nil
	}
	if err := pause(ctx); err != nil {
		return 0, 0, err
	}
	if base, err = p.base(ctx); err != nil {
		return 0, 0, fmt.Errorf("%s, %s: %w", p.name, p.baseline, err)
	}
	return ours, base, nil
}

func pause(ctx context.Context) error {
	select {
	case <-time.After(rest):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

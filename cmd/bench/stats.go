package main

import (
	"math"
	"slices"
)

// percentile returns the nearest-rank percentile q (0 to 1) of v, which is not
// empty and not changed.
func percentile(v []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(v))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

func median(v []float64) float64 { return percentile(v, 0.5) }

// ratios says pair by pair how many times better ours is than base.
func ratios(ours, base []float64, more bool) []float64 {
	r := make([]float64, len(ours))
	for i := range ours {
		if r[i] = base[i] / ours[i]; more {
			r[i] = ours[i] / base[i]
		}
	}
	return r
}

// differences says pair by pair by how much ours is more than base.
func differences(ours, base []float64) []float64 {
	d := make([]float64, len(ours))
	for i := range ours {
		d[i] = ours[i] - base[i]
	}
	return d
}

// summarise makes a row of samples; base and floor may be nil.
func summarise(p probe, ours, base, floor []float64) row {
	bad := 0.99
	if p.more {
		bad = 0.01
	}
	w := row{Name: p.name, Unit: p.unit, P50: median(ours), P99: percentile(ours, bad)}
	if p.baseline != "" {
		w.Baseline, w.BaselineP50 = &p.baseline, new(median(base))
		w.Ratio = new(median(ratios(ours, base, p.more)))
	}
	if len(floor) > 0 {
		w.FloorP50 = new(median(floor))
	}
	return w
}

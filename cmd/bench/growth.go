package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/kv"
	"shoal/messaging"
)

// growthRows measure what more sandboxes do to a command's latency, to the
// worker's memory and to the records, what an idle one costs, and what commands
// leave behind in memory.
func growthRows(ctx context.Context, r *rig) error {
	boxes := []messaging.Target{r.box}
	at := map[int]level{}
	err := func() (err error) {
		for _, n := range r.effort.Growth {
			if boxes, err = r.grow(ctx, boxes, n); err != nil {
				return err
			}
			if at[n], err = r.look(ctx, boxes); err != nil {
				return err
			}
		}
		return nil
	}()
	if err == nil {
		r.addGrowth(at)
		err = r.idleRows(ctx, len(boxes))
	}
	for _, b := range boxes[1:] {
		err = errors.Join(err, r.destroy(ctx, b))
	}
	if err != nil {
		return err
	}
	return r.usedRows(ctx)
}

// level is what was found at one number of sandboxes.
type level struct {
	latency []float64 // of bash -c true, ms
	worker  int64     // PSS, KiB
	records uint64    // bytes of the handles
}

// look goes round the sandboxes, once for warming up: a worker lets go of a
// sandbox that has been idle for a minute, and making many takes longer.
func (r *rig) look(ctx context.Context, boxes []messaging.Target) (l level, err error) {
	for _, box := range boxes {
		if err := r.runTrue(ctx, box); err != nil {
			return l, err
		}
	}
	for i := range max(r.effort.Samples, 2*len(boxes)) {
		v, err := timed(func(ctx context.Context) error { return r.runTrue(ctx, boxes[i%len(boxes)]) })(ctx)
		if err != nil {
			return l, err
		}
		l.latency = append(l.latency, v)
	}
	if l.worker, err = pss(r.home.pid()); err != nil {
		return l, fmt.Errorf("memory of the worker: %w", err)
	}
	l.records, err = r.recordBytes(ctx)
	return l, err
}

// recordBytes is the size of the bucket of handles.
func (r *rig) recordBytes(ctx context.Context) (uint64, error) {
	nc, err := nats.Connect(r.homeURL)
	if err != nil {
		return 0, fmt.Errorf("look at the records: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	stream, err := js.Stream(ctx, "KV_"+kv.HandlesBucket)
	if err != nil {
		return 0, fmt.Errorf("look at the records: %w", err)
	}
	return stream.CachedInfo().State.Bytes, nil
}

// addGrowth adds a row for each level, compared with the first, and what one
// more sandbox costs between the first and the last.
func (r *rig) addGrowth(at map[int]level) {
	counts := slices.Sorted(maps.Keys(at))
	first, last := counts[0], counts[len(counts)-1]
	base := median(at[first].latency)
	for _, n := range counts {
		w := summarise(probe{name: "growth_exec_" + strconv.Itoa(n), unit: unitMS}, at[n].latency, nil, nil)
		w.Baseline, w.BaselineP50, w.Ratio = new(fmt.Sprintf("at %d", first)), &base, new(base/w.P50)
		r.add(w)
	}
	if last == first {
		return
	}
	each := func(a, b float64) []float64 { return []float64{(b - a) / float64(last-first)} }
	r.add(summarise(probe{name: "idle_worker", unit: unitKiB}, each(float64(at[first].worker), float64(at[last].worker)), nil, nil))
	r.add(summarise(probe{name: "idle_records", unit: unitKiB}, each(float64(at[first].records)/1024, float64(at[last].records)/1024), nil, nil))
}

// idleRows look at the processes of every sandbox: memory by program, and all
// together.
func (r *rig) idleRows(ctx context.Context, boxes int) error {
	mains, err := r.engine.Mains(ctx, r.fleet)
	if err != nil {
		return err
	}
	if len(mains) < boxes {
		return fmt.Errorf("%d containers run, for %d sandboxes", len(mains), boxes)
	}
	byName := map[string][]float64{}
	var all []float64
	for _, main := range mains {
		members, err := family(main)
		if err != nil {
			return err
		}
		sum := 0.0
		for _, m := range members {
			size, err := pss(m.pid)
			if err != nil {
				return fmt.Errorf("memory of %s: %w: looking into containers needs root", m.name, err)
			}
			byName[m.name] = append(byName[m.name], float64(size))
			sum += float64(size)
		}
		all = append(all, sum)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		r.add(summarise(probe{name: "idle_" + name, unit: unitKiB}, byName[name], nil, nil))
	}
	r.add(summarise(probe{name: "idle_host", unit: unitKiB}, all, nil, nil))
	return nil
}

// usedRows look at the memory of agent and worker after many commands.
func (r *rig) usedRows(ctx context.Context) error {
	if _, err := perSecond(ctx, 8, r.effort.Commands, func(ctx context.Context) error { return r.runTrue(ctx, r.box) }); err != nil {
		return err
	}
	worker, err := pss(r.home.pid())
	if err != nil {
		return fmt.Errorf("memory of the worker: %w", err)
	}
	r.add(summarise(probe{name: "used_worker", unit: unitKiB}, []float64{float64(worker)}, nil, nil))
	mains, err := r.engine.Mains(ctx, r.fleet)
	if err != nil {
		return err
	}
	for _, main := range mains { // one sandbox is left
		members, err := family(main)
		if err != nil {
			return err
		}
		for _, m := range members {
			if m.name != "agent" {
				continue
			}
			size, err := pss(m.pid)
			if err != nil {
				return fmt.Errorf("memory of the agent: %w", err)
			}
			r.add(summarise(probe{name: "used_agent", unit: unitKiB}, []float64{float64(size)}, nil, nil))
		}
	}
	return nil
}

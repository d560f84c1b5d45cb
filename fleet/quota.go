package fleet

import (
	"context"
	"time"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// admit reserves the tenant's quota for a new sandbox, after a look at the
// engine's capacity, where the sandbox counts until leave is called; by then
// its record does.
func (w *Worker) admit(ctx context.Context, key string, spec sandbox.Spec) (leave func(), err error) {
	w.admitting.Lock()
	defer w.admitting.Unlock()
	if err := w.room(spec.Limits); err != nil {
		return nil, err
	}
	if err := w.reserve(ctx, spec); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.incoming[key] = spec.Limits
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.incoming, key)
	}, nil
}

// room answers Busy when the engine has no capacity left for l.
func (w *Worker) room(l sandbox.Limits) error {
	c := w.cfg.Capacity
	used := w.engineUsage()
	if c.CPU > 0 && used.CPU+l.CPU > c.CPU || c.MemoryMB > 0 && used.MemoryMB+l.MemoryMB > c.MemoryMB ||
		c.DiskMB > 0 && used.DiskMB+l.DiskMB > c.DiskMB {
		return sandbox.Errorf(sandbox.Busy, "the engine's capacity is used up; try again").After(2 * time.Second).Because("capacity").From(sandbox.FromWorker)
	}
	return nil
}

// engineUsage sums up what all workers of this engine serve.
func (w *Worker) engineUsage() sandbox.Limits {
	_, used := w.usage()
	for id, p := range w.peers.all() {
		if id != w.id && p.Engine == w.engine {
			used.CPU += p.Used.CPU
			used.MemoryMB += p.Used.MemoryMB
			used.DiskMB += p.Used.DiskMB
		}
	}
	return used
}

// roomiest returns the worker of another engine with the most free memory that
// has room for l; "" = none.
func (w *Worker) roomiest(l sandbox.Limits) messaging.WorkerID {
	free := map[string]int{}
	some := map[string]messaging.WorkerID{}
	for id, p := range w.peers.all() {
		if p.Engine == w.engine || p.Draining || !p.Ready || !w.peers.alive(id) {
			continue
		}
		if _, ok := free[p.Engine]; !ok {
			free[p.Engine] = p.Capacity.MemoryMB
			if p.Capacity.MemoryMB == 0 {
				free[p.Engine] = 1 << 40
			}
		}
		free[p.Engine] -= p.Used.MemoryMB
		some[p.Engine] = id
	}
	var best messaging.WorkerID
	most := l.MemoryMB - 1
	for engine, f := range free {
		if f > most {
			best, most = some[engine], f
		}
	}
	return best
}

// reserve takes the sandbox's share of its tenant's quota; one key per tenant
// makes check and act one compare-and-swap.
func (w *Worker) reserve(ctx context.Context, spec sandbox.Spec) error {
	q := w.cfg.Quota
	if q == nil {
		return nil
	}
	return w.changeQuota(ctx, spec.Tenant, func(have map[sandbox.Name]kv.Reservation) error {
		delete(have, spec.Name)
		cpu, memory := spec.Limits.CPU, spec.Limits.MemoryMB
		for _, r := range have {
			cpu += r.CPU
			memory += r.MemoryMB
		}
		if q.Sandboxes > 0 && len(have)+1 > q.Sandboxes || q.CPU > 0 && cpu > q.CPU || q.MemoryMB > 0 && memory > q.MemoryMB {
			return sandbox.Errorf(sandbox.Quota, "the tenant has %d sandboxes; its quota is %d sandboxes, %g cores, %d MiB (0 = no bound); destroy some",
				len(have), q.Sandboxes, q.CPU, q.MemoryMB).From(sandbox.FromWorker)
		}
		have[spec.Name] = kv.Reservation{
			CPU: spec.Limits.CPU, MemoryMB: spec.Limits.MemoryMB, Generation: spec.Generation, At: time.Now().UTC(),
		}
		return nil
	})
}

// unreserve gives back what a generation reserved. What cannot be written now
// is repaired by the sweep.
func (w *Worker) unreserve(ctx context.Context, spec sandbox.Spec) {
	if w.cfg.Quota == nil || spec.Tenant == sandbox.PoolTenant {
		return
	}
	err := w.changeQuota(context.WithoutCancel(ctx), spec.Tenant, func(have map[sandbox.Name]kv.Reservation) error {
		if have[spec.Name].Generation == spec.Generation {
			delete(have, spec.Name)
		}
		return nil
	})
	if err != nil {
		w.log.WarnContext(ctx, "a reservation waits for the sweep", "tenant", spec.Tenant, "sandbox", spec.Name, "error", err)
	}
}

func (w *Worker) changeQuota(ctx context.Context, tenant sandbox.Tenant, fn func(map[sandbox.Name]kv.Reservation) error) error {
	var err error
	for try := range 50 {
		if try > 0 && !pause(ctx, time.Duration(try)*2*time.Millisecond) {
			break
		}
		var e *kv.Entry[kv.Quota]
		if e, err = w.store.Quotas.Get(ctx, kv.QuotaKey(tenant)); err != nil {
			return err
		}
		if e.Value.Reserved == nil {
			e.Value.Reserved = map[sandbox.Name]kv.Reservation{}
		}
		if err := fn(e.Value.Reserved); err != nil {
			return err
		}
		if err = w.store.Quotas.Put(ctx, e); !kv.IsRevision(err) {
			return err
		}
	}
	return sandbox.Errorf(sandbox.Busy, "too many creates of this tenant at once; try again").After(time.Second).Wrap(err).From(sandbox.FromWorker)
}

// repairQuotas drops reservations of generations that no record knows, and
// makes those that are missing, as after the loss of the bucket.
func (w *Worker) repairQuotas(ctx context.Context, records map[string]*kv.Entry[kv.Record]) {
	quotas, err := w.store.Quotas.List(ctx, "_quota")
	if err != nil {
		w.log.WarnContext(ctx, "quotas not repaired", "error", err)
		return
	}
	reserved := map[string]string{}
	for _, q := range quotas {
		tenant, ok := kv.ParseQuotaKey(q.Key)
		for name, r := range q.Value.Reserved {
			reserved[kv.HandleKey(tenant, name)] = r.Generation
			rec := records[kv.HandleKey(tenant, name)]
			alive := rec != nil && rec.Value.State != kv.Gone && rec.Value.Handle.Generation == r.Generation
			if !ok || alive || time.Since(r.At) < w.cfg.SweepGrace {
				continue
			}
			w.unreserve(ctx, sandbox.Spec{Tenant: tenant, Name: name, Generation: r.Generation})
		}
	}
	for key, e := range records {
		if e.Value.Handle.Tenant != sandbox.PoolTenant && e.Value.State != kv.Gone && reserved[key] != e.Value.Handle.Generation {
			w.reserveLate(ctx, key)
		}
	}
}

// reserveLate counts a sandbox that lives without a reservation, whatever the
// quota says: it is there.
func (w *Worker) reserveLate(ctx context.Context, key string) {
	e, err := w.store.Handles.Get(ctx, key)
	if err != nil || !e.Exists || e.Value.State == kv.Gone || e.Value.State == kv.Destroying {
		return
	}
	h := e.Value.Handle
	err = w.changeQuota(ctx, h.Tenant, func(have map[sandbox.Name]kv.Reservation) error {
		have[h.Name] = kv.Reservation{CPU: h.Limits.CPU, MemoryMB: h.Limits.MemoryMB, Generation: h.Generation, At: time.Now().UTC()}
		return nil
	})
	if err != nil {
		w.log.WarnContext(ctx, "a reservation waits for the next sweep", "tenant", h.Tenant, "sandbox", h.Name, "error", err)
	}
}

package fleet

import (
	"context"
	"time"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// drain takes no new work, hands over what this worker owns, and waits for
// what is being served, within the budget. Sandboxes and their commands run
// on in any case.
func (w *Worker) drain() {
	ctx, cancel := context.WithTimeout(w.ctx, w.cfg.DrainFor)
	defer cancel()
	w.log.Info("draining", "budget", w.cfg.DrainFor)
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
	if err := w.showPresence(ctx, time.Now()); err != nil {
		w.log.Warn("presence not renewed", "error", err)
	}
	if err := w.server.Leave(); err != nil {
		w.log.Warn("leaving the queue group", "error", err)
	}
	w.handOverAll(ctx)
	if err := w.server.Shutdown(ctx); err != nil {
		w.log.Warn("stopping the server", "error", err)
	}
	e, err := w.store.Workers.Get(ctx, kv.WorkerKey(string(w.id)))
	if err == nil {
		err = w.store.Workers.Remove(ctx, e)
	}
	if err != nil {
		w.log.Warn("presence not removed; it expires", "error", err)
	}
	for _, b := range w.all() {
		w.drop(b, errDraining())
	}
	w.log.Info("drained")
}

// handOverAll gives every sandbox to another worker of the engine, those with
// open connections out last, a few at a time.
func (w *Worker) handOverAll(ctx context.Context) {
	heirs := w.peers.of(w.engine)
	var talking []*box
	for _, b := range w.all() {
		if b.egress.Active(time.Minute) {
			talking = append(talking, b)
			continue
		}
		w.handOver(ctx, b, heirs)
	}
	for _, b := range talking {
		w.handOver(ctx, b, heirs)
	}
}

// handOver writes the heir into the record and asks it to take over; without
// one the record has no owner and the next worker finds it.
func (w *Worker) handOver(ctx context.Context, b *box, heirs []messaging.WorkerID) {
	rec := b.record()
	if rec.Owner != string(w.id) || rec.State == kv.Gone {
		return
	}
	release, err := b.gate.alone(ctx)
	if err != nil {
		b.log.Warn("not handed over in time; another worker takes over by itself", "error", err)
		return
	}
	defer release()
	to := heir(heirs, b.key)
	if err := b.change(ctx, func(r *kv.Record) error {
		if r.Owner != string(w.id) {
			return errMoved(r.Owner)
		}
		r.Owner = string(to)
		return nil
	}); err != nil {
		b.log.Warn("not handed over; another worker takes over by itself", "error", err)
	}
	b.finish(messaging.ErrMoved)
	if to == "" {
		return
	}
	req := messaging.AdoptRequest{Tenant: rec.Handle.Tenant, Sandbox: rec.Handle.Name}
	if err := w.server.Ask(ctx, to, messaging.OpAdopt, req, &messaging.Done{}); err != nil {
		b.log.Warn("the heir did not answer", "heir", to, "error", err)
	}
}

// adoptAsked attaches to a sandbox that another worker has handed over.
func (w *Worker) adoptAsked(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.AdoptRequest](r)
	b := w.box(req.Tenant, req.Sandbox)
	rec, err := b.load(ctx)
	if err != nil {
		return nil, err
	}
	if rec.Owner != string(w.id) {
		return nil, errMoved(rec.Owner)
	}
	b.restoreEgress()
	b.event(messaging.EventTakenOver, map[string]string{"from": string(r.From)})
	if rec.State == kv.Running {
		w.bg.Go(func() {
			if _, err := b.attached(w.ctx, false); err != nil && sandbox.CodeOf(err) != sandbox.Fenced {
				b.log.Warn("attaching to a sandbox that was handed over", "error", err)
			}
		})
	}
	return messaging.Done{}, nil
}

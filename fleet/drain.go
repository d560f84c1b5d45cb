package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// drain takes no new work, hands over what this worker owns, and waits for
// what is being served, within the budget. Sandboxes and their commands run
// on in any case.
func (w *Worker) drain(hide context.CancelFunc) {
	ctx, cancel := context.WithTimeout(w.ctx, w.cfg.DrainFor)
	defer cancel()
	w.log.Info("draining", "budget", w.cfg.DrainFor)
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
	if err := w.showPresence(ctx); err != nil {
		w.log.Warn("presence not renewed", "error", err)
	}
	if err := w.server.Leave(); err != nil {
		w.log.Warn("leaving the queue group", "error", err)
	}
	w.stopPool(ctx)
	w.handOverAll(ctx)
	if err := w.server.Shutdown(ctx); err != nil {
		w.log.Warn("stopping the server", "error", err)
	}
	hide() // or the presence would be written anew
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

// handOverAll gives every sandbox to another worker of the engine, a few at a
// time. Those with open connections come last, each when it has none any more:
// what is still open when the budget nears its end is cut.
func (w *Worker) handOverAll(ctx context.Context) {
	heirs := w.heirs(ctx)
	turns := semaphore.NewWeighted(2 * attachesAtOnce)
	patience, cancel := context.WithTimeout(ctx, w.cfg.DrainFor*2/3)
	defer cancel()
	var wg sync.WaitGroup
	rest, cut := w.all(), 0
	for patient := true; len(rest) > 0; patient = pause(patience, 50*time.Millisecond) {
		var busy []*box
		for _, b := range rest {
			n := b.connections()
			if n > 0 && patient {
				busy = append(busy, b)
				continue
			}
			cut += n
			wg.Go(func() { w.handOver(ctx, b, heirs, turns) })
		}
		rest = busy
	}
	if cut > 0 {
		w.log.Warn("connections that outlast the drain are cut", "connections", cut)
	}
	wg.Wait()
}

// heirsFor bounds the wait for those that may take over.
const heirsFor = 2 * time.Second

// heirs returns the workers that may take over, a successor that was started a
// moment ago among them.
func (w *Worker) heirs(ctx context.Context) []messaging.WorkerID {
	ctx, cancel := context.WithTimeout(ctx, heirsFor)
	defer cancel()
	for !w.peers.knowsHeirs(w.id, w.engine) && pause(ctx, 10*time.Millisecond) {
	}
	return slices.DeleteFunc(w.peers.of(w.engine), func(id messaging.WorkerID) bool { return id == w.id })
}

// connections counts what a handing over would cut: forwarded ports, transfers of
// files, and requests and tunnels to the outside.
func (b *box) connections() int { return int(b.moving.Load()) + b.egress.Open() }

// adoptFor is how long an heir may take to accept a sandbox.
const adoptFor = 2 * time.Second

// handOver writes the heir into the record and asks it to take over; without
// one the record has no owner and the next worker finds it.
func (w *Worker) handOver(ctx context.Context, b *box, heirs []messaging.WorkerID, turns *semaphore.Weighted) {
	rec := b.record()
	if rec.Owner != string(w.id) || rec.State == kv.Gone {
		return
	}
	release, err := b.gate.alone(ctx)
	if err == nil {
		defer release()
		err = turns.Acquire(ctx, 1) // after the gate: whoever waits there keeps nobody from his turn
	}
	if err != nil {
		b.log.Warn("not handed over in time; another worker takes over by itself", "error", err)
		return
	}
	defer turns.Release(1)
	to := heir(heirs, b.key)
	if b.pooled && to == "" {
		_ = b.dispose(ctx, "its worker is shutting down") // logged; the next worker's sweep finds it
		return
	}
	if err := b.change(ctx, func(r *kv.Record) error {
		r.Owner = string(to)
		return nil
	}); err != nil {
		b.log.Warn("not handed over; another worker takes over by itself", "error", err)
	}
	b.finish(messaging.ErrMoved)
	if to == "" {
		return
	}
	asked, cancel := context.WithTimeout(ctx, adoptFor)
	defer cancel()
	req := messaging.AdoptRequest{Tenant: rec.Handle.Tenant, Sandbox: rec.Handle.Name}
	if err := w.server.Ask(asked, to, messaging.OpAdopt, req, &messaging.Done{}); err != nil {
		b.log.Warn("the heir did not answer; requests and the sweep find the sandbox", "heir", to, "error", err)
	}
}

// adoptAsked attaches to a sandbox that another worker has handed over.
func (w *Worker) adoptAsked(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.AdoptRequest](r)
	if w.isDraining() {
		return nil, errDraining()
	}
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

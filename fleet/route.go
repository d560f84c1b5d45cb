package fleet

import (
	"context"
	"errors"
	"time"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// owned finds or becomes the owner of the sandbox that r names. It returns
// messaging.ErrForwarded when another worker serves the request.
func (w *Worker) owned(ctx context.Context, r *messaging.Request) (*box, error) {
	target := r.Target()
	key := kv.HandleKey(r.Tenant, target.Sandbox)
	if b := w.find(key); b != nil && b.live() != nil {
		if rec := b.record(); rec.Owner == string(w.id) && serves(rec.State) {
			return b, b.enter(r, rec)
		}
	}
	for range 3 {
		b, err := w.locate(ctx, r, key)
		if m, moved := errors.AsType[movedError](err); moved && (r.From == "" || m.owner == "") {
			continue // somebody was faster; look again
		}
		return b, err
	}
	return nil, sandbox.Errorf(sandbox.Unavailable, "the sandbox changes its owner; try again").From(sandbox.FromWorker)
}

// serves reports whether a state lets requests through without a look at the
// record.
func serves(s kv.State) bool { return s == kv.Running || s == kv.Creating }

// enter checks the generation and fills in what every answer says.
func (b *box) enter(r *messaging.Request, rec kv.Record) error {
	if want := r.Target().Generation; want != "" && want != rec.Handle.Generation {
		return sandbox.Errorf(sandbox.Stale, "the name belongs to another generation of the sandbox now; nothing was done").From(sandbox.FromWorker)
	}
	b.touch()
	b.fill(r)
	return nil
}

// fill writes what is known of the sandbox into the answer's meta.
func (b *box) fill(r *messaging.Request) {
	rec := b.record()
	r.Meta.Generation, r.Meta.Boot, r.Meta.Epoch = rec.Handle.Generation, rec.Boot, rec.Epoch
}

// locate reads the record and acts by its owner.
func (w *Worker) locate(ctx context.Context, r *messaging.Request, key string) (*box, error) {
	e, err := w.store.Handles.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	rec := e.Value
	switch {
	case !e.Exists && w.unsound() != nil:
		return nil, w.unsound()
	case !e.Exists:
		return nil, sandbox.Errorf(sandbox.NotFound, "there is no sandbox %s; create it", r.Target().Sandbox).From(sandbox.FromWorker)
	case rec.State == kv.Gone:
		return nil, errGone(rec)
	case r.Target().Generation != "" && r.Target().Generation != rec.Handle.Generation:
		return nil, (&box{}).enter(r, rec)
	case rec.Owner == string(w.id):
		b := w.box(r.Tenant, r.Target().Sandbox)
		b.adoptEntry(e)
		return b, b.enter(r, rec)
	}
	if rec.Owner != "" {
		if err := w.forward(ctx, r, messaging.WorkerID(rec.Owner)); !errors.Is(err, messaging.ErrNoOwner) {
			return nil, err
		}
	}
	return w.take(ctx, r, e)
}

// comparing is the reason of the error that a worker gives in its first moments.
const comparing = "comparing"

func errComparing() error {
	return sandbox.Errorf(sandbox.Unavailable, "the worker has not yet compared its engine with the records; try again").
		Because(comparing).From(sandbox.FromWorker).After(time.Second)
}

// awaitLook waits, when err says that the worker has just started, until its
// engine was compared with the records or could not be; true = ask again.
func (w *Worker) awaitLook(ctx context.Context, err error) bool {
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Reason != comparing {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	select {
	case <-w.looked:
		return true
	case <-ctx.Done():
		return false
	}
}

// forward hands r to the owner. A request that was forwarded already is not
// sent on: its client asks again.
func (w *Worker) forward(ctx context.Context, r *messaging.Request, owner messaging.WorkerID) error {
	if r.From != "" {
		if w.peers.alive(owner) {
			return errMoved(string(owner))
		}
		return messaging.ErrNoOwner
	}
	wait := messaging.ForwardWait
	if f, ok := r.Body.(*messaging.FollowRequest); ok && f.Silent == owner {
		wait = messaging.ForwardWaitSilent
	}
	if err := w.server.Forward(ctx, r, owner, wait); err != nil {
		return err
	}
	return messaging.ErrForwarded
}

// take adopts the sandbox of e for the request r, or hands r to a worker of
// the sandbox's engine.
func (w *Worker) take(ctx context.Context, r *messaging.Request, e *kv.Entry[kv.Record]) (*box, error) {
	if w.isDraining() {
		return nil, errDraining()
	}
	if e.Value.Handle.Engine != w.engine {
		return nil, w.elsewhere(ctx, r, e.Value.Handle.Engine)
	}
	b := w.box(r.Tenant, r.Target().Sandbox)
	if err := b.adopt(ctx, e); err != nil {
		return nil, err
	}
	return b, b.enter(r, b.record())
}

func errDraining() error {
	return sandbox.Errorf(sandbox.Draining, "this worker is shutting down; ask again").From(sandbox.FromWorker)
}

// elsewhere forwards r to a living worker of another engine.
func (w *Worker) elsewhere(ctx context.Context, r *messaging.Request, engine string) error {
	for _, peer := range w.peers.of(engine) {
		if err := w.forward(ctx, r, peer); !errors.Is(err, messaging.ErrNoOwner) {
			return err
		}
	}
	return sandbox.Errorf(sandbox.Engine, "no worker of the sandbox's engine answers now; try again").
		Because("no_worker").From(sandbox.FromWorker)
}

// adoptEntry makes e the box's record unless it knows a newer one.
func (b *box) adoptEntry(e *kv.Entry[kv.Record]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entry == nil || !e.Older(b.entry) {
		b.entry, b.proven = e, time.Now()
	}
}

// adopt makes this worker the owner of the sandbox that e describes, if e is
// still the truth. What the former owner began is finished on the next use or
// by the sweep; the agent's fence makes it harmless until then.
func (b *box) adopt(ctx context.Context, e *kv.Entry[kv.Record]) error {
	former := e.Value.Owner
	next := *e
	next.Value.Owner = string(b.w.id)
	next.Value.Changed = time.Now().UTC()
	if err := b.put(ctx, &next); err != nil {
		if kv.IsRevision(err) {
			return errMoved("")
		}
		return err
	}
	b.restoreEgress()
	b.log.InfoContext(ctx, "adopted", "former", former, "state", next.Value.State)
	if former != "" {
		b.event(messaging.EventTakenOver, map[string]string{"from": former})
	}
	return nil
}

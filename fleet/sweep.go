package fleet

import (
	"context"
	"fmt"
	"time"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// alarmShare: when the engine denies more than this share of the records at
// once, the fault is the engine's or ours, and nothing is marked as gone.
const alarmShare = 5 // one in five

// compared reports whether the engine answers and was compared with the
// records; until then unknown names cannot be called missing.
func (w *Worker) compared() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sound
}

// unsound returns why this worker takes no creates and calls no name missing;
// nil = it does.
func (w *Worker) unsound() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.sound:
		return nil
	case w.failing == nil:
		return errComparing()
	}
	return sandbox.Errorf(sandbox.Engine, "the engine of this worker does not answer; try again").
		Because("engine_down").Wrap(w.failing).From(sandbox.FromWorker).After(2 * time.Second)
}

// setSound notes that the engine was compared with the records, or why not.
func (w *Worker) setSound(failing error) {
	w.mu.Lock()
	changed := w.sound != (failing == nil)
	w.sound, w.failing = failing == nil, failing
	w.mu.Unlock()
	w.looking.Do(func() { close(w.looked) })
	if !changed {
		return
	}
	if failing == nil {
		w.log.Info("the engine answers and agrees with the records")
	} else {
		w.log.Error("the engine does not answer; this worker takes no creates until it does", "error", failing)
	}
	w.bg.Go(func() {
		if err := w.showPresence(w.ctx); err != nil {
			w.log.Warn("presence not renewed", "error", err)
		}
	})
}

// checkEngine asks for a comparison now: a call to the engine has failed.
func (w *Worker) checkEngine() {
	select {
	case w.check <- struct{}{}:
	default:
	}
}

// keepEngine compares the engine with the records at start and sweeps
// periodically. A worker whose engine does not answer leaves placement.
func (w *Worker) keepEngine() {
	for wait := time.Duration(0); ; {
		select {
		case <-w.ctx.Done():
			return
		case <-w.check:
		case <-time.After(wait):
		}
		wait = w.cfg.SweepEvery
		ctx, cancel := context.WithTimeout(w.ctx, cleanFor)
		_, err := w.sweep(ctx, false)
		cancel()
		if err != nil && w.ctx.Err() == nil {
			w.log.Warn("sweep", "error", err)
			wait = min(wait, 2*time.Second)
		}
	}
}

// sweepNow reports what a sweep would do, or does it.
func (w *Worker) sweepNow(ctx context.Context, r *messaging.Request) (any, error) {
	if !body[messaging.SweepRequest](r).DryRun {
		return nil, sandbox.Errorf(sandbox.Denied, "a tenant may look at the sweep only; set dryRun").From(sandbox.FromWorker)
	}
	actions, err := w.sweep(ctx, true)
	if err != nil {
		return nil, err
	}
	own := messaging.SweepAnswer{Actions: []messaging.SweepAction{}}
	for _, a := range actions {
		if a.Tenant == r.Tenant {
			own.Actions = append(own.Actions, a)
		}
	}
	return own, nil
}

// step is one thing that a sweep does.
type step struct {
	messaging.SweepAction
	do func(context.Context) error
}

// sweep compares the engine with the records and mends what nobody else does.
// Everybody adopts what a wiped bucket has lost; the rest is done by the one
// worker that is elected for the engine.
func (w *Worker) sweep(ctx context.Context, dry bool) ([]messaging.SweepAction, error) {
	objects, err := w.provider.List(ctx)
	if err != nil {
		w.setSound(err)
		return nil, err
	}
	entries, err := w.store.Handles.List(ctx, "")
	if err != nil {
		return nil, err
	}
	if err := w.sameBucket(ctx); err != nil {
		return nil, err
	}
	records := make(map[string]*kv.Entry[kv.Record], len(entries))
	for _, e := range entries {
		records[e.Key] = e
	}
	w.findMembers(entries)
	steps := w.objectSteps(objects, records)
	if !dry && (w.isDraining() || w.compared() && !w.elected()) {
		return nil, nil
	}
	more, err := w.recordSteps(ctx, objects, records)
	if err != nil {
		return nil, err
	}
	actions := w.perform(ctx, append(steps, more...), dry)
	if dry {
		return actions, nil
	}
	w.setSound(nil)
	if w.cfg.Quota != nil {
		w.repairQuotas(ctx, records)
	}
	return actions, nil
}

// sameBucket makes sure, after a listing, that its bucket is still the one that
// this worker knows. Another one means that the records were lost: then what the
// engine holds is no leftover, and what this worker believes to own it does not.
func (w *Worker) sameBucket(ctx context.Context) error {
	id, err := w.store.BucketID(ctx)
	if err != nil {
		return err
	}
	if id == w.bucketID() {
		return nil
	}
	w.mu.Lock()
	w.bucket, w.sound, w.failing = id, false, nil
	w.mu.Unlock()
	w.log.Error("the records are not those that this worker knew; they are built anew from the engine")
	for _, b := range w.all() {
		w.drop(b, messaging.ErrMoved)
	}
	return errComparing() // the next sweep lists anew
}

// bucketID returns the id of the handle bucket as last read.
func (w *Worker) bucketID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bucket
}

// elected reports whether this worker sweeps its engine.
func (w *Worker) elected() bool {
	return heir(append(w.peers.of(w.engine), w.id), w.engine) == w.id
}

func (w *Worker) perform(ctx context.Context, steps []step, dry bool) []messaging.SweepAction {
	actions := make([]messaging.SweepAction, 0, len(steps))
	for _, s := range steps {
		if !dry {
			err := s.do(ctx)
			s.Done = err == nil
			level := w.log.Info
			if err != nil {
				level = w.log.Warn
			}
			level("sweep", "action", s.Action, "tenant", s.Tenant, "sandbox", s.Sandbox, "generation", s.Generation, "why", s.Why, "error", err)
		}
		actions = append(actions, s.SweepAction)
	}
	return actions
}

// objectSteps looks at what the engine holds and the records do not know.
func (w *Worker) objectSteps(objects []sandbox.Object, records map[string]*kv.Entry[kv.Record]) []step {
	var steps []step
	newest := map[string]sandbox.Object{}
	used := handedOut(records)
	for _, o := range objects {
		key := kv.HandleKey(o.Tenant, o.Name)
		e := records[key]
		switch {
		case e != nil && e.Value.State != kv.Gone && e.Value.Handle.Generation == o.Generation, used[objectKey(o.Handle)]:
			continue
		case o.Tenant == sandbox.PoolTenant && time.Since(o.Created) >= w.cfg.SweepGrace:
			steps = append(steps, w.removal(o, "no record knows this member of the pool"))
			continue
		case o.Tenant == sandbox.PoolTenant: // never rebuilt: nobody was given it
			continue
		case e == nil && o.Bucket != w.bucketID() && o.Complete:
			if have, ok := newest[key]; !ok || o.Created.After(have.Created) {
				newest[key] = o
			}
			continue
		case time.Since(o.Created) < w.cfg.SweepGrace:
			continue
		}
		steps = append(steps, w.removal(o, "no record knows this generation"))
	}
	for _, o := range newest {
		steps = append(steps, w.rebuild(o))
	}
	return steps
}

func (w *Worker) removal(o sandbox.Object, why string) step {
	return step{
		action("remove", o.Tenant, o.Name, o.Generation, why),
		func(ctx context.Context) error { return w.removeLeftover(ctx, o) },
	}
}

func action(what string, t sandbox.Tenant, n sandbox.Name, generation, why string) messaging.SweepAction {
	return messaging.SweepAction{Action: what, Tenant: t, Sandbox: n, Generation: generation, Why: why}
}

// removeLeftover removes an object after a last look at the record: a create
// may have begun meanwhile.
func (w *Worker) removeLeftover(ctx context.Context, o sandbox.Object) error {
	e, err := w.store.Handles.Get(ctx, kv.HandleKey(o.Tenant, o.Name))
	if err != nil {
		return err
	}
	if e.Exists && e.Value.State != kv.Gone && e.Value.Handle.Generation == o.Generation {
		return nil
	}
	if given, err := w.given(ctx, e.Value); given || err != nil {
		return err
	}
	return w.provider.Destroy(ctx, o.Handle)
}

// rebuild makes the record of a sandbox whose bucket was lost, from the object
// and what its agent keeps.
func (w *Worker) rebuild(o sandbox.Object) step {
	return step{
		action("rebuild", o.Tenant, o.Name, o.Generation, "it stems from a bucket that was lost"),
		func(ctx context.Context) error { return w.rebuildRecord(ctx, o) },
	}
}

func (w *Worker) rebuildRecord(ctx context.Context, o sandbox.Object) error {
	b := w.box(o.Tenant, o.Name)
	release, err := b.gate.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	e, err := w.store.Handles.Get(ctx, b.key)
	if err != nil || e.Exists {
		return err
	}
	now := time.Now().UTC()
	e.Value = kv.Record{
		State: kv.Running, Rebuilt: true, Handle: o.Handle, RequestID: sandbox.NewID(), Owner: string(w.id),
		Spec:   sandbox.Spec{Tenant: o.Tenant, Name: o.Name, Generation: o.Generation, Bucket: o.Bucket, Limits: o.Limits},
		Egress: sandbox.Egress{Mode: sandbox.EgressNone}, Created: o.Created, Changed: now, LastUse: now,
	}
	switch o.State {
	case sandbox.Running:
	case sandbox.Paused:
		e.Value.State, e.Value.Mode = kv.Suspended, sandbox.SuspendMemory
	default:
		e.Value.State, e.Value.Mode = kv.Suspended, sandbox.SuspendDisk
	}
	if err := b.put(ctx, e); err != nil {
		if kv.IsRevision(err) {
			return nil // another worker rebuilt it
		}
		return err
	}
	if e.Value.State != kv.Running {
		return nil
	}
	if _, err = b.attached(ctx, false); err != nil || o.Pool == "" || !b.record().Rebuilt {
		return err
	}
	// The claim ended before the agent knew whose the sandbox is: nobody was told.
	return b.removeAs(ctx, b.record(), createUnfinished)
}

// recordSteps looks at records that nobody looks after.
func (w *Worker) recordSteps(ctx context.Context, objects []sandbox.Object, records map[string]*kv.Entry[kv.Record]) ([]step, error) {
	present := make(map[string]bool, len(objects))
	for _, o := range objects {
		present[objectKey(o.Handle)] = true
	}
	var steps []step
	var here int
	var denied []step
	for _, e := range records {
		rec := e.Value
		if rec.Handle.Engine != w.engine || rec.State == kv.Gone {
			continue
		}
		here++
		switch {
		case !present[objectKey(rec.Handle)] && (rec.State == kv.Running || rec.State == kv.Suspended):
			s, err := w.denied(ctx, e)
			if err != nil {
				return nil, err
			}
			if s != nil {
				denied = append(denied, *s)
			}
		case !w.orphan(rec):
		default:
			if s := w.orphanStep(e); s != nil {
				steps = append(steps, *s)
			}
		}
	}
	if len(denied)*alarmShare > here && len(denied) > 1 {
		w.log.ErrorContext(ctx, "the engine denies too many sandboxes at once; none is marked as gone", "denied", len(denied), "records", here)
		return steps, nil
	}
	return append(steps, denied...), nil
}

func objectKey(h sandbox.Handle) string {
	return fmt.Sprintf("%s.%s.%s", h.Tenant, h.Name.Token(), h.Generation)
}

// denied asks the engine about a sandbox that its list does not show: only its
// own "no such object" counts.
func (w *Worker) denied(ctx context.Context, e *kv.Entry[kv.Record]) (*step, error) {
	o, err := w.provider.Inspect(ctx, e.Value.Handle)
	if err != nil {
		return nil, err
	}
	if o.State != sandbox.Absent {
		return nil, nil //nolint:nilnil // nothing to do is no error
	}
	h := e.Value.Handle
	return &step{
		action("mark_gone", h.Tenant, h.Name, h.Generation, "the engine denies that it exists"),
		func(ctx context.Context) error {
			b := w.box(h.Tenant, h.Name)
			if err := b.adopt(ctx, e); err != nil {
				return err
			}
			if err := b.vanished(ctx, sandbox.Errorf(sandbox.Gone, "removed behind our back")); sandbox.CodeOf(err) != sandbox.Gone {
				return err
			}
			return nil
		},
	}, nil
}

// orphan reports whether a record's owner is nobody or not living.
func (w *Worker) orphan(rec kv.Record) bool {
	if !w.peers.judges(time.Now()) {
		return false
	}
	return rec.Owner == "" || rec.Owner != string(w.id) && !w.peers.alive(messaging.WorkerID(rec.Owner))
}

// orphanStep adopts an orphan and finishes what its owner had begun.
func (w *Worker) orphanStep(e *kv.Entry[kv.Record]) *step {
	rec, h := e.Value, e.Value.Handle
	adopt := func(then func(context.Context, *box) error) func(context.Context) error {
		return func(ctx context.Context) error {
			b := w.box(h.Tenant, h.Name)
			if err := b.adopt(ctx, e); err != nil {
				return err
			}
			return then(ctx, b)
		}
	}
	switch rec.State {
	case kv.Creating:
		if time.Since(rec.Changed) < w.cfg.SweepGrace {
			return nil
		}
		return &step{action("destroy", h.Tenant, h.Name, h.Generation, "its create was never finished"), adopt(func(ctx context.Context, b *box) error {
			return b.destroyAs(ctx, createUnfinished)
		})}
	case kv.Destroying:
		return &step{action("destroy", h.Tenant, h.Name, h.Generation, "its destruction was never finished"), adopt(func(ctx context.Context, b *box) error {
			return b.destroyAs(ctx, "destroyed")
		})}
	case kv.Suspending, kv.Resuming:
		return &step{action("settle", h.Tenant, h.Name, h.Generation, "its owner died in the middle of it"), adopt(func(ctx context.Context, b *box) error {
			return b.settle(ctx)
		})}
	case kv.Claimed:
		return &step{action("settle", h.Tenant, h.Name, h.Generation, "its owner died while giving it away"), adopt(func(ctx context.Context, b *box) error {
			return b.settleClaim(ctx)
		})}
	case kv.Running:
		return &step{action("adopt", h.Tenant, h.Name, h.Generation, "its owner does not live"), adopt(func(ctx context.Context, b *box) error {
			_, err := b.attached(ctx, false)
			return err
		})}
	default: // suspended: owning it is all there is to do
	}
	return &step{action("adopt", h.Tenant, h.Name, h.Generation, "its owner does not live"), adopt(func(context.Context, *box) error { return nil })}
}

// settle makes the record say what the engine shows after an owner died while
// suspending or resuming.
func (b *box) settle(ctx context.Context) error {
	release, err := b.gate.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	return b.settleHeld(ctx)
}

// settleHeld is settle with the gate held alone.
func (b *box) settleHeld(ctx context.Context) error {
	if s := b.record().State; s != kv.Suspending && s != kv.Resuming {
		return nil // a request was faster
	}
	if err := b.own(ctx); err != nil {
		return err
	}
	o, err := b.w.provider.Inspect(ctx, b.record().Handle)
	if err != nil {
		return err
	}
	switch o.State {
	case sandbox.Absent:
		return b.vanished(ctx, sandbox.Errorf(sandbox.Gone, "removed behind our back"))
	case sandbox.Running:
		if err := b.setState(ctx, kv.Running); err != nil {
			return err
		}
		_, err := b.attached(ctx, false)
		return err
	default: // paused or stopped
	}
	return b.change(ctx, func(r *kv.Record) error {
		r.State, r.Mode = kv.Suspended, sandbox.SuspendDisk
		if o.State == sandbox.Paused {
			r.Mode = sandbox.SuspendMemory
		}
		return nil
	})
}

// Sound reports whether the worker serves, with an engine that answers; one that
// drains does not.
func (w *Worker) Sound() bool { return w.compared() && !w.isDraining() }

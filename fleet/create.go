package fleet

import (
	"context"
	"errors"
	"strconv"
	"time"

	"shoal/agent"
	"shoal/egress"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// createFor bounds a create: the pull's three minutes, the start, the setup.
const createFor = 15 * time.Minute

// The reasons of a create that left no sandbox.
const (
	// createFailed: the caller was told so for good. A copy of its request that is
	// late makes nothing, since nobody waits for it.
	createFailed = "create_failed"
	// createUnfinished: nobody was told, or to ask again. A copy begins anew.
	createUnfinished = "create_unfinished"
)

// cleanFor bounds the clean-up after a failed create.
const cleanFor = 2 * time.Minute

// make makes a sandbox. The same request id gives the same sandbox; another
// one on a living name is Exists.
func (w *Worker) make(ctx context.Context, req *messaging.CreateRequest, requestID string, tenant sandbox.Tenant) (*box, error) {
	spec, err := w.spec(req, tenant)
	if err != nil {
		return nil, err
	}
	for {
		b := w.box(tenant, req.Name)
		done, err := b.createIn(ctx, req, spec, requestID)
		if done || err != nil {
			return b, err
		}
	}
}

// createIn creates in b unless the worker let go of b while this waited.
func (b *box) createIn(ctx context.Context, req *messaging.CreateRequest, spec sandbox.Spec, requestID string) (done bool, err error) {
	release, err := b.gate.alone(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	if b.w.find(b.key) != b {
		return false, nil
	}
	return true, b.create(ctx, req, spec, requestID)
}

// create is called with the gate held alone.
func (b *box) create(ctx context.Context, req *messaging.CreateRequest, spec sandbox.Spec, requestID string) error {
	rec, err := b.load(ctx)
	if err != nil {
		return err
	}
	if done, err := b.existing(ctx, rec, req, requestID); done || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, createFor)
	defer cancel()
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	b.setAbort(abort)
	defer b.setAbort(nil)
	want := b.w.newRecord(req, spec, requestID)
	from := b.known()
	m := b.w.pool.take(spec)
	if m != nil {
		defer m.gate.s.Release(gateWidth)
		want = m.become(want, spec)
	}
	leave, err := b.w.admit(ctx, b.key, want.Spec)
	if err != nil {
		b.w.pool.giveBack(m)
		return err
	}
	defer leave()
	if m != nil {
		done, err := b.moveInto(ctx, m, want, spec)
		if done || err != nil {
			return err
		}
		if now := b.record(); b.known() != from && (now.Owner != string(b.w.id) || now.Handle.Generation != want.Handle.Generation) {
			return errUnderWay()
		}
		if err := b.w.reserve(ctx, spec); err != nil {
			return b.failed(ctx, want.Handle, err)
		}
		want = b.w.newRecord(req, spec, requestID)
	}
	return b.createCold(ctx, want, spec)
}

// createCold makes a sandbox from nothing.
func (b *box) createCold(ctx context.Context, want kv.Record, spec sandbox.Spec) error {
	if err := b.begin(ctx, want); err != nil {
		b.w.unreserve(ctx, spec)
		return err
	}
	b.mu.Lock()
	b.spec = &spec
	b.mu.Unlock()
	if err := b.build(ctx, spec); err != nil {
		return b.failed(ctx, want.Handle, err)
	}
	b.event(messaging.EventCreated, map[string]string{"generation": spec.Generation})
	return nil
}

// failed cleans up after a create and returns why it failed.
func (b *box) failed(ctx context.Context, h sandbox.Handle, err error) error {
	if why, ok := errors.AsType[*sandbox.Error](context.Cause(ctx)); ok {
		err = why
	}
	reason := createFailed
	if sandbox.CodeOf(err).Retryable() || errors.Is(context.Cause(ctx), messaging.ErrStopping) {
		reason = createUnfinished
	}
	b.abandon(ctx, h, err, reason)
	return err
}

// existing deals with a record that is there already: done for the repeat of
// an answered create, an error for a name that is taken.
func (b *box) existing(ctx context.Context, rec kv.Record, req *messaging.CreateRequest, requestID string) (done bool, err error) {
	switch {
	case !b.exists() || rec.State == kv.Gone:
		if b.exists() && rec.RequestID == requestID && rec.Last != nil && rec.Last.Reason != createUnfinished {
			return false, errGone(rec) // it was answered, and is over
		}
		return false, nil
	case rec.RequestID == requestID && rec.State == kv.Creating:
		// Its creator died before it answered: what it left is removed, and the
		// create begins anew under a new generation.
		return false, b.remove(ctx, rec)
	case rec.RequestID == requestID && rec.State == kv.Destroying:
		// What was made is being destroyed, or a failed create cleaned up: who does
		// it, or inherits it, brings it to its end.
		return false, errGone(rec)
	case rec.RequestID == requestID:
		return true, nil
	case !req.Replace:
		return false, sandbox.Errorf(sandbox.Exists, "a sandbox of this name exists; choose another name, destroy it, or set replace").From(sandbox.FromWorker)
	}
	return false, b.remove(ctx, rec)
}

func (b *box) setAbort(abort context.CancelCauseFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abort = abort
}

// abortCreate ends a create that is under way, so that what is to be destroyed
// is not waited for.
func (b *box) abortCreate() {
	b.mu.Lock()
	abort := b.abort
	b.mu.Unlock()
	if abort != nil {
		abort(sandbox.Errorf(sandbox.Canceled, "the sandbox was destroyed while it was being created").From(sandbox.FromWorker))
	}
}

func (b *box) exists() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entry != nil && b.entry.Exists
}

// spec fills a request's spec with the deployment's defaults and checks it
// against its maxima.
func (w *Worker) spec(req *messaging.CreateRequest, tenant sandbox.Tenant) (sandbox.Spec, error) {
	spec := req.Spec()
	spec.Tenant, spec.Generation, spec.Bucket = tenant, sandbox.NewID(), w.bucketID()
	if spec.Image == "" {
		spec.Image = w.cfg.Image
	}
	spec.Limits = spec.Limits.Or(w.cfg.Limits)
	if err := spec.Limits.Validate(w.cfg.MaxLimits); err != nil {
		return spec, err
	}
	var err error
	if spec.Egress, err = w.egressOf(spec.Egress); err != nil {
		return spec, err
	}
	for i := range spec.Setup {
		if e := spec.Setup[i].Egress; e != nil {
			checked, err := w.egressOf(*e)
			if err != nil {
				return spec, err
			}
			spec.Setup[i].Egress = &checked
		}
	}
	return spec, spec.Validate()
}

// egressOf fills a policy with the deployment's default and checks it against
// its ceiling.
func (w *Worker) egressOf(e sandbox.Egress) (sandbox.Egress, error) {
	if e.Mode == "" {
		e = w.cfg.Egress
	}
	if e.Mode == sandbox.EgressAllowlist && len(e.Hosts) == 0 {
		e.Mode = sandbox.EgressNone // an empty list lets nothing out
	}
	if e.Mode.Wider(w.cfg.Ceiling) {
		return e, sandbox.Errorf(sandbox.Denied, "the deployment allows egress up to %s, not %s; its operator sets --egress-ceiling (open also needs --allow-open-egress)", w.cfg.Ceiling, e.Mode).From(sandbox.FromWorker)
	}
	if err := e.Validate(); err != nil {
		return e, err
	}
	if _, err := egress.ParsePolicy(e.Hosts, w.cfg.Policy); err != nil {
		return e, sandbox.InvalidField("egress.hosts", "%s", err.Error())
	}
	return e, nil
}

// newRecord is the record of a new generation, owned by this worker.
func (w *Worker) newRecord(req *messaging.CreateRequest, spec sandbox.Spec, requestID string) kv.Record {
	kept := spec
	kept.Env = nil
	now := w.clock.now().UTC()
	return kv.Record{
		State: kv.Creating, Spec: kept, RequestID: requestID, Owner: string(w.id),
		Handle: sandbox.Handle{
			Provider: w.provider.Kind(), Engine: w.engine, Tenant: spec.Tenant, Name: spec.Name,
			Generation: spec.Generation, Limits: spec.Limits,
		},
		Egress: spec.Egress, Pin: req.Pin, TTL: req.TTL, Created: now, Changed: now, LastUse: now,
	}
}

// begin writes the record of a new generation.
func (b *box) begin(ctx context.Context, rec kv.Record) error {
	b.mu.Lock()
	next := *b.entry
	b.mu.Unlock()
	next.Value = rec
	if err := b.put(ctx, &next); err != nil {
		if kv.IsRevision(err) {
			return errUnderWay()
		}
		return err
	}
	return nil
}

func errUnderWay() error {
	return sandbox.Errorf(sandbox.Busy, "another create of this name is under way; send the request again").After(time.Second).From(sandbox.FromWorker)
}

// known returns the record as last read or written, for telling whether it has
// changed.
func (b *box) known() *kv.Entry[kv.Record] {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entry
}

// build makes the sandbox at the engine, attaches, runs the setup, and hands
// it out.
func (b *box) build(ctx context.Context, spec sandbox.Spec) error {
	if err := b.own(ctx); err != nil {
		return err
	}
	h, err := b.w.provider.Create(ctx, spec, func(step string, done, total int64) {
		b.event(messaging.EventProgress, map[string]string{
			"step": step, "done": strconv.FormatInt(done, 10), "total": strconv.FormatInt(total, 10),
		})
	})
	if err != nil {
		return err
	}
	if err := b.change(ctx, func(r *kv.Record) error {
		r.Handle = h
		return nil
	}); err != nil {
		return err
	}
	s, err := b.attached(ctx, true)
	if err != nil {
		return err
	}
	return b.complete(ctx, s, spec)
}

// complete runs the setup of an attached sandbox and hands it out.
func (b *box) complete(ctx context.Context, s *agent.Session, spec sandbox.Spec) error {
	for i, c := range spec.Setup {
		if err := b.setup(ctx, s, i, c, spec.Egress); err != nil {
			return err
		}
	}
	if err := b.applyEgress(ctx, s, spec.Egress); err != nil {
		return err
	}
	return b.setState(ctx, kv.Running)
}

// setup runs one command of a new sandbox under its own egress list.
func (b *box) setup(ctx context.Context, s *agent.Session, i int, c sandbox.Setup, otherwise sandbox.Egress) error {
	list := otherwise
	if c.Egress != nil {
		list = *c.Egress
	}
	if err := b.applyEgress(ctx, s, list); err != nil {
		return err
	}
	cmd := sandbox.Command{
		ID: sandbox.CommandID("setup-" + strconv.Itoa(i)), Shell: c.Shell, Timeout: c.Timeout,
		Overflow: sandbox.OverflowDrop,
	}.WithDefaults()
	end, tail, err := runCollect(ctx, s, cmd)
	if err != nil {
		return err
	}
	if end.Code == nil || *end.Code != 0 {
		return sandbox.Errorf(sandbox.StartFailed, "setup command %d ended with %s (shell code %d): %s", i+1, end.Reason, end.ShellCode(), tail).
			Because("setup").From(sandbox.FromSandbox)
	}
	return nil
}

// abandon removes what a failed create made. The clean-up has a context of its
// own, so that a withdrawn create leaves nothing either.
//
// A worker that was stopped for a while may find that the name belongs to
// another generation by now; that one is not touched.
func (b *box) abandon(ctx context.Context, h sandbox.Handle, cause error, reason string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanFor)
	defer cancel()
	b.log.WarnContext(ctx, "create failed", "error", cause, "code", sandbox.CodeOf(cause))
	if sandbox.CodeOf(cause) == sandbox.Engine {
		b.w.checkEngine()
	}
	b.mu.Lock()
	b.spec = nil
	b.mu.Unlock()
	if rec := b.record(); rec.Handle.Generation == h.Generation && rec.Owner == string(b.w.id) {
		err := b.removeAs(ctx, rec, reason)
		if err == nil {
			return
		}
		b.log.ErrorContext(ctx, "the leftovers of a failed create are removed later", "error", err)
		if _, moved := errors.AsType[movedError](err); !moved {
			return
		}
	}
	b.finish(errMoved(""))
	now, err := b.load(ctx)
	if err != nil || b.exists() && now.State != kv.Gone && now.Handle.Generation == h.Generation {
		return // who has taken this very generation over answers for it
	}
	if err := b.w.provider.Destroy(ctx, h); err != nil {
		b.log.ErrorContext(ctx, "the leftovers of a create that was taken over wait for the sweep", "error", err)
	}
}

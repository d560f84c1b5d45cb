package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"shoal/agent"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// body returns the request's decoded body, whose type the operation fixes.
func body[T any](r *messaging.Request) *T { return r.Body.(*T) } // messaging decodes into this very type

// handle serves one request.
func (w *Worker) handle(ctx context.Context, r *messaging.Request) (any, error) {
	serve, ok := operations[r.Op]
	if !ok {
		return nil, sandbox.Errorf(sandbox.Unsupported, "this worker does not know the operation %s", r.Op).From(sandbox.FromWorker)
	}
	for try := 0; ; try++ {
		result, err := serve(w, ctx, r)
		if try == 0 && !readsInput[r.Op] && w.awaitLook(ctx, err) {
			continue
		}
		if _, moved := errors.AsType[movedError](err); !moved {
			return result, err
		}
		// Nothing was done: the new owner is asked, by this worker if it may.
		if try == 2 || r.From != "" || readsInput[r.Op] {
			return nil, sandbox.Errorf(sandbox.Busy, "the sandbox has just changed its owner; ask again").
				Because("moved").After(100 * time.Millisecond).From(sandbox.FromWorker).Wrap(err)
		}
	}
}

// readsInput are the operations that may have taken some of their input when
// they fail.
var readsInput = map[messaging.Op]bool{messaging.OpWrite: true, messaging.OpTarPut: true, messaging.OpForward: true}

// operations maps each operation to what serves it. It is never written to.
var operations = map[messaging.Op]func(*Worker, context.Context, *messaging.Request) (any, error){
	messaging.OpCreate:      (*Worker).create,
	messaging.OpGet:         (*Worker).get,
	messaging.OpList:        (*Worker).list,
	messaging.OpResume:      (*Worker).resume,
	messaging.OpSuspend:     (*Worker).suspend,
	messaging.OpDestroy:     (*Worker).destroy,
	messaging.OpPin:         (*Worker).pin,
	messaging.OpExplain:     (*Worker).explain,
	messaging.OpExec:        (*Worker).exec,
	messaging.OpFollow:      (*Worker).followCommand,
	messaging.OpWait:        (*Worker).wait,
	messaging.OpKill:        (*Worker).kill,
	messaging.OpCommands:    (*Worker).commands,
	messaging.OpStats:       (*Worker).stats,
	messaging.OpStdin:       (*Worker).stdin,
	messaging.OpSignal:      (*Worker).signal,
	messaging.OpResize:      (*Worker).resize,
	messaging.OpRead:        (*Worker).read,
	messaging.OpWrite:       (*Worker).write,
	messaging.OpStat:        (*Worker).stat,
	messaging.OpFiles:       (*Worker).files,
	messaging.OpMkdir:       (*Worker).mkdir,
	messaging.OpRemove:      (*Worker).removeFile,
	messaging.OpRename:      (*Worker).rename,
	messaging.OpTarGet:      (*Worker).tarGet,
	messaging.OpTarPut:      (*Worker).tarPut,
	messaging.OpForward:     (*Worker).forwardPort,
	messaging.OpEgressSet:   (*Worker).egressSet,
	messaging.OpEgressGet:   (*Worker).egressGet,
	messaging.OpLockAcquire: (*Worker).lockAcquire,
	messaging.OpLockRenew:   (*Worker).lockRenew,
	messaging.OpLockRelease: (*Worker).lockRelease,
	messaging.OpLockList:    (*Worker).lockList,
	messaging.OpWorkers:     (*Worker).workers,
	messaging.OpSweep:       (*Worker).sweepNow,
	messaging.OpPing:        (*Worker).ping,
	messaging.OpAdopt:       (*Worker).adoptAsked,
}

// create serves a create. It is forwarded when the name lives at another
// worker, since only the owner may replace or answer for it.
func (w *Worker) create(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.CreateRequest](r)
	if w.isDraining() {
		return nil, errDraining()
	}
	key := kv.HandleKey(r.Tenant, req.Name)
	e, err := w.store.Handles.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	living := e.Exists && e.Value.State != kv.Gone
	if living && e.Value.Owner != string(w.id) {
		_, err := w.owned(ctx, r)
		if code := sandbox.CodeOf(err); code == sandbox.Gone || code == sandbox.NotFound {
			living = false // it has gone meanwhile, and the name is free
		} else if err != nil {
			return nil, err
		}
	}
	if !living {
		if err := w.place(ctx, r, req); err != nil {
			return nil, err
		}
	}
	b, err := w.make(ctx, req, requestID(r), r.Tenant)
	if err != nil {
		return nil, err
	}
	b.fill(r)
	return b.info(), nil
}

// place hands a create to another engine when this worker's does not answer or
// has no room; nil = it stays here.
func (w *Worker) place(ctx context.Context, r *messaging.Request, req *messaging.CreateRequest) error {
	why := w.unsound()
	if why == nil {
		why = w.room(req.Limits.Or(w.cfg.Limits))
	}
	if why == nil || r.From != "" {
		return why
	}
	to := w.roomiest(req.Limits.Or(w.cfg.Limits))
	if to == "" {
		return why
	}
	if err := w.forward(ctx, r, to); !errors.Is(err, messaging.ErrNoOwner) {
		return err
	}
	return why
}

// requestID returns the client's request id, or a fresh one that nothing else
// will name.
func requestID(r *messaging.Request) string {
	if r.ID != "" {
		return r.ID
	}
	return sandbox.NewID()
}

func (w *Worker) get(ctx context.Context, r *messaging.Request) (any, error) {
	e, err := w.store.Handles.Get(ctx, kv.HandleKey(r.Tenant, r.Target().Sandbox))
	if err != nil {
		return nil, err
	}
	if err := w.visible(r, e); err != nil {
		return nil, err
	}
	r.Meta.Generation, r.Meta.Boot, r.Meta.Epoch = e.Value.Handle.Generation, e.Value.Boot, e.Value.Epoch
	return describe(e.Value), nil
}

// visible turns a missing record or another generation into its error; a gone
// one can be looked at.
func (w *Worker) visible(r *messaging.Request, e *kv.Entry[kv.Record]) error {
	switch want := r.Target().Generation; {
	case !e.Exists && w.unsound() != nil:
		return w.unsound()
	case !e.Exists:
		return sandbox.Errorf(sandbox.NotFound, "there is no sandbox %s", r.Target().Sandbox).From(sandbox.FromWorker)
	case want != "" && want != e.Value.Handle.Generation:
		return (&box{}).enter(r, e.Value)
	}
	return nil
}

func (w *Worker) list(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.ListRequest](r)
	entries, err := w.store.Handles.List(ctx, string(r.Tenant))
	if err != nil {
		return nil, err
	}
	if err := w.unsound(); err != nil {
		return nil, err
	}
	infos := make([]messaging.SandboxInfo, 0, len(entries))
	for _, e := range entries {
		if info := describe(e.Value); matches(&info, req) {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b messaging.SandboxInfo) int { return strings.Compare(string(a.Name), string(b.Name)) })
	answer := messaging.ListAnswer{Sandboxes: infos}
	limit := req.Limit
	if limit == 0 {
		limit = 100
	}
	if len(infos) > limit {
		answer.Sandboxes = infos[:limit]
		answer.Next = infos[limit-1].Name
	}
	return answer, nil
}

func matches(info *messaging.SandboxInfo, req *messaging.ListRequest) bool {
	if info.Name <= req.After && req.After != "" {
		return false
	}
	if req.State == "" && info.State == messaging.Gone || req.State != "" && info.State != req.State {
		return false
	}
	for k, v := range req.Metadata {
		if info.Metadata[k] != v {
			return false
		}
	}
	return true
}

func (w *Worker) resume(ctx context.Context, r *messaging.Request) (any, error) {
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := b.resume(ctx); err != nil {
		return nil, err
	}
	b.fill(r)
	return b.info(), nil
}

func (w *Worker) suspend(ctx context.Context, r *messaging.Request) (any, error) {
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	req := body[messaging.SuspendRequest](r)
	if err := b.suspend(ctx, req.Mode, req.Force); err != nil {
		return nil, err
	}
	return b.info(), nil
}

// destroy removes a sandbox; one that does not exist is success.
func (w *Worker) destroy(ctx context.Context, r *messaging.Request) (any, error) {
	b, err := w.owned(ctx, r)
	switch code := sandbox.CodeOf(err); {
	case code == sandbox.NotFound || code == sandbox.Gone:
		return messaging.DestroyAnswer{}, nil
	case err != nil:
		return nil, err
	}
	// What was begun is finished though the client stops waiting.
	existed, err := b.destroy(context.WithoutCancel(ctx), "destroyed")
	if err != nil {
		return nil, err
	}
	return messaging.DestroyAnswer{Existed: existed}, nil
}

func (w *Worker) pin(ctx context.Context, r *messaging.Request) (any, error) {
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	err = b.change(ctx, func(rec *kv.Record) error {
		rec.Pin = body[messaging.PinRequest](r).Pin
		return nil
	})
	if err != nil {
		return nil, err
	}
	if b.record().State == kv.Running {
		if s, err := b.attached(ctx, false); err == nil { // else the next attachment tells it
			b.keepInside(ctx, s)
		}
	}
	return b.info(), nil
}

func (w *Worker) wait(ctx context.Context, r *messaging.Request) (any, error) {
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	b.holds.Add(1)
	defer b.holds.Add(-1)
	var end sandbox.End
	err = b.free(ctx, func(ctx context.Context, s *agent.Session) (err error) {
		end, err = s.Wait(ctx, body[messaging.WaitRequest](r).ID)
		return err
	})
	return end, err
}

func (w *Worker) commands(ctx context.Context, r *messaging.Request) (any, error) {
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	if rec := b.record(); rec.State == kv.Suspended && rec.Mode == sandbox.SuspendDisk {
		return messaging.CommandsAnswer{}, nil // nothing runs, and looking is no reason to wake it
	}
	var answer messaging.CommandsAnswer
	err = b.call(ctx, func(ctx context.Context, s *agent.Session) (err error) {
		answer.Commands, err = s.List(ctx)
		return err
	})
	b.fill(r)
	return answer, err
}

func (w *Worker) stats(ctx context.Context, r *messaging.Request) (any, error) {
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	var stats sandbox.Stats
	err = b.call(ctx, func(ctx context.Context, s *agent.Session) (err error) {
		stats, err = s.Stats(ctx)
		return err
	})
	return stats, err
}

func (w *Worker) ping(context.Context, *messaging.Request) (any, error) {
	return messaging.PingAnswer{Engine: w.engine, Draining: w.isDraining()}, nil
}

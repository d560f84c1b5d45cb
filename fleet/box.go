package fleet

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"shoal/agent"
	"shoal/egress"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// freshFor is how old the last proof of ownership may be before a call that
// the agent does not fence, one to the engine, needs a new one.
const freshFor = 2 * time.Second

// box is a sandbox as its owner holds it.
type box struct {
	w    *Worker
	key  string
	log  *slog.Logger
	gate gate // life cycle alone, starts shared
	// attaching is held (alone) while a session is made.
	attaching gate
	// granting is held (alone) while a tag lock is granted or released.
	granting gate
	// keeping is set while something that was due is being done.
	keeping atomic.Bool
	// egress is the sandbox's policy and its connections, for the box's life.
	egress *egress.Session
	// used is when a caller last used it through this worker, in Unix
	// milliseconds; 0 = not yet.
	used atomic.Int64
	// ran is when a command was last seen to run in it though nobody used it, in
	// Unix milliseconds; 0 = never.
	ran atomic.Int64
	// seen is when a request last looked for it, in Unix milliseconds.
	seen atomic.Int64
	// later is when what failed in looking after it is tried again.
	later backoff
	// holds counts what keeps the sandbox attached and awake: streams, tunnels.
	holds atomic.Int64
	// moving counts what is under way and cannot go on at another worker: forwarded
	// ports, transfers of files.
	moving atomic.Int64
	// pooled: a member of the warm pool, which the pool alone looks after.
	pooled bool
	// heir is the sandbox that a member of the pool has become; its stream
	// serves that one now.
	heir atomic.Pointer[box]

	mu sync.Mutex
	// entry is the record as last read or written; nil until then.
	entry *kv.Entry[kv.Record]
	// proven is when entry was last known to be current.
	proven time.Time
	// session to the agent; nil or ended when detached.
	session *agent.Session
	// env of the spec, for the first claim only.
	spec *sandbox.Spec
	// pumps are the primary readers of commands, for input and signals.
	pumps map[sandbox.CommandID]*pump
	// abort ends the create that is under way; nil = none.
	abort context.CancelCauseFunc
	// locked is closed and replaced when a lock of the sandbox changes.
	locked chan struct{}
	// reset is the boot that a reset of ours ended; "" = none.
	reset string
	// alive is the life of the present generation here: its streams end with
	// the cause of its end.
	alive context.Context //nolint:containedctx // a generation's life, which no call spans
	end   context.CancelCauseFunc
}

func (w *Worker) newBox(tenant sandbox.Tenant, name sandbox.Name) *box {
	b := &box{
		w: w, key: kv.HandleKey(tenant, name),
		log:  w.log.With("tenant", tenant, "sandbox", name),
		gate: newGate(), attaching: newGate(), granting: newGate(),
		locked: make(chan struct{}), pooled: tenant == sandbox.PoolTenant,
	}
	b.egress = egress.NewSession(b.key, nil)
	b.alive, b.end = context.WithCancelCause(w.ctx)
	return b
}

func (b *box) touch() { b.used.Store(b.w.clock.now().UnixMilli()) }

// lastUse is the later of what this worker saw and what the record says: an
// adopter carries the idle clock on.
func (b *box) lastUse() time.Time {
	used, recorded := time.UnixMilli(b.used.Load()), b.record().LastUse
	if recorded.After(used) {
		return recorded
	}
	return used
}

// record returns a copy of the record as last known.
func (b *box) record() kv.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entry == nil {
		return kv.Record{}
	}
	return b.entry.Value
}

// live returns the session if there is one that works.
func (b *box) live() *agent.Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session == nil || b.session.Err() != nil {
		return nil
	}
	return b.session
}

// load reads the record from the leader. A read that was overtaken by a write
// of this worker does not bring the older value back.
func (b *box) load(ctx context.Context) (kv.Record, error) {
	b.mu.Lock()
	before := b.entry
	b.mu.Unlock()
	asked := time.Now()
	e, err := b.w.store.Handles.Get(ctx, b.key)
	if err != nil {
		return kv.Record{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entry == before || b.entry == nil || !e.Older(b.entry) {
		b.entry, b.proven = e, asked
	}
	return b.entry.Value, nil
}

// own makes sure that this worker is the owner by a proof that is at most
// freshFor old. Every call to the engine comes after it.
func (b *box) own(ctx context.Context) error {
	b.mu.Lock()
	fresh := b.entry != nil && time.Since(b.proven) < freshFor && b.entry.Value.Owner == string(b.w.id)
	b.mu.Unlock()
	if fresh {
		return nil
	}
	rec, err := b.load(ctx)
	if err != nil {
		return err
	}
	if rec.Owner != string(b.w.id) {
		return errMoved(rec.Owner)
	}
	return nil
}

// errMoved says that another worker owns the sandbox now.
func errMoved(owner string) error {
	return sandbox.Errorf(sandbox.Fenced, "another worker has taken the sandbox over").Because("moved").
		Wrap(movedError{owner: messaging.WorkerID(owner)}).From(sandbox.FromWorker)
}

// movedError carries the new owner.
type movedError struct{ owner messaging.WorkerID }

func (movedError) Error() string { return "moved" }

// change writes the record of the present generation as fn leaves it, by
// compare-and-swap. Only the owner changes it: a lost race against a write that
// left this worker the owner of the same generation is tried again, anything
// else ends in Fenced.
func (b *box) change(ctx context.Context, fn func(*kv.Record) error) error {
	generation := b.record().Handle.Generation
	for range 4 {
		e, err := b.ours(ctx, generation)
		if err != nil {
			return err
		}
		next := *e
		if err := fn(&next.Value); err != nil {
			return err
		}
		next.Value.Changed = time.Now().UTC()
		if err = b.put(ctx, &next); !kv.IsRevision(err) {
			return err
		}
		if _, err := b.load(ctx); err != nil {
			return err
		}
	}
	return sandbox.Errorf(sandbox.Unavailable, "the sandbox's record changes too fast; try again").From(sandbox.FromWorker)
}

// ours returns the record if this worker owns that generation of the sandbox,
// by what is known or else by the leader; generation "" stands for any.
func (b *box) ours(ctx context.Context, generation string) (*kv.Entry[kv.Record], error) {
	for look := false; ; look = true {
		b.mu.Lock()
		e := b.entry
		b.mu.Unlock()
		if e != nil && e.Value.Owner == string(b.w.id) && (generation == "" || e.Value.Handle.Generation == generation) {
			return e, nil
		}
		if look {
			return nil, errMoved(e.Value.Owner)
		}
		if _, err := b.load(ctx); err != nil {
			return nil, err
		}
	}
}

// put stores e and makes it the box's record.
func (b *box) put(ctx context.Context, e *kv.Entry[kv.Record]) error {
	ttl := time.Duration(0)
	switch {
	case e.Value.State == kv.Gone && b.pooled:
		ttl = kv.GonePoolTTL
	case e.Value.State == kv.Gone:
		ttl = kv.GoneTTL
	}
	asked := time.Now()
	if err := b.w.store.Handles.PutFor(ctx, e, ttl); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entry, b.proven = e, asked
	return nil
}

// setState changes the state alone.
func (b *box) setState(ctx context.Context, s kv.State) error {
	return b.change(ctx, func(r *kv.Record) error {
		r.State = s
		return nil
	})
}

// life returns the context of the present generation.
func (b *box) life() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.alive
}

// finish ends the present generation here: its streams end with why, and the
// session closes.
func (b *box) finish(why error) {
	b.mu.Lock()
	b.end(why)
	b.alive, b.end = context.WithCancelCause(b.w.ctx)
	b.mu.Unlock()
	b.detach()
}

// detach closes the session. Commands go on in the sandbox.
func (b *box) detach() {
	b.mu.Lock()
	s := b.session
	b.session = nil
	b.mu.Unlock()
	if s != nil {
		_ = s.Close()
	}
}

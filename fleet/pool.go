package fleet

import (
	"context"
	"sync"
	"time"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// The times of the warm pool.
const (
	poolEvery = 500 * time.Millisecond
	// poolQuiet after a claim nothing is refilled unless the pool is empty: the
	// claimant's first commands go first.
	poolQuiet = 500 * time.Millisecond
	// breedFor bounds the making of one member, retireFor its end.
	breedFor  = 5 * time.Minute
	retireFor = time.Minute
	// stopPoolFor is how long a drain waits for a member that is being made.
	stopPoolFor = 2 * time.Second
	// askEvery is how often a member must answer, askFor how fast.
	askEvery = 5 * time.Second
	askFor   = 5 * time.Second
)

// pool is the sandboxes that this worker has made ahead. Each is a box of the
// reserved tenant with a record of its own: whoever changes that record first
// has it, be it a create, a peer that adopts, or the pool that lets it go.
type pool struct {
	warmer sandbox.Warmer // nil = the provider has none
	// stop ends keepPool, done is closed when it has ended. Set by Run.
	stop context.CancelFunc
	done chan struct{}
	// failing spaces the tries to make a member, told is how many the presence
	// says are ready; keepPool's alone.
	failing backoff
	told    int

	mu    sync.Mutex
	ready []*box    // guarded by mu: attached, of the present recipe
	taken time.Time // guarded by mu: when one was last taken
}

func (c Config) validateWarm() error {
	_, can := c.Provider.(sandbox.Warmer)
	switch {
	case c.Warm < 0 || c.Warm > 1000:
		return sandbox.InvalidField("warm", "%d; use 0 to 1000", c.Warm)
	case c.Warm > 0 && !can:
		return sandbox.InvalidField("warm", "the provider %s makes no sandboxes ahead", c.Provider.Kind())
	case c.Warm > 0 && c.Egress.Mode == sandbox.EgressOpen:
		return sandbox.InvalidField("warm", "sandboxes with open egress are not made ahead")
	}
	return nil
}

// size returns how many members are ready.
func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready)
}

// take returns a member that spec fits, with its gate held alone; nil = none.
// A member that does not run or is not attached just now is passed over.
func (p *pool) take(spec sandbox.Spec) *box {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, m := range p.ready {
		rec := m.record()
		if rec.State != kv.Running || rec.Owner != string(m.w.id) || m.live() == nil ||
			!p.warmer.Fits(rec.Spec, spec) || !m.gate.s.TryAcquire(gateWidth) {
			continue
		}
		p.ready = append(p.ready[:i:i], p.ready[i+1:]...)
		p.taken = time.Now()
		return m
	}
	return nil
}

// giveBack returns a member that was taken and not touched.
func (p *pool) giveBack(m *box) {
	if m == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, m)
}

// show replaces the members that are ready.
func (p *pool) show(ready []*box) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = ready
}

// quiet reports whether the pool may be refilled now.
func (p *pool) quiet(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready) == 0 || now.Sub(p.taken) >= poolQuiet
}

// keepPool looks after the members: one step after the other, so that no more
// than one is made or removed at a time.
func (w *Worker) keepPool(ctx context.Context) {
	defer close(w.pool.done)
	if w.pool.warmer == nil {
		return
	}
	tick := time.NewTicker(poolEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for ctx.Err() == nil && w.compared() && w.tendPool(ctx) {
		}
	}
}

// stopPool ends the making of members before what there is is handed over. A
// member that is being made is removed again; where the engine takes long for
// that, the others do not wait.
func (w *Worker) stopPool(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopPoolFor)
	defer cancel()
	w.pool.stop()
	select {
	case <-w.pool.done:
	case <-ctx.Done():
	}
}

// findMembers finds the members that were left to this worker without its
// hearing of it: no request ever asks for one.
func (w *Worker) findMembers(entries []*kv.Entry[kv.Record]) {
	for _, e := range entries {
		h := e.Value.Handle
		if h.Tenant == sandbox.PoolTenant && e.Value.Owner == string(w.id) && w.peek(e.Key) == nil {
			w.box(h.Tenant, h.Name).adoptEntry(e)
		}
	}
}

// tendPool sorts the members by what they are good for, lets go of what is not
// wanted any more, and makes one that is missing; again reports that it did.
func (w *Worker) tendPool(ctx context.Context) (again bool) {
	spec := w.memberSpec()
	recipe := ""
	if w.cfg.Warm > 0 {
		var err error
		if recipe, err = w.pool.warmer.Recipe(ctx, spec); err != nil && sandbox.CodeOf(err) != sandbox.NotFound {
			w.log.DebugContext(ctx, "the warm pool waits for the engine", "error", err)
			return false
		}
	}
	var ready []*box
	for _, b := range w.all() {
		if b.pooled && w.tend(ctx, b, spec, recipe, len(ready) < w.cfg.Warm) {
			ready = append(ready, b)
		}
	}
	w.pool.show(ready)
	w.tellPool(ctx, len(ready))
	if len(ready) >= w.cfg.Warm || !w.pool.quiet(time.Now()) || !w.pool.failing.due(time.Now()) {
		return false
	}
	return w.breed(ctx, spec, recipe, len(ready))
}

// tellPool shows how many members are ready, when it has changed: others look
// at the presence only.
func (w *Worker) tellPool(ctx context.Context, ready int) {
	if ready == w.pool.told {
		return
	}
	if err := w.showPresence(ctx); err != nil {
		w.log.DebugContext(ctx, "the size of the pool is told with the next presence", "error", err)
		return
	}
	w.pool.told = ready
}

// tend reports whether b can be handed out, and removes it otherwise. What is
// being made or given away is left alone.
func (w *Worker) tend(ctx context.Context, b *box, spec sandbox.Spec, recipe string, wanted bool) bool {
	if b.record().Owner != string(w.id) || !b.later.due(time.Now()) || !b.gate.s.TryAcquire(gateWidth) {
		return false
	}
	defer b.gate.s.Release(gateWidth)
	var why string
	switch rec := b.record(); {
	case rec.State != kv.Running:
		why = "it is not running"
	case recipe == "" || rec.Recipe != recipe || rec.Spec.Limits != spec.Limits || rec.Spec.Image != spec.Image:
		why = "image or limits have changed"
	case !wanted:
		why = "the pool is full"
	case !b.answers(ctx):
		why = "it does not answer"
	default:
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, retireFor)
	defer cancel()
	b.later.note(b.dispose(ctx, why))
	return false
}

// memberSpec is what a sandbox is made ahead for: the deployment's defaults.
// The environment of a sandbox, its egress list and its setup come with the claim.
func (w *Worker) memberSpec() sandbox.Spec {
	return sandbox.Spec{
		Tenant: sandbox.PoolTenant, Name: sandbox.Name(sandbox.NewID()), Generation: sandbox.NewID(), Bucket: w.bucketID(),
		Image: w.cfg.Image, Limits: w.cfg.Limits, Egress: sandbox.Egress{Mode: sandbox.EgressNone},
	}
}

// answers reports whether a member is attached and still ours, attaching again
// if need be. For a member, used is when it last answered.
func (b *box) answers(ctx context.Context) bool {
	if b.live() != nil && time.Since(time.UnixMilli(b.used.Load())) < askEvery {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	if rec, err := b.load(ctx); err != nil || rec.Owner != string(b.w.id) || rec.State != kv.Running {
		return false
	}
	s, err := b.attached(ctx, false)
	if err != nil {
		return false
	}
	b.touch()
	return within(ctx, s, func() error {
		_, err := s.List(ctx)
		return err
	}) == nil
}

// breed makes a member, if the engine has room for one more beside those that
// are ready.
func (w *Worker) breed(ctx context.Context, spec sandbox.Spec, recipe string, ready int) bool {
	ctx, cancel := context.WithTimeout(ctx, breedFor)
	defer cancel()
	beside := spec.Limits
	beside.CPU, beside.MemoryMB, beside.DiskMB = beside.CPU*float64(ready+1), beside.MemoryMB*(ready+1), beside.DiskMB*(ready+1)
	if w.room(beside) != nil {
		return false
	}
	b := w.box(spec.Tenant, spec.Name)
	err := b.breed(ctx, spec, recipe)
	w.pool.failing.note(err)
	if err != nil {
		w.log.WarnContext(ctx, "no sandbox could be made ahead", "error", err)
		return false
	}
	return true
}

func (b *box) breed(ctx context.Context, spec sandbox.Spec, recipe string) error {
	release, err := b.gate.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	if _, err := b.load(ctx); err != nil {
		return err
	}
	want := b.w.newRecord(&messaging.CreateRequest{}, spec, sandbox.NewID())
	if err := b.begin(ctx, want); err != nil {
		return err
	}
	if err := b.raise(ctx, spec, recipe); err != nil {
		return b.failed(ctx, want.Handle, err)
	}
	return nil
}

// raise makes the member at the engine and attaches. The agent is given no
// spec: it learns whose the sandbox is at the claim.
func (b *box) raise(ctx context.Context, spec sandbox.Spec, recipe string) error {
	if err := b.own(ctx); err != nil {
		return err
	}
	h, err := b.w.provider.Create(ctx, spec, func(string, int64, int64) {})
	if err != nil {
		return err
	}
	if recipe == "" { // the create has pulled the image
		if recipe, err = b.w.pool.warmer.Recipe(ctx, spec); err != nil {
			return err
		}
	}
	if err := b.change(ctx, func(r *kv.Record) error {
		r.Handle, r.Recipe = h, recipe
		return nil
	}); err != nil {
		return err
	}
	if _, err := b.attached(ctx, true); err != nil {
		return err
	}
	return b.setState(ctx, kv.Running)
}

// dispose ends a member of the pool; its gate is held alone.
func (b *box) dispose(ctx context.Context, why string) error {
	rec := b.record()
	var err error
	switch {
	case rec.State == kv.Gone || rec.Owner != string(b.w.id):
	case rec.State == kv.Claimed:
		err = b.settleClaim(ctx)
	default:
		b.log.InfoContext(ctx, "a sandbox that was made ahead is removed", "why", why)
		err = b.removeAs(ctx, rec, "drained")
	}
	if err != nil && sandbox.CodeOf(err) != sandbox.Fenced {
		b.log.WarnContext(ctx, "a sandbox that was made ahead stays for now", "error", err)
		return err
	}
	b.w.drop(b, messaging.ErrMoved)
	return nil
}

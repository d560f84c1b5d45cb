package fleet

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"shoal/agent"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// claimFor bounds the two calls of a claim, to the engine and to the agent: a
// member that does not answer costs no more than this beside a cold create.
const claimFor = 5 * time.Second

// A claim in the order of its steps; a worker may die after each of them.
//
//  1. The member's record: running → claimed, by compare-and-swap. From here on
//     nobody else has it, and it is never given to another.
//  2. The sandbox's record: creating, with the member's generation.
//  3. The container's name and limits; beside it the agent's claim, which
//     brings it the spec.
//  4. Setup, egress; the sandbox's record: running.
//  5. The member's record: gone.
//
// What is found between 1 and 2 is destroyed, for nobody was told. From 2 on the
// sandbox's record answers for the container under either name.

// become turns the record of a sandbox to be made into that of the one which
// this member becomes.
func (b *box) become(want kv.Record, spec sandbox.Spec) kv.Record {
	member := b.record()
	want.Handle = member.Handle.Claimed(spec)
	want.Spec.Generation = member.Handle.Generation
	want.Epoch, want.Boot = member.Epoch+1, member.Boot // of the claim to come
	return want
}

// moveInto makes m the sandbox of want, whose gate is held alone as m's is.
// done is false when m was at fault: then the sandbox is made as any other.
func (b *box) moveInto(ctx context.Context, m *box, want kv.Record, spec sandbox.Spec) (done bool, err error) {
	spec.Generation = want.Spec.Generation
	release, err := b.attaching.alone(ctx) // until the session is b's nobody attaches by the new name
	if err != nil {
		b.w.pool.giveBack(m)
		return false, err
	}
	defer release()
	member := m.record().Handle
	if err := m.assign(ctx, b.key); err != nil {
		b.log.DebugContext(ctx, "a sandbox that was made ahead is somebody else's by now", "error", err)
		return false, nil
	}
	defer m.settleLater(ctx)
	if err := b.begin(ctx, want); err != nil {
		b.w.unreserve(ctx, spec)
		return true, err
	}
	s, err := b.takeOver(ctx, m, member, spec)
	if err != nil && ctx.Err() == nil && sandbox.CodeOf(err) != sandbox.Fenced {
		b.log.WarnContext(ctx, "a sandbox that was made ahead cannot be used; one is made", "error", err)
		return false, nil
	}
	if err == nil {
		err = b.complete(ctx, s, spec)
	}
	if err != nil {
		err = b.failed(ctx, want.Handle, err)
	} else {
		b.event(messaging.EventCreated, map[string]string{"generation": spec.Generation})
	}
	return true, err
}

// assign is the step that only one can take.
func (b *box) assign(ctx context.Context, key string) error {
	return b.change(ctx, func(r *kv.Record) error {
		if r.State != kv.Running {
			return sandbox.Errorf(sandbox.Conflict, "it is %s", r.State).From(sandbox.FromWorker)
		}
		r.State, r.Claimed = kv.Claimed, key
		return nil
	})
}

// takeOver gives the container its name and limits, tells the agent whose the
// sandbox is, and moves the session from m to b.
func (b *box) takeOver(ctx context.Context, m *box, member sandbox.Handle, spec sandbox.Spec) (*agent.Session, error) {
	s := m.live()
	if s == nil {
		return nil, sandbox.Errorf(sandbox.Engine, "the stream to it has just broken").From(sandbox.FromWorker)
	}
	if err := b.own(ctx); err != nil {
		return nil, err
	}
	m.heir.Store(b)
	rec := b.record()
	call, cancel := context.WithTimeout(ctx, claimFor)
	defer cancel()
	var h sandbox.Handle
	g, call := errgroup.WithContext(call)
	g.Go(func() (err error) {
		h, err = b.w.pool.warmer.Claim(call, member, spec)
		return err
	})
	g.Go(func() error {
		return within(call, s, func() error {
			_, err := s.Claim(call, agent.Claim{
				Boot: rec.Boot, Epoch: rec.Epoch, Processes: b.w.processes(spec.Limits), Spec: &spec,
			})
			return err
		})
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.session = nil
	m.mu.Unlock()
	b.mu.Lock()
	b.session = s
	noted := *b.entry
	noted.Value.Handle.Notes = h.Notes // written with the next state
	b.entry = &noted
	b.mu.Unlock()
	return s, nil
}

// within does something on s and closes s when ctx ends first: a stream to an
// agent that does not read takes its time to end otherwise.
func within(ctx context.Context, s *agent.Session, do func() error) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	err := do()
	if !stop() && err == nil {
		err = sandbox.AsError(context.Cause(ctx))
	}
	return err
}

// settleLater ends the record of a claimed member, and what is left of one that
// nobody was given, once the create has ended and let go of the gate.
func (b *box) settleLater(ctx context.Context) {
	b.w.bg.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), retireFor)
		defer cancel()
		b.detach() // nothing where b has the session
		release, err := b.gate.alone(ctx)
		if err != nil {
			return
		}
		defer release()
		_ = b.dispose(ctx, "it was given away") // logged, and repeated by tend
	})
}

// settleClaim ends the record of a claimed member: the sandbox that it has
// become lives on; without one, what the claim has left is destroyed.
func (b *box) settleClaim(ctx context.Context) error {
	rec := b.record()
	if rec.State != kv.Claimed {
		return nil
	}
	given, err := b.w.given(ctx, rec)
	if err != nil {
		return err
	}
	if !given {
		if err := b.own(ctx); err != nil {
			return err
		}
		tenant, name, _ := kv.ParseHandleKey(rec.Claimed)
		h := rec.Handle.Claimed(sandbox.Spec{Tenant: tenant, Name: name, Limits: rec.Handle.Limits})
		if err := b.w.provider.Destroy(ctx, h); err != nil {
			return err
		}
	}
	return b.change(ctx, func(r *kv.Record) error {
		r.State, r.Owner = kv.Gone, ""
		return nil
	})
}

// given reports whether a member's record says what it has become, and that is
// still there.
func (w *Worker) given(ctx context.Context, member kv.Record) (bool, error) {
	if member.Claimed == "" {
		return false, nil
	}
	e, err := w.store.Handles.Get(ctx, member.Claimed)
	if err != nil {
		return false, err
	}
	return e.Exists && e.Value.State != kv.Gone && e.Value.Handle.Generation == member.Handle.Generation, nil
}

// handedOut is what living sandboxes were in the pool, by [objectKey].
func handedOut(records map[string]*kv.Entry[kv.Record]) map[string]bool {
	used := map[string]bool{}
	for _, e := range records {
		if h := e.Value.Handle; h.Pool != "" && e.Value.State != kv.Gone {
			used[objectKey(sandbox.Handle{Tenant: sandbox.PoolTenant, Name: h.Pool, Generation: h.Generation})] = true
		}
	}
	return used
}

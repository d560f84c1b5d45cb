package fleet

import (
	"context"
	"sync"
	"time"

	"shoal/agent"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// lockWatch knows the locks as the watch last told them.
type lockWatch struct {
	mu    sync.Mutex
	known map[string]kv.Lock // by key
	// former is what was known before the watch was built anew; what is not
	// told of again by its Synced has vanished while it was deaf.
	former map[string]kv.Lock
}

func newLockWatch() *lockWatch { return &lockWatch{known: map[string]kv.Lock{}} }

// apply notes a change and returns the locks that have vanished, by key.
func (l *lockWatch) apply(c kv.Change[kv.Lock]) map[string]kv.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := map[string]kv.Lock{}
	switch c.Kind {
	case kv.Reset:
		for key, lock := range l.known {
			if l.former == nil {
				l.former = map[string]kv.Lock{}
			}
			l.former[key] = lock
		}
		l.known = map[string]kv.Lock{}
	case kv.Set:
		l.known[c.Entry.Key] = c.Entry.Value
	case kv.Removed:
		if lock, ok := l.known[c.Entry.Key]; ok {
			gone[c.Entry.Key] = lock
		}
		delete(l.known, c.Entry.Key)
	case kv.Synced:
		for key, lock := range l.former {
			if now, ok := l.known[key]; !ok || now.Token != lock.Token {
				gone[key] = lock
			}
		}
		l.former = nil
	}
	return gone
}

// forget drops a lock that was released: its end is no loss.
func (l *lockWatch) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, key)
	delete(l.former, key)
}

// watchLocks follows all locks: the owner of a sandbox tells its agent when
// one of them has expired, and wakes those who wait for it.
func (w *Worker) watchLocks() {
	_ = w.store.Locks.Watch(w.ctx, ">", func(c kv.Change[kv.Lock]) { // ends with ctx only
		for key, lock := range w.locks.apply(c) {
			w.bg.Go(func() { w.lockGone(key, lock) })
		}
		if c.Entry == nil {
			for _, b := range w.all() {
				b.lockChanged()
			}
			return
		}
		handle, _, _ := kv.ParseLockKey(c.Entry.Key)
		if b := w.peek(handle); b != nil {
			b.lockChanged()
		}
	})
}

// lockChange returns a channel that is closed at the next change of a lock of
// the sandbox.
func (b *box) lockChange() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.locked
}

func (b *box) lockChanged() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.locked)
	b.locked = make(chan struct{})
}

// lockGone tells the agent that a lock has expired, after a look at the leader:
// a marker is only a hint.
func (w *Worker) lockGone(key string, lock kv.Lock) {
	handle, tag, ok := kv.ParseLockKey(key)
	b := w.peek(handle)
	if !ok || b == nil || b.live() == nil {
		return // the next claim carries what is live
	}
	ctx, cancel := context.WithTimeout(w.ctx, engineFor)
	defer cancel()
	release, err := b.granting.alone(ctx) // a grant under way has a newer token
	if err != nil {
		return
	}
	defer release()
	e, err := w.store.Locks.Get(ctx, key)
	if err != nil || e.Exists && e.Value.Token == lock.Token {
		return
	}
	if s := b.live(); s != nil {
		if _, err := s.Expire(ctx, tag, lock.Token, false); err != nil {
			b.log.WarnContext(ctx, "the agent was not told of an expired lock", "tag", tag, "error", err)
		}
	}
	b.event(messaging.EventLockLost, map[string]string{"tag": string(tag)})
}

// lockAcquire grants a tag lock, waiting for it if asked to.
func (w *Worker) lockAcquire(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.LockAcquireRequest](r)
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(req.Wait.Duration())
	for {
		changed := b.lockChange()
		lock, err := b.tryLock(ctx, req)
		if sandbox.CodeOf(err) != sandbox.Locked || time.Now().After(until) {
			return lock, err
		}
		// The watch may be deaf for a while, so the lock is also looked at by time.
		poll := time.NewTimer(min(time.Second, time.Until(until)+time.Millisecond))
		select {
		case <-ctx.Done():
			poll.Stop()
			return nil, sandbox.AsError(context.Cause(ctx))
		case <-changed:
			poll.Stop()
		case <-poll.C:
		}
	}
}

// tryLock grants the lock if nothing excludes it, in the sandbox's serial
// queue of grants: pending key, the agent's word, granted key.
func (b *box) tryLock(ctx context.Context, req *messaging.LockAcquireRequest) (*messaging.Lock, error) {
	release, err := b.granting.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := b.own(ctx); err != nil {
		return nil, err
	}
	rec := b.record()
	if rec.State == kv.Gone || rec.State == kv.Destroying {
		return nil, errGone(rec)
	}
	if err := b.excluded(ctx, req.Tag); excludes && err != nil {
		return nil, err
	}
	e, err := b.w.store.Locks.Get(ctx, kv.LockKey(rec.Handle.Tenant, rec.Handle.Name, req.Tag))
	if err != nil {
		return nil, err
	}
	takenOver := excludes && (e.Exists || e.Expired)
	ttl := lockTTL(req.TTL)
	e.Value = kv.Lock{
		State: kv.LockPending, Holder: req.Holder, Token: sandbox.NewID(), Owner: string(b.w.id),
		TTL: sandbox.Millis(ttl), Since: time.Now().UTC(), Generation: rec.Handle.Generation,
	}
	if err := b.w.store.Locks.PutFor(ctx, e, ttl); err != nil {
		return nil, lostLock(err)
	}
	if err := b.handOver(ctx, rec, req.Tag, e.Value.Token, takenOver); err != nil {
		b.giveUpLock(context.WithoutCancel(ctx), e, takenOver)
		return nil, err
	}
	e.Value.State = kv.LockGranted
	if err := b.w.store.Locks.PutFor(ctx, e, ttl); err != nil {
		return nil, lostLock(err)
	}
	b.event(messaging.EventLocked, map[string]string{"tag": string(req.Tag), "holder": req.Holder})
	lock := lockInfo(rec.Handle.Name, req.Tag, e.Value)
	lock.Token, lock.TakenOver = e.Value.Token, takenOver
	return lock, nil
}

// giveUpLock takes a pending lock back. What a former holder left may still run,
// so such a lock is left to expire: the next holder takes over, too.
func (b *box) giveUpLock(ctx context.Context, e *kv.Entry[kv.Lock], takenOver bool) {
	if takenOver {
		_ = b.w.store.Locks.PutFor(ctx, e, time.Second) // expires later otherwise
		return
	}
	b.w.locks.forget(e.Key)
	_ = b.w.store.Locks.Remove(ctx, e) // expires by itself otherwise
}

// lockTTL rounds up to whole seconds, which is what the server counts.
func lockTTL(ms sandbox.Milliseconds) time.Duration {
	d := ms.Duration()
	if d == 0 {
		d = messaging.DefaultLockTTL
	}
	return (d + time.Second - 1).Truncate(time.Second)
}

// lostLock turns a lost race for the key into Locked: somebody else has it.
func lostLock(err error) error {
	if kv.IsRevision(err) {
		return sandbox.Errorf(sandbox.Locked, "somebody else was faster").From(sandbox.FromWorker)
	}
	return err
}

// handOver tells the agent the tag's new token and waits until what the former
// holder left is ended. A sandbox suspended without memory runs nothing: its
// next claim carries the token.
func (b *box) handOver(ctx context.Context, rec kv.Record, tag sandbox.Tag, token string, kill bool) error {
	if rec.State == kv.Suspended && (rec.Mode == sandbox.SuspendDisk || !kill) {
		return nil
	}
	_, err := b.confirmed(ctx, func(ctx context.Context, s *agent.Session) (sandbox.KillResult, error) {
		return s.Tag(ctx, agent.TagRequest{Tag: tag, Token: token, Kill: kill})
	})
	return err
}

// excluded returns Locked when a live lock of the sandbox excludes tag: the
// same tag, or "*" on either side. A pending key of a former owner excludes
// nothing, since nobody was told of it.
func (b *box) excluded(ctx context.Context, tag sandbox.Tag) error {
	held, err := b.locksOf(ctx)
	if err != nil {
		return err
	}
	for other, lock := range held {
		if other != tag && other != kv.AllTags && tag != kv.AllTags {
			continue
		}
		if lock.State == kv.LockPending && lock.Owner != string(b.w.id) {
			continue
		}
		return sandbox.Errorf(sandbox.Locked, "tag %s is locked by %q since %s; wait for it or take another tag", other, lock.Holder, lock.Since.Format(time.RFC3339)).
			After(lock.TTL.Duration() / 3).From(sandbox.FromWorker)
	}
	return nil
}

// locksOf reads the live locks of the present generation.
func (b *box) locksOf(ctx context.Context) (map[sandbox.Tag]kv.Lock, error) {
	rec := b.record()
	entries, err := b.w.store.Locks.ListNow(ctx, b.key)
	if err != nil {
		return nil, err
	}
	held := make(map[sandbox.Tag]kv.Lock, len(entries))
	for _, e := range entries {
		_, tag, ok := kv.ParseLockKey(e.Key)
		if ok && e.Value.Generation == rec.Handle.Generation {
			held[tag] = e.Value
		}
	}
	return held, nil
}

// liveLocks returns the tokens that a claim carries.
func (b *box) liveLocks(ctx context.Context) (map[sandbox.Tag]string, error) {
	held, err := b.locksOf(ctx)
	if err != nil {
		return nil, err
	}
	tokens := make(map[sandbox.Tag]string, len(held))
	for tag, lock := range held {
		tokens[tag] = lock.Token
	}
	return tokens, nil
}

// mine reads a lock and checks that the token is its present one.
func (b *box) mine(ctx context.Context, tag sandbox.Tag, token string) (*kv.Entry[kv.Lock], error) {
	rec := b.record()
	e, err := b.w.store.Locks.Get(ctx, kv.LockKey(rec.Handle.Tenant, rec.Handle.Name, tag))
	if err != nil {
		return nil, err
	}
	if !e.Exists || e.Value.Token != token || e.Value.Generation != rec.Handle.Generation {
		return nil, sandbox.Errorf(sandbox.Fenced, "the lock of %s is lost: it expired, was released or was taken over; acquire it anew", tag).
			Because("lock").From(sandbox.FromWorker)
	}
	return e, nil
}

func (w *Worker) lockRenew(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.LockRenewRequest](r)
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	e, err := b.mine(ctx, req.Tag, req.Token)
	if err != nil {
		return nil, err
	}
	ttl := e.Value.TTL.Duration()
	if req.TTL != 0 {
		ttl = lockTTL(req.TTL)
		e.Value.TTL = sandbox.Millis(ttl)
	}
	if err := w.store.Locks.PutFor(ctx, e, ttl); err != nil {
		return nil, lostLock(err)
	}
	lock := lockInfo(b.record().Handle.Name, req.Tag, e.Value)
	lock.Token = e.Value.Token
	return lock, nil
}

// lockRelease frees a lock. It kills nothing unless asked; what goes on
// running under the tag is the next holder's to find.
func (w *Worker) lockRelease(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.LockReleaseRequest](r)
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	release, err := b.granting.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	e, err := b.mine(ctx, req.Tag, req.Token)
	if err != nil {
		return nil, err
	}
	if rec := b.record(); rec.State == kv.Running || req.Kill && rec.Mode == sandbox.SuspendMemory {
		if _, err := b.confirmed(ctx, func(ctx context.Context, s *agent.Session) (sandbox.KillResult, error) {
			return s.Expire(ctx, req.Tag, req.Token, req.Kill)
		}); err != nil {
			return nil, err
		}
	}
	if err := b.removeLock(ctx, req, e); err != nil {
		return nil, err
	}
	b.event(messaging.EventUnlocked, map[string]string{"tag": string(req.Tag), "holder": e.Value.Holder})
	return messaging.Done{}, nil
}

// removeLock removes the key of a lock; a renewal of the same holder that comes
// between is no obstacle.
func (b *box) removeLock(ctx context.Context, req *messaging.LockReleaseRequest, e *kv.Entry[kv.Lock]) error {
	var err error
	for range 3 {
		b.w.locks.forget(e.Key)
		if err = b.w.store.Locks.Remove(ctx, e); !kv.IsRevision(err) {
			return err
		}
		if e, err = b.mine(ctx, req.Tag, req.Token); err != nil {
			return err
		}
	}
	return err
}

// lockList lists a tenant's locks, without their tokens.
func (w *Worker) lockList(ctx context.Context, r *messaging.Request) (any, error) {
	prefix := string(r.Tenant)
	if name := body[messaging.LockListRequest](r).Sandbox; name != "" {
		prefix = kv.HandleKey(r.Tenant, name)
	}
	entries, err := w.store.Locks.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	answer := messaging.LockListAnswer{Locks: make([]messaging.Lock, 0, len(entries))}
	for _, e := range entries {
		handle, tag, ok := kv.ParseLockKey(e.Key)
		_, name, ok2 := kv.ParseHandleKey(handle)
		if ok && ok2 {
			answer.Locks = append(answer.Locks, *lockInfo(name, tag, e.Value))
		}
	}
	return answer, nil
}

func lockInfo(name sandbox.Name, tag sandbox.Tag, l kv.Lock) *messaging.Lock {
	return &messaging.Lock{Sandbox: name, Tag: tag, Holder: l.Holder, State: string(l.State), TTL: l.TTL, Since: l.Since}
}

package messaging

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"shoal/sandbox"
)

// ErrLockLost is the cause of a lock's context when it was lost.
var ErrLockLost = errors.New("the tag lock is lost")

// LockOptions say how a lock is asked for.
type LockOptions struct {
	Holder string
	TTL    time.Duration // defaults to 15 s
	Wait   time.Duration // for a lock that is held; 0 = Locked at once
}

// HeldLock is a lock that renews itself. Put its token into the commands that
// are started under it, and its context around the work: it ends when the lock
// is lost, by this process's own clock even when nothing answers.
type HeldLock struct {
	c      *Client
	target Target
	lock   Lock
	ttl    time.Duration
	ctx    context.Context //nolint:containedctx // this is what the lock is for
	cancel context.CancelCauseFunc
	done   sync.WaitGroup
}

// Lock acquires a tag's lock, or with [AllTags] that of the whole sandbox. The
// lock's context descends from ctx; ctx's deadline bounds the waiting too.
func (c *Client) Lock(ctx context.Context, t Target, tag sandbox.Tag, o LockOptions) (*HeldLock, error) {
	if o.TTL == 0 {
		o.TTL = DefaultLockTTL
	}
	asked, cancel := context.WithTimeout(ctx, o.Wait+defaultRequestTime)
	defer cancel()
	sent := time.Now()
	lock, err := call[Lock](asked, c, OpLockAcquire, &LockAcquireRequest{
		Target: t, Tag: tag, Holder: o.Holder, TTL: sandbox.Millis(o.TTL), Wait: sandbox.Millis(o.Wait),
	})
	if err != nil {
		return nil, err
	}
	first := o.TTL / 3
	if o.Wait > 0 { // granted some time after the sending: count from a renewal
		sent, first = time.Now(), 0
	}
	h := &HeldLock{c: c, target: t, lock: lock, ttl: o.TTL}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	h.done.Go(func() { h.renew(sent, first) })
	return h, nil
}

// Token goes into [sandbox.Command.Token].
func (h *HeldLock) Token() string { return h.lock.Token }

// Lock returns what was granted, with TakenOver.
func (h *HeldLock) Lock() Lock { return h.lock }

// Context ends when the lock is lost ([ErrLockLost] is its cause) or released.
func (h *HeldLock) Context() context.Context { return h.ctx }

// Release gives the lock back; with kill the commands started under it end.
func (h *HeldLock) Release(ctx context.Context, kill bool) error {
	h.cancel(nil)
	h.done.Wait()
	_, err := call[Done](ctx, h.c, OpLockRelease, &LockReleaseRequest{Target: h.target, Tag: h.lock.Tag, Token: h.lock.Token, Kill: kill})
	return err
}

// renew keeps the lock. What counts is the time before a renewal was sent: the
// server's term begins later, so this process always gives up first.
func (h *HeldLock) renew(good time.Time, first time.Duration) {
	term := h.ttl - min(2*time.Second, h.ttl/4)
	wait := first
	for pause(h.ctx, wait) == nil {
		sent := time.Now()
		err := h.renewOnce(good.Add(term))
		switch {
		case err == nil:
			good, wait = sent, h.ttl/3
		case h.ctx.Err() != nil:
			return
		case lockGone(err) || time.Since(good) >= term:
			h.cancel(h.lost(err))
			return
		default:
			wait = min(200*time.Millisecond, h.ttl/20)
		}
	}
}

// lost is what the work under the lock ends with: not with what the last renewal
// met, which may be no more than a wait that was over.
func (h *HeldLock) lost(cause error) error {
	return sandbox.Errorf(sandbox.Fenced, "the lock of %s is lost: it was not renewed in time or was taken over; acquire it anew", h.lock.Tag).
		Because("lock").From(sandbox.FromClient).Wrap(errors.Join(ErrLockLost, cause))
}

func (h *HeldLock) renewOnce(until time.Time) error {
	ctx, cancel := context.WithDeadline(h.ctx, until)
	defer cancel()
	_, err := call[Lock](ctx, h.c, OpLockRenew, &LockRenewRequest{
		Target: h.target, Tag: h.lock.Tag, Token: h.lock.Token, TTL: sandbox.Millis(h.ttl),
	})
	return err
}

// lockGone reports whether the answer says that the lock is somebody else's or
// nobody's.
func lockGone(err error) bool {
	return slices.Contains([]sandbox.Code{
		sandbox.Fenced, sandbox.Locked, sandbox.NotFound, sandbox.Gone,
		sandbox.Stale, sandbox.Conflict, sandbox.Invalid, sandbox.Denied,
	}, sandbox.CodeOf(err))
}

// Locks lists the locks of a sandbox, or of the tenant when name is empty.
func (c *Client) Locks(ctx context.Context, name sandbox.Name) ([]Lock, error) {
	a, err := call[LockListAnswer](ctx, c, OpLockList, &LockListRequest{Sandbox: name})
	return a.Locks, err
}

package fleet_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/kv"
	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

func TestLocksExclude(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, nil)
	box := r.create("l")
	lock, err := r.client.Lock(t.Context(), box, "alpha", messaging.LockOptions{Holder: "one", TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	other := r.kernel("main")
	_, err = other.Lock(t.Context(), box, "alpha", messaging.LockOptions{Holder: "two"})
	code(t, err, sandbox.Locked)
	_, err = other.Lock(t.Context(), box, messaging.AllTags, messaging.LockOptions{Holder: "two"})
	code(t, err, sandbox.Locked)
	beta, err := other.Lock(t.Context(), box, "beta", messaging.LockOptions{Holder: "two"})
	if err != nil {
		t.Fatalf("another tag: %v", err)
	}
	// Only the holder's token starts under the tag.
	_, err = other.Run(t.Context(), box, sandbox.Command{Shell: "true", Tag: "alpha"}, messaging.RunOptions{})
	code(t, err, sandbox.Locked)
	_, err = other.Run(t.Context(), box, sandbox.Command{Shell: "true", Tag: "alpha", Token: beta.Token()}, messaging.RunOptions{})
	code(t, err, sandbox.Fenced)
	if _, err = r.client.Run(t.Context(), box, sandbox.Command{Shell: "true", Tag: "alpha", Token: lock.Token()}, messaging.RunOptions{}); err != nil {
		t.Fatalf("the holder's start: %v", err)
	}
	if _, err = other.Run(t.Context(), box, sandbox.Command{Shell: "true", Tag: "gamma"}, messaging.RunOptions{}); err != nil {
		t.Fatalf("an unlocked tag: %v", err)
	}
	time.Sleep(3 * time.Second) // the library renews by itself
	list, err := r.client.Locks(t.Context(), box.Sandbox)
	if err != nil || len(list) != 2 {
		t.Fatalf("locks %+v, %v", list, err)
	}
	for _, l := range list {
		if l.Token != "" {
			t.Fatal("a list shows a token")
		}
	}
	if err := lock.Release(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := beta.Release(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	all, err := other.Lock(t.Context(), box, messaging.AllTags, messaging.LockOptions{Holder: "two"})
	if err != nil {
		t.Fatalf("the whole sandbox: %v", err)
	}
	_, err = r.client.Run(t.Context(), box, sandbox.Command{Shell: "true", Tag: "gamma"}, messaging.RunOptions{})
	code(t, err, sandbox.Locked)
	if err := all.Release(t.Context(), false); err != nil {
		t.Fatal(err)
	}
}

// NK-05: a holder that dies loses its lock by time; what it ran is ended before the
// next holder is granted, and the next one is told so.
func TestLockTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, nil)
	box := r.create("l")
	ctx, die := context.WithCancel(t.Context())
	first := r.kernel("main")
	lock, err := first.Lock(ctx, box, "job", messaging.LockOptions{Holder: "first", TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cmd := sandbox.Command{Shell: "while sleep 0.05; do echo x >> $HOME/alive; done", Tag: "job", Token: lock.Token(), Background: true}
	if _, err := first.Exec(t.Context(), box, cmd); err != nil {
		t.Fatal(err)
	}
	die()
	_ = first.Close() // nothing renews any more
	second, err := r.client.Lock(t.Context(), box, "job", messaging.LockOptions{Holder: "second", TTL: 5 * time.Second, Wait: 15 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if !second.Lock().TakenOver {
		t.Error("the second holder was not told of the first")
	}
	before := r.run(box, "wc -l < $HOME/alive")
	time.Sleep(300 * time.Millisecond)
	if after := r.run(box, "wc -l < $HOME/alive"); after != before {
		t.Fatalf("the first holder's command runs on: %s then %s", before, after)
	}
	_, err = r.client.Run(t.Context(), box, sandbox.Command{Shell: "true", Tag: "job", Token: lock.Token()}, messaging.RunOptions{})
	code(t, err, sandbox.Fenced)
}

// Never two holders, with many contenders and short holds.
func TestLockNeverTwoHolders(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, nil)
	box := r.create("l")
	var inside, turns atomic.Int64
	var wg sync.WaitGroup
	for range 6 {
		c := r.kernel("main")
		wg.Go(func() {
			for range 3 {
				l, err := c.Lock(t.Context(), box, "m", messaging.LockOptions{TTL: 5 * time.Second, Wait: 30 * time.Second})
				if err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				time.Sleep(20 * time.Millisecond)
				inside.Add(-1)
				turns.Add(1)
				if err := l.Release(t.Context(), false); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if turns.Load() != 18 {
		t.Fatalf("%d turns of 18", turns.Load())
	}
}

// Who works under a lock that is lost is told so, whatever the renewal said.
func TestLostLockEndsItsWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, nil)
	box := r.create("l")
	lock, err := r.client.Lock(t.Context(), box, "job", messaging.LockOptions{TTL: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	store := r.records()
	time.AfterFunc(300*time.Millisecond, func() {
		for range 50 { // a renewal may come between
			e, err := store.Locks.Get(context.WithoutCancel(t.Context()), kv.LockKey("main", box.Sandbox, "job"))
			if err == nil && store.Locks.Remove(context.WithoutCancel(t.Context()), e) == nil {
				return
			}
		}
	})
	_, err = r.client.Run(lock.Context(), box, sandbox.Command{Shell: "sleep 30", Tag: "job", Token: lock.Token()}, messaging.RunOptions{})
	if !errors.Is(err, messaging.ErrLockLost) {
		t.Fatalf("the work ended with %v", err)
	}
}

// The server may accept a renewal at the very moment of expiry and cover it with
// the trace of the expiry: the holder has heard that all is well, and the next one
// is granted. What the first holder does until it learns of it is refused.
func TestRenewalCoveredByItsExpiry(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, nil)
	box := r.create("l")
	first, err := r.kernel("main").Lock(t.Context(), box, "job", messaging.LockOptions{Holder: "first", TTL: 9 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.client.Exec(t.Context(), box, sandbox.Command{
		Shell: "while sleep 0.05; do echo x >> $HOME/alive; done", Tag: "job", Token: first.Token(), Background: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	soon(t, 30*time.Second, "it works", func() bool { return r.run(box, "ls $HOME") == "alive\n" })
	js, err := jetstream.New(messagingtest.Conn(t, r.srv))
	if err != nil {
		t.Fatal(err)
	}
	trace := nats.NewMsg("$KV." + kv.LocksBucket + "." + kv.LockKey("main", box.Sandbox, "job"))
	trace.Header.Set(jetstream.MarkerReasonHeader, "MaxAge")
	if _, err := js.PublishMsg(t.Context(), trace); err != nil {
		t.Fatal(err)
	}
	second, err := r.kernel("main").Lock(t.Context(), box, "job", messaging.LockOptions{Holder: "second", Wait: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if !second.Lock().TakenOver {
		t.Error("the second holder was not told of the first")
	}
	before := r.run(box, "wc -l < $HOME/alive")
	_, err = r.client.Run(t.Context(), box, sandbox.Command{Shell: "touch $HOME/late", Tag: "job", Token: first.Token()}, messaging.RunOptions{})
	code(t, err, sandbox.Fenced)
	if got := r.run(box, "sleep 0.3; wc -l < $HOME/alive; ls $HOME"); got != before+"alive\n" {
		t.Errorf("the first holder still acts: %q, then %q", before, got)
	}
	select {
	case <-first.Context().Done():
	case <-time.After(30 * time.Second):
		t.Error("the first holder never learns of its loss")
	}
}

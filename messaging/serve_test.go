package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

func newClient(t *testing.T, nc *nats.Conn) *messaging.Client {
	t.Helper()
	c, err := messaging.NewClient(nc, messaging.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A full worker answers Busy at once; the client tries again and none is lost.
func TestFullWorkerIsBusy(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	var most, now atomic.Int64
	startServer(t, messagingtest.Conn(t, ns), "w1", func(context.Context, *messaging.Request) (any, error) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		time.Sleep(20 * time.Millisecond)
		return messaging.ListAnswer{}, nil
	}, func(c *messaging.Config) { c.Requests = 4 })
	c := newClient(t, messagingtest.Conn(t, ns))
	var wg sync.WaitGroup
	for range 24 {
		wg.Go(func() {
			if _, err := c.List(t.Context(), messaging.ListRequest{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most.Load() > 4 {
		t.Errorf("%d at once", most.Load())
	}
}

// A copy that comes while the first runs waits for its answer; one that comes
// afterwards gets the same; another request under the id is a conflict.
func TestCopiesOfARequest(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	var calls atomic.Int64
	startServer(t, messagingtest.Conn(t, ns), "w1", func(context.Context, *messaging.Request) (any, error) {
		time.Sleep(50 * time.Millisecond)
		return nil, sandbox.Errorf(sandbox.NotFound, "call %d", calls.Add(1))
	})
	nc := messagingtest.Conn(t, ns)
	header := nats.Header{"Shoal-Request": {"r1"}}
	body := []byte(`{"sandbox":"a","path":"/x"}`)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if e := ask(t, nc, "shoal.v1.main.remove", body, true, header); e.Message != "call 1" {
				t.Error(e)
			}
		})
	}
	wg.Wait()
	if e := ask(t, nc, "shoal.v1.main.remove", body, true, header); e.Message != "call 1" {
		t.Error(e)
	}
	if e := ask(t, nc, "shoal.v1.main.remove", []byte(`{"sandbox":"a","path":"/y"}`), true, header); e.Code != sandbox.Conflict {
		t.Error(e)
	}
	if e := ask(t, nc, "shoal.v1.other.remove", body, true, header); e.Message != "call 2" {
		t.Errorf("another tenant's id: %v", e)
	}
}

// A tenant cannot have an answer sent to another tenant's inbox.
func TestForeignReplySubject(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	var calls atomic.Int64
	startServer(t, messagingtest.Conn(t, ns), "w1", func(context.Context, *messaging.Request) (any, error) {
		calls.Add(1)
		return messaging.ListAnswer{}, nil
	}, func(c *messaging.Config) { c.CheckReply = true })
	nc := messagingtest.Conn(t, ns)
	sub, err := nc.SubscribeSync("_INBOX.>")
	if err != nil {
		t.Fatal(err)
	}
	for _, reply := range []string{"_INBOX.k2.x", "_INBOX.k1x.y", "shoal.v1.k1.destroy", "_INBOX.k1"} {
		if err := nc.PublishRequest("shoal.v1.k1.list", reply, nil); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := sub.NextMsg(200 * time.Millisecond); err == nil {
		t.Fatalf("answered on %s", m.Subject)
	}
	if err := nc.PublishRequest("shoal.v1.k1.list", "_INBOX.k1.x", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.NextMsg(2 * time.Second); err != nil || calls.Load() != 1 {
		t.Fatalf("%v, %d calls", err, calls.Load())
	}
}

// A panic is this request's Internal error; the text for the caller says
// nothing about it.
func TestPanicIsAnInternalError(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	startServer(t, messagingtest.Conn(t, ns), "w1", func(context.Context, *messaging.Request) (any, error) {
		panic("secret detail")
	})
	c := newClient(t, messagingtest.Conn(t, ns))
	_, err := c.List(t.Context(), messaging.ListRequest{})
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok || e.Code != sandbox.Internal || e.ID == "" || e.Message != "an internal fault; the worker's log has the details" {
		t.Fatalf("%v", err)
	}
	if _, err := c.Exec(t.Context(), messaging.Target{Sandbox: "a"}, sandbox.Command{Shell: "x"}); sandbox.CodeOf(err) != sandbox.Internal {
		t.Fatalf("%v", err)
	}
}

// A reader whose connection is gone is noticed at once.
func TestMissingReader(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	started, gone := make(chan struct{}), make(chan error, 1)
	startServer(t, messagingtest.Conn(t, ns), "w1", func(ctx context.Context, r *messaging.Request) (any, error) {
		if r.Op != messaging.OpExec {
			return messaging.SandboxInfo{Boot: "b"}, nil
		}
		if err := r.Output().Started(0, messaging.Started{ID: "c"}); err != nil {
			return nil, err
		}
		close(started)
		<-ctx.Done()
		gone <- context.Cause(ctx)
		return nil, context.Cause(ctx)
	})
	nc := messagingtest.Conn(t, ns)
	c := newClient(t, nc)
	p, err := c.Exec(t.Context(), messaging.Target{Sandbox: "a"}, sandbox.Command{Shell: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	<-started
	nc.Close()
	select {
	case err := <-gone:
		if !errors.Is(err, messaging.ErrReaderGone) {
			t.Fatal(err)
		}
	case <-time.After(3 * time.Second):
		t.Fatal("not noticed")
	}
}

// A reader that leaves tells the worker so.
func TestReaderLeaves(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	gone := make(chan error, 1)
	startServer(t, messagingtest.Conn(t, ns), "w1", func(ctx context.Context, r *messaging.Request) (any, error) {
		if err := r.Output().Started(0, messaging.Started{ID: "c"}); err != nil {
			return nil, err
		}
		<-ctx.Done()
		gone <- context.Cause(ctx)
		return nil, context.Cause(ctx)
	})
	c := newClient(t, messagingtest.Conn(t, ns))
	p, err := c.Follow(t.Context(), messaging.Target{Sandbox: "a"}, "c", messaging.FollowOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	select {
	case err := <-gone:
		if !errors.Is(err, messaging.ErrReaderLeft) {
			t.Fatal(err)
		}
	case <-time.After(3 * time.Second):
		t.Fatal("not noticed")
	}
}

// Shutdown lets requests finish within its budget and cancels what is left;
// nothing that was accepted goes unanswered.
func TestShutdownDrains(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	in := make(chan struct{}, 2)
	s, err := messaging.NewServer(messaging.Config{
		Conn: messagingtest.Conn(t, ns), Worker: "w1", Version: "0.1.0",
		Handler: func(ctx context.Context, r *messaging.Request) (any, error) {
			in <- struct{}{}
			if r.Op == messaging.OpWait {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			select {
			case <-time.After(100 * time.Millisecond):
				return messaging.ListAnswer{}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	nc := messagingtest.Conn(t, ns)
	answers := make(chan string, 2)
	for _, c := range []struct{ op, body string }{{"list", `{}`}, {"wait", `{"sandbox":"a","id":"c"}`}} {
		go func() {
			e := ask(t, nc, "shoal.v1.main."+c.op, []byte(c.body), true, nil)
			answers <- fmt.Sprintf("%s:%s", c.op, e.Code)
		}()
	}
	<-in
	<-in
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{<-answers: true, <-answers: true}
	if !got["list:"] || !got["wait:draining"] {
		t.Fatalf("answers %v", got)
	}
	if _, err := nc.Request("shoal.v1.main.list", nil, time.Second); !errors.Is(err, nats.ErrNoResponders) {
		t.Fatalf("after the shutdown: %v", err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatalf("a second time: %v", err)
	}
}

// A worker asks another one on its own account.
func TestAskAPeer(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	handler := func(_ context.Context, r *messaging.Request) (any, error) {
		if r.Op != messaging.OpPing {
			return nil, sandbox.Errorf(sandbox.Internal, "op %s", r.Op)
		}
		return messaging.PingAnswer{Engine: "e1"}, nil
	}
	a := startServer(t, messagingtest.Conn(t, ns), "w1", handler)
	startServer(t, messagingtest.Conn(t, ns), "w2", handler)
	var got messaging.PingAnswer
	if err := a.Ask(t.Context(), "w2", messaging.OpPing, &messaging.PingRequest{}, &got); err != nil || got.Engine != "e1" {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := a.Ask(t.Context(), "w3", messaging.OpPing, &messaging.PingRequest{}, &got); !errors.Is(err, messaging.ErrNoOwner) {
		t.Fatal(err)
	}
	// Kernels cannot ask what only workers ask of each other.
	nc := messagingtest.Conn(t, ns)
	if e := ask(t, nc, "shoal.v1.main.at.w1.ping", []byte(`{}`), true, nil); e.Code != sandbox.Invalid {
		t.Fatal(e)
	}
}

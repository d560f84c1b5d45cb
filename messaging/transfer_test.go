package messaging_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

func TestFilesOfAnySize(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil, "w1", "w2")
	b.fake.SetOwner("w2") // uploads find the owner by themselves
	for _, size := range []int{0, 1, 4096, messaging.MaxInline, messaging.MaxInline + 1, 5 << 20} {
		data := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{2}).Read(data)
		f := b.target.File("/workspace/f")
		c := b.newClient(t)
		info, err := c.WriteFile(t.Context(), f, data, sandbox.WriteOptions{})
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if info.Size != int64(size) {
			t.Fatalf("%d bytes written of %d", info.Size, size)
		}
		got, err := c.ReadFile(t.Context(), f, sandbox.ReadOptions{}, 8<<20)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes: %d came back, %v", size, len(got), err)
		}
	}
	if _, err := b.client.ReadFile(t.Context(), b.target.File("/workspace/f"), sandbox.ReadOptions{}, 1000); sandbox.CodeOf(err) != sandbox.TooLarge {
		t.Errorf("too large: %v", err)
	}
	if _, err := b.client.ReadFile(t.Context(), b.target.File("/nope"), sandbox.ReadOptions{}, 1000); sandbox.CodeOf(err) != sandbox.NotFound {
		t.Errorf("missing: %v", err)
	}
}

func TestFailingUploadChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	worker := b.fake.StartWorker(t, messagingtest.Conn(t, b.ns), "w1")
	info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	f := info.Target().File("/workspace/f")
	broken := io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), errReader{})
	if _, err := b.client.Upload(t.Context(), f, broken, sandbox.WriteOptions{Size: -1}); !errors.Is(err, errBroken) {
		t.Fatalf("error %v", err)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if requests, _ := worker.Load(); requests == 0 {
			break
		} else if time.Now().After(end) {
			t.Fatal("the worker still waits for the upload that was given up")
		}
	}
	if _, err := b.client.Stat(t.Context(), f, false); sandbox.CodeOf(err) != sandbox.NotFound {
		t.Fatalf("the file is there: %v", err)
	}
	if _, err := b.client.Upload(t.Context(), f, strings.NewReader("short"), sandbox.WriteOptions{Size: 6}); sandbox.CodeOf(err) != sandbox.Invalid {
		t.Fatalf("short upload: %v", err)
	}
}

var errBroken = errors.New("broken source")

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errBroken }

func TestDialIsAConnection(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil, "w1")
	conn, err := b.client.Dial(t.Context(), b.target, 8080)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data := bytes.Repeat([]byte("ping"), 300_000)
	go func() {
		_, _ = conn.Write(data)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}

	conn, err = b.client.Dial(t.Context(), b.target, 8080)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("deadline: %v", err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatalf("after the deadline: %d, %v", n, err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		waits <- err
	}()
	time.Sleep(20 * time.Millisecond)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; !errors.Is(err, net.ErrClosed) {
		t.Fatalf("read of a closed connection: %v", err)
	}
}

func TestLockRenewsItselfAndTellsItsLoss(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil, "w1")
	held, err := b.client.Lock(t.Context(), b.target, "tag", messaging.LockOptions{TTL: 2 * time.Second, Holder: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.Lock(t.Context(), b.target, "tag", messaging.LockOptions{}); sandbox.CodeOf(err) != sandbox.Locked {
		t.Fatalf("held twice: %v", err)
	}
	time.Sleep(2500 * time.Millisecond)
	if err := held.Context().Err(); err != nil {
		t.Fatalf("lost although it was renewed: %v", context.Cause(held.Context()))
	}
	b.fake.TakeLock("box", "tag")
	select {
	case <-held.Context().Done():
	case <-time.After(3 * time.Second):
		t.Fatal("the loss went unnoticed")
	}
	if cause := context.Cause(held.Context()); !errors.Is(cause, messaging.ErrLockLost) {
		t.Fatalf("cause %v", cause)
	}
}

// Without an answer the holder gives up by its own clock, before the term ends.
func TestLockIsGivenUpInSilence(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	nc := messagingtest.Conn(t, b.ns)
	b.fake.StartWorker(t, nc, "w1")
	info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	held, err := b.client.Lock(t.Context(), info.Target(), "tag", messaging.LockOptions{TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	<-held.Context().Done()
	if d := time.Since(begin); d > 2*time.Second {
		t.Fatalf("held for %s with a term of 2 s", d)
	}
	// The work under it is told of the loss, not of the renewal's own wait.
	_, err = b.client.Run(held.Context(), info.Target(), sandbox.Command{Shell: "true"}, messaging.RunOptions{})
	if !errors.Is(err, messaging.ErrLockLost) || sandbox.CodeOf(err) != sandbox.Fenced {
		t.Fatalf("work under the lost lock ended with %v", err)
	}
}

func TestWithSandboxDestroysAlways(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil, "w1")
	ctx, cancel := context.WithCancel(t.Context())
	want := errors.New("from use")
	err := b.client.WithSandbox(ctx, messaging.CreateRequest{Name: "tmp"}, func(context.Context, messaging.Target) error {
		cancel()
		return want
	})
	if !errors.Is(err, want) {
		t.Fatal(err)
	}
	if _, err := b.client.Get(t.Context(), messaging.Target{Sandbox: "tmp"}); sandbox.CodeOf(err) != sandbox.NotFound {
		t.Fatalf("still there: %v", err)
	}
}

// A handle of an earlier generation reaches nothing (the name was made anew).
func TestStaleHandle(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"say": say}, "w1")
	if _, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "box", Replace: true}); err != nil {
		t.Fatal(err)
	}
	_, err := b.client.Exec(t.Context(), b.target, sandbox.Command{Shell: "say"})
	if sandbox.CodeOf(err) != sandbox.Stale || b.fake.Starts() != 0 {
		t.Fatalf("%v, %d starts", err, b.fake.Starts())
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	s := b.fake.StartWorker(t, messagingtest.Conn(t, b.ns), "w1")
	got := make(chan messaging.Event, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- b.client.Events(ctx, "", func(e messaging.Event) error { got <- e; return nil })
	}()
	for {
		if err := s.PublishEvent(messaging.Event{Kind: messaging.EventDenied, Tenant: "main", Sandbox: "a.b", Data: map[string]string{"host": "x"}}); err != nil {
			t.Fatal(err)
		}
		select {
		case e := <-got:
			if e.Sandbox != "a.b" || e.Worker != "w1" || e.Data["host"] != "x" {
				t.Fatalf("%+v", e)
			}
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			return
		case <-time.After(20 * time.Millisecond): // not subscribed yet
		}
	}
}

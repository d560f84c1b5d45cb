package messaging_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

// bed is a NATS server with a fleet of fakes and a client.
type bed struct {
	ns     *server.Server
	fake   *messagingtest.Fake
	client *messaging.Client
	target messaging.Target
}

func newBed(t *testing.T, programs map[string]messagingtest.Program, workers ...messaging.WorkerID) *bed {
	t.Helper()
	b := &bed{ns: messagingtest.Server(t), fake: messagingtest.NewFake(programs)}
	for _, id := range workers {
		b.fake.StartWorker(t, messagingtest.Conn(t, b.ns), id)
	}
	b.client = b.newClient(t)
	if len(workers) > 0 {
		info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "box"})
		if err != nil {
			t.Fatal(err)
		}
		b.target = info.Target()
	}
	return b
}

func (b *bed) newClient(t *testing.T) *messaging.Client {
	t.Helper()
	c, err := messaging.NewClient(messagingtest.Conn(t, b.ns, messaging.ConnOptions("main")...), messaging.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func say(_ context.Context, p *messagingtest.Proc) int {
	fmt.Fprint(p.Stdout(), "one\n")
	fmt.Fprint(p.Stderr(), "two\n")
	fmt.Fprint(p.Stdout(), "three\n")
	return 3
}

// count prints n numbered lines with pauses.
func count(n int, every time.Duration) messagingtest.Program {
	return func(ctx context.Context, p *messagingtest.Proc) int {
		for i := range n {
			fmt.Fprintf(p.Stdout(), "line %d\n", i)
			if every > 0 {
				time.Sleep(every)
			}
			if ctx.Err() != nil {
				return 1
			}
		}
		return 0
	}
}

func counted(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func TestExecStreamsInOrderWithExitCode(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"say": say}, "w1")
	p, err := b.client.Exec(t.Context(), b.target, sandbox.Command{Shell: "say"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var both bytes.Buffer
	end, err := p.Copy(t.Context(), &both, &both)
	if err != nil {
		t.Fatal(err)
	}
	if both.String() != "one\ntwo\nthree\n" || end.Code == nil || *end.Code != 3 || end.Bytes != int64(both.Len()) {
		t.Fatalf("got %q, %+v", both.String(), end)
	}
	if m := p.Meta(); m.Worker != "w1" || m.Boot != "boot1" {
		t.Fatalf("meta %+v", m)
	}
}

// EX-12: what is cut is whole characters, and as many as fit.
func TestRunCollectsAndCutsAtACharacter(t *testing.T) {
	t.Parallel()
	text := func(_ context.Context, p *messagingtest.Proc) int {
		for _, b := range []byte("aé€😀") { // a byte at a time: no chunk is a character
			_, _ = p.Stdout().Write([]byte{b})
		}
		return 0
	}
	raw := func(_ context.Context, p *messagingtest.Proc) int {
		_, _ = p.Stdout().Write(bytes.Repeat([]byte{0x80}, 10))
		return 0
	}
	b := newBed(t, map[string]messagingtest.Program{"text": text, "raw": raw}, "w1")
	want := []string{1: "a", 2: "a", 3: "aé", 4: "aé", 5: "aé", 6: "aé€", 7: "aé€", 8: "aé€", 9: "aé€", 10: "aé€😀"}
	for most := 1; most <= 10; most++ {
		r, err := b.client.Run(t.Context(), b.target, sandbox.Command{Shell: "text"}, messaging.RunOptions{MaxOutput: int64(most)})
		if err != nil {
			t.Fatal(err)
		}
		if string(r.Stdout) != want[most] || r.Truncated != (most < 10) {
			t.Errorf("cap %d: %q truncated %v", most, r.Stdout, r.Truncated)
		}
		r, err = b.client.Run(t.Context(), b.target, sandbox.Command{Shell: "raw"}, messaging.RunOptions{MaxOutput: int64(most)})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Stdout) != most {
			t.Errorf("cap %d of bytes that are no text: %d kept", most, len(r.Stdout))
		}
	}
}

func TestLargeOutputHasTheRightHash(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	hash := sha256.New()
	data := make([]byte, 1<<20)
	big := func(_ context.Context, p *messagingtest.Proc) int {
		r := rand.NewChaCha8([32]byte{1})
		for range size / len(data) {
			_, _ = r.Read(data)
			hash.Write(data)
			_, _ = p.Stdout().Write(data)
		}
		return 0
	}
	b := newBed(t, map[string]messagingtest.Program{"big": big}, "w1")
	p, err := b.client.Exec(t.Context(), b.target, sandbox.Command{Shell: "big"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	got := sha256.New()
	if _, err := p.Copy(t.Context(), got, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Sum(nil), hash.Sum(nil)) {
		t.Fatal("the output is not what was written")
	}
}

// The worker stops sending at the window when nobody consumes, also for longer
// than a probe, and goes on when somebody does.
func TestSlowReaderHoldsTheWorker(t *testing.T) {
	t.Parallel()
	big := func(_ context.Context, p *messagingtest.Proc) int {
		_, _ = p.Stdout().Write(make([]byte, 8<<20))
		return 0
	}
	b := newBed(t, map[string]messagingtest.Program{"big": big}, "w1")
	watch := messagingtest.Conn(t, b.ns)
	var seen int
	sub, err := watch.Subscribe("_INBOX.main.>", func(m *nats.Msg) {
		if len(m.Data) > 20<<10 {
			seen += len(m.Data)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Flush(); err != nil {
		t.Fatal(err)
	}
	p, err := b.client.Exec(t.Context(), b.target, sandbox.Command{Shell: "big"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond)
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := watch.Flush(); err != nil {
		t.Fatal(err)
	}
	if seen > messaging.DefaultWindow+messaging.MaxChunk+4096 {
		t.Fatalf("%d bytes sent to a reader that consumed nothing", seen)
	}
	var n int64
	end, err := p.Copy(t.Context(), writerFunc(func(b []byte) (int, error) { n += int64(len(b)); return len(b), nil }), nil)
	if err != nil || end.Bytes != 8<<20 || n+messaging.MaxChunk != 8<<20 {
		t.Fatalf("%d bytes, %+v, %v", n, end, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestForwardedToTheOwner(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"say": say}, "w1", "w2", "w3")
	b.fake.SetOwner("w2")
	for range 5 {
		c := b.newClient(t) // knows no owner
		r, err := c.Run(t.Context(), b.target, sandbox.Command{Shell: "say"}, messaging.RunOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if string(r.Stdout) != "one\nthree\n" || string(r.Stderr) != "two\n" || r.Code != 3 || r.Meta.Worker != "w2" {
			t.Fatalf("%+v", r)
		}
	}
}

// The owner named in the record is gone: another worker finds out at once.
func TestForwardToADeadOwner(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil, "w1")
	b.fake.SetOwner("dead")
	begin := time.Now()
	if _, err := b.newClient(t).Get(t.Context(), b.target); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > time.Second {
		t.Errorf("%s until the dead owner was given up", d)
	}
}

func TestNoWorkerIsSaidSoon(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	begin := time.Now()
	_, err := b.client.List(t.Context(), messaging.ListRequest{})
	if sandbox.CodeOf(err) != sandbox.Unavailable || time.Since(begin) > 5*time.Second || !strings.Contains(err.Error(), "no worker answers") {
		t.Fatalf("%v after %s", err, time.Since(begin))
	}
	_, err = b.client.Exec(t.Context(), messaging.Target{Sandbox: "box"}, sandbox.Command{Shell: "true"})
	if sandbox.CodeOf(err) != sandbox.Unavailable {
		t.Fatal(err)
	}
}

func TestStdinSignalResize(t *testing.T) {
	t.Parallel()
	cat := func(_ context.Context, p *messagingtest.Proc) int {
		_, _ = io.Copy(p.Stdout(), p)
		for _, s := range p.Signals() {
			fmt.Fprintf(p.Stderr(), "signal %d\n", s)
		}
		fmt.Fprintf(p.Stderr(), "%d×%d\n", p.Size().Rows, p.Size().Cols)
		return 0
	}
	b := newBed(t, map[string]messagingtest.Program{"cat": cat}, "w1")
	p, err := b.client.Exec(t.Context(), b.target, sandbox.Command{Shell: "cat", Stdin: sandbox.StdinStream})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB: more than the credit
	fed := make(chan error, 1)
	go func() {
		if err := p.Signal(t.Context(), 10); err != nil {
			fed <- err
			return
		}
		if err := p.Resize(t.Context(), sandbox.TTY{Rows: 24, Cols: 80}); err != nil {
			fed <- err
			return
		}
		w := p.Stdin(t.Context())
		_, err := w.Write(data)
		fed <- errors.Join(err, w.Close())
	}()
	var out, errs bytes.Buffer
	if _, err := p.Copy(t.Context(), &out, &errs); err != nil {
		t.Fatal(err)
	}
	if err := <-fed; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), data) || errs.String() != "signal 10\n24×80\n" {
		t.Fatalf("%d bytes, %q", out.Len(), errs.String())
	}
}

func TestKillAndCancelledRun(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(100000, 10*time.Millisecond)}, "w1")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	r, err := b.client.Run(ctx, b.target, sandbox.Command{ID: "c1", Shell: "count"}, messaging.RunOptions{})
	if sandbox.CodeOf(err) != sandbox.Timeout || len(r.Stdout) == 0 {
		t.Fatalf("%v with %d bytes", err, len(r.Stdout))
	}
	info, err := b.client.WaitCommand(t.Context(), b.target, "c1")
	if err != nil || info.End == nil || info.End.Reason != sandbox.Killed {
		t.Fatalf("%+v, %v", info, err)
	}
}

func BenchmarkExec(b *testing.B) {
	ns := messagingtest.Server(b)
	fake := messagingtest.NewFake(map[string]messagingtest.Program{"true": func(context.Context, *messagingtest.Proc) int { return 0 }})
	fake.StartWorker(b, messagingtest.Conn(b, ns), "w1")
	c, err := messaging.NewClient(messagingtest.Conn(b, ns), messaging.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	info, err := c.Create(b.Context(), messaging.CreateRequest{Name: "box"})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Run(b.Context(), info.Target(), sandbox.Command{Shell: "true"}, messaging.RunOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// What is asked for with a context that has ended already is not done.
func TestEndedContextSendsNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"say": say}, "w1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.client.Destroy(ctx, b.target); sandbox.CodeOf(err) != sandbox.Canceled {
		t.Errorf("destroy: %v", err)
	}
	p, err := b.client.Exec(ctx, b.target, sandbox.Command{ID: "never", Shell: "say"})
	if sandbox.CodeOf(err) != sandbox.Canceled {
		t.Errorf("exec: %v", err)
	}
	p.Close() // and does not wait for what never began
	if _, err := b.client.Dial(ctx, b.target, 80); sandbox.CodeOf(err) != sandbox.Canceled {
		t.Errorf("dial: %v", err)
	}
	if _, err := b.client.Get(t.Context(), b.target); err != nil {
		t.Errorf("after a destroy that was not sent: %v", err)
	}
	if _, err := b.client.Follow(t.Context(), b.target, "never", messaging.FollowOptions{}); sandbox.CodeOf(err) != sandbox.NotFound {
		t.Errorf("follow a command that was not sent: %v", err)
	}
}

package messaging_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
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

// A worker that dies in mid-output is replaced within 1.5 s; nothing is lost
// and nothing comes twice.
func TestWorkerDiesInMidOutput(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(100, 10*time.Millisecond)})
	first := messagingtest.Conn(t, b.ns)
	b.fake.StartWorker(t, first, "w1")
	if info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "box"}); err != nil {
		t.Fatal(err)
	} else {
		b.target = info.Target()
	}
	p, err := b.client.Exec(t.Context(), b.target, sandbox.Command{Shell: "count"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b.fake.StartWorker(t, messagingtest.Conn(t, b.ns), "w2")
	var out bytes.Buffer
	var longest time.Duration
	last := time.Now()
	end, err := p.Copy(t.Context(), writerFunc(func(d []byte) (int, error) {
		longest = max(longest, time.Since(last))
		last = time.Now()
		if out.Len() > 100 && first.IsConnected() {
			first.Close()
		}
		return out.Write(d)
	}), nil)
	if err != nil || end.Code == nil || *end.Code != 0 {
		t.Fatalf("%+v, %v", end, err)
	}
	if out.String() != counted(100) {
		t.Fatalf("got %q", out.String())
	}
	if longest > 1500*time.Millisecond {
		t.Errorf("%s until the next byte", longest)
	}
	t.Logf("%s until the next byte", longest)
	if p.Meta().Worker != "w2" || b.fake.Starts() != 1 {
		t.Errorf("served by %s, %d starts", p.Meta().Worker, b.fake.Starts())
	}
}

// A worker whose connection is silent without being closed is given up after
// 3 s.
func TestWorkerStopsInMidOutput(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(60, 100*time.Millisecond)})
	first, freeze := messagingtest.FreezableConn(t, b.ns)
	b.fake.StartWorker(t, first, "w1")
	info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.client.Exec(t.Context(), info.Target(), sandbox.Command{Shell: "count"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b.fake.StartWorker(t, messagingtest.Conn(t, b.ns), "w2")
	var out bytes.Buffer
	var longest time.Duration
	last := time.Now()
	end, err := p.Copy(t.Context(), writerFunc(func(d []byte) (int, error) {
		longest = max(longest, time.Since(last))
		last = time.Now()
		if out.Len() > 30 {
			freeze()
		}
		return out.Write(d)
	}), nil)
	if longest > 5*time.Second {
		t.Errorf("%s until the next byte", longest)
	}
	if err != nil || end.Code == nil {
		t.Fatalf("%+v, %v", end, err)
	}
	if out.String() != counted(60) || p.Meta().Worker != "w2" {
		t.Fatalf("by %s: %q", p.Meta().Worker, out.String())
	}
}

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

// The answer to a create is lost: the copy gets it, and there is one sandbox.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"say": say}, "w1")
	b.fake.DropAnswers(messaging.OpCreate, 1)
	b.fake.DropAnswers(messaging.OpExec, 1)
	info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.client.Run(t.Context(), info.Target(), sandbox.Command{Shell: "say"}, messaging.RunOptions{})
	if err != nil || r.Code != 3 || b.fake.Starts() != 1 {
		t.Fatalf("%+v, %v, %d starts", r, err, b.fake.Starts())
	}
}

// Another boot: nothing was started, the library starts once.
func TestRestartedSandbox(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"say": say}, "w1")
	b.fake.Restart("boot2")
	r, err := b.client.Run(t.Context(), b.target, sandbox.Command{Shell: "say"}, messaging.RunOptions{})
	if err != nil || r.Meta.Boot != "boot2" || b.fake.Starts() != 1 {
		t.Fatalf("%+v, %v, %d starts", r, err, b.fake.Starts())
	}
}

// The sandbox restarts under a command: its end was not seen, and nobody
// invents one.
func TestRestartUnderACommand(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(1000, 10*time.Millisecond)})
	first := messagingtest.Conn(t, b.ns)
	b.fake.StartWorker(t, first, "w1")
	info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.client.Exec(t.Context(), info.Target(), sandbox.Command{Shell: "count"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b.fake.StartWorker(t, messagingtest.Conn(t, b.ns), "w2")
	b.fake.Restart("boot2")
	first.Close()
	if _, err := p.Wait(t.Context()); sandbox.CodeOf(err) != sandbox.OutcomeUnknown {
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

// The owner binds a start that names no boot; when its answer is lost nobody
// sends it a second time.
func TestUnboundStartIsNotRepeated(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"say": say}, "w1")
	b.fake.Restart("") // no boot to bind to
	c := b.newClient(t)
	b.fake.DropAnswers(messaging.OpExec, 1)
	messaging.Lossy(t, c, func(int) bool { return b.fake.Starts() > 0 })
	_, err := c.Exec(t.Context(), b.target, sandbox.Command{Shell: "say"})
	if sandbox.CodeOf(err) != sandbox.OutcomeUnknown || b.fake.Starts() != 1 {
		t.Fatalf("%v, %d starts", err, b.fake.Starts())
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

// Messages that are lost on the way are noticed by their offsets and asked for
// again: nothing is missing, nothing comes twice, and the end is there.
func TestLostFrames(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(200, 2*time.Millisecond)}, "w1")
	for _, every := range []int{2, 5, 50} {
		c := b.newClient(t)
		messaging.Lossy(t, c, func(n int) bool { return n > 4 && n < 250 && n%every == 0 })
		p, err := c.Exec(t.Context(), b.target, sandbox.Command{Shell: "count"})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		end, err := p.Copy(t.Context(), &out, nil)
		p.Close()
		if err != nil || end.Code == nil || out.String() != counted(200) {
			t.Fatalf("every %d lost: %d of %d bytes, %+v, %v", every, out.Len(), len(counted(200)), end, err)
		}
	}
	if b.fake.Starts() != 3 {
		t.Errorf("%d starts of 3", b.fake.Starts())
	}
}

// Connections that break again and again, the client's and the worker's, cost
// time and nothing else.
func TestReconnectsInMidOutput(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(300, 10*time.Millisecond)})
	worker := messagingtest.Conn(t, b.ns, messaging.WorkerConnOptions("w1")...)
	b.fake.StartWorker(t, worker, "w1")
	kernel := messagingtest.Conn(t, b.ns, messaging.ConnOptions("main")...)
	c, err := messaging.NewClient(kernel, messaging.Options{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := c.Create(t.Context(), messaging.CreateRequest{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Exec(t.Context(), info.Target(), sandbox.Command{Shell: "count"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 8 {
			time.Sleep(250 * time.Millisecond)
			if i%2 == 0 {
				_ = kernel.ForceReconnect()
			} else {
				_ = worker.ForceReconnect()
			}
		}
	}()
	var out bytes.Buffer
	end, err := p.Copy(t.Context(), &out, nil)
	<-done
	if err != nil || end.Code == nil || out.String() != counted(300) {
		t.Fatalf("%d of %d bytes, %+v, %v", out.Len(), len(counted(300)), end, err)
	}
	if b.fake.Starts() != 1 {
		t.Errorf("%d starts", b.fake.Starts())
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

package sandboxtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/agent"
	"shoal/sandbox"
)

var outputCases = []Case{
	{Promise: "stdout and stderr come in order, each on its stream", run: ordered},
	{ID: "EX-10", Promise: "a character that comes in pieces is whole", run: splitCharacter},
	{ID: "EX-11", Promise: "bytes that are no text are intact", run: binaryOutput},
	{ID: "EX-16", Promise: "a long line is whole", run: longLine},
	{ID: "EX-05", Promise: "a cut stream is never success, and the rest is there", run: cutStream},
	{ID: "EX-20", Promise: "following again from an offset gives the same bytes", run: sameBytes},
	{ID: "EX-15", Promise: "a reader that stops holds the command, and a kill still works", run: blocks},
	{ID: "EX-13", Promise: "output that may be dropped is dropped with its count", run: drops},
	{Promise: "output beyond its cap is cut and said to be", run: capped},
	{Promise: "watchers see the output and govern nothing", run: watches},
	{ID: "EX-22", Promise: "a command can be followed by its id after its end", run: followEnded},
	{ID: "EX-19", Promise: "a silent command bears any number of new owners", run: silentThrough},
	{ID: "EX-22", Promise: "a long command can be followed by its id late in its life", run: followLate},
	{Promise: "much output has the right hash", run: bulk},
	{Promise: "of many commands each ends once with all its output", run: many},
	{Promise: "the agent stays small", Needs: func(s *Subject) bool { return s.PidsLimit }, run: agentSize},
}

func ordered(t *testing.T, x *suite) {
	st := x.box(t).start(t, sandbox.Command{Shell: "for i in 1 2 3; do echo o$i; sleep 0.05; echo e$i >&2; sleep 0.05; done"})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var got []string
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			t.Fatal(explain(err))
		}
		if e.Kind == agent.EventEnd {
			break
		}
		if e.Kind == agent.EventOutput {
			prefix := map[sandbox.Stream]string{sandbox.Stdout: "o", sandbox.Stderr: "e"}[e.Stream]
			if !strings.HasPrefix(string(e.Data), prefix) {
				t.Errorf("%q on stream %d", e.Data, e.Stream)
			}
			got = append(got, strings.TrimSpace(string(e.Data)))
		}
	}
	if all := strings.Join(got, " "); all != "o1 e1 o2 e2 o3 e3" {
		t.Errorf("order %q", all)
	}
}

func splitCharacter(t *testing.T, x *suite) {
	r := x.box(t).run(t, `for s in 1 2; do for b in '\342' '\211' '\244'; do printf $b >&$s; sleep 0.1; done; done`)
	if r.out.String() != "≤" || r.err.String() != "≤" {
		t.Errorf("output %q, %q; want ≤ on each", r.out.String(), r.err.String())
	}
}

func binaryOutput(t *testing.T, x *suite) {
	r := x.box(t).run(t, "head -c 40960 /dev/urandom > bin; cat bin; sha256sum bin >&2")
	sum := sha256.Sum256(r.out.Bytes())
	if r.out.Len() != 40960 || !strings.HasPrefix(r.err.String(), hex.EncodeToString(sum[:])) {
		t.Errorf("%d bytes with another hash", r.out.Len())
	}
}

func longLine(t *testing.T, x *suite) {
	r := x.box(t).run(t, "head -c 3145728 /dev/zero | tr '\\0' x; echo")
	if want := strings.Repeat("x", 3<<20) + "\n"; r.out.String() != want || r.end.Bytes != int64(len(want)) {
		t.Errorf("%d bytes, end at %d; want %d", r.out.Len(), r.end.Bytes, len(want))
	}
}

func cutStream(t *testing.T, x *suite) {
	b := x.box(t)
	c := command(sandbox.Command{Shell: "for i in $(seq 20); do echo $i; sleep 0.05; done; exit 4"})
	st := b.start(t, c)
	var got bytes.Buffer
	for got.Len() < 10 {
		e, err := st.Recv(t.Context())
		if err != nil {
			t.Fatal(explain(err))
		}
		if e.Kind == agent.EventOutput {
			got.Write(e.Data)
		}
	}
	_ = b.s.Close() // the attachment dies in the middle
	if _, err := recvEnd(t, st); err == nil {
		t.Fatal("a cut stream looks like a success")
	} else {
		wantError(t, err, sandbox.OutcomeUnknown)
	}
	b.attach(t)
	list, err := b.s.List(t.Context())
	if err != nil {
		t.Fatal(explain(err))
	}
	found := false
	for _, i := range list {
		found = found || i.ID == c.ID
	}
	if !found {
		t.Fatalf("the command is not listed: %+v", list)
	}
	again, err := b.s.Follow(t.Context(), agent.FollowRequest{ID: c.ID, Offset: int64(got.Len())})
	if err != nil {
		t.Fatal(explain(err))
	}
	defer again.Close()
	r := drain(t, again)
	r.wantCode(t, 4)
	got.Write(r.out.Bytes())
	if lines := strings.Fields(got.String()); len(lines) != 20 || lines[0] != "1" || lines[19] != "20" {
		t.Errorf("output in two parts: %q", got.String())
	}
}

// recvEnd receives until the end or an error.
func recvEnd(t *testing.T, st *agent.Stream) (*sandbox.End, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			return nil, err
		}
		if e.Kind == agent.EventEnd {
			return e.End, nil
		}
	}
}

func sameBytes(t *testing.T, x *suite) {
	b := x.box(t)
	c := command(sandbox.Command{Shell: "seq 2000"})
	st := b.start(t, c)
	if _, err := recvEnd(t, st); err != nil { // nothing is acknowledged
		t.Fatal(explain(err))
	}
	var whole bytes.Buffer
	for i := 1; i <= 2000; i++ {
		whole.WriteString(strconv.Itoa(i) + "\n")
	}
	for k := range 10 {
		from := int64(k * 700)
		again, err := b.s.Follow(t.Context(), agent.FollowRequest{ID: c.ID, Offset: from})
		if err != nil {
			t.Fatal(explain(err))
		}
		var got bytes.Buffer
		for {
			e, err := again.Recv(t.Context())
			if err != nil {
				t.Fatal(explain(err))
			}
			if e.Kind == agent.EventEnd {
				break
			}
			if e.Kind == agent.EventOutput {
				got.Write(e.Data)
			}
		}
		again.Close()
		if !bytes.Equal(got.Bytes(), whole.Bytes()[from:]) {
			t.Errorf("from %d: %d bytes that differ", from, got.Len())
		}
	}
}

func blocks(t *testing.T, x *suite) {
	b := x.box(t)
	c := command(sandbox.Command{Shell: "yes | head -c 9000000; echo over > over", Tag: "slow"})
	st := b.start(t, c)
	time.Sleep(700 * time.Millisecond) // nobody reads
	if got := b.output(t, "cat over 2>/dev/null || echo waits"); got != "waits" {
		t.Error("9 MB went somewhere although nobody read")
	}
	k, err := b.s.Kill(t.Context(), sandbox.KillRequest{Tags: []sandbox.Tag{"slow"}})
	if err != nil || len(k.Survivors) > 0 {
		t.Fatalf("kill: %+v, %v", k, explain(err))
	}
	r := drain(t, st)
	if r.wantReason(t, sandbox.Killed); r.gaps != 0 || int64(r.out.Len()) != r.end.Bytes {
		t.Errorf("%d bytes and %d in gaps of %d; want all that was written, without gaps", r.out.Len(), r.gaps, r.end.Bytes)
	}
}

func drops(t *testing.T, x *suite) {
	const size = 9_000_000
	b := x.box(t)
	st := b.start(t, sandbox.Command{Shell: "yes | head -c 9000000; echo over > dropped", Overflow: sandbox.OverflowDrop})
	eventually(t, "the command ends although nobody reads", func() bool { return b.output(t, "cat dropped 2>/dev/null || true") == "over" })
	r := drain(t, st)
	r.wantCode(t, 0)
	if r.gaps == 0 || r.gaps+int64(r.out.Len()) != size || r.end.Bytes != size {
		t.Errorf("%d bytes and %d in gaps, end at %d; want %d together and some of each", r.out.Len(), r.gaps, r.end.Bytes, size)
	}
}

func capped(t *testing.T, x *suite) {
	b := x.box(t)
	for most, truncated := range map[int64]bool{4: true, 9: true, 10: false, 11: false} {
		r := drain(t, b.start(t, sandbox.Command{Shell: "printf 12345; printf 67890 >&2", MaxOutput: most}))
		r.wantCode(t, 0)
		n := int64(r.out.Len() + r.err.Len())
		if r.end.Truncated != truncated || n != min(most, 10) || r.end.Bytes != n {
			t.Errorf("cap %d: %d bytes, end at %d, truncated %t; want %d, %t", most, n, r.end.Bytes, r.end.Truncated, min(most, 10), truncated)
		}
	}
}

func watches(t *testing.T, x *suite) {
	b := x.box(t)
	c := command(sandbox.Command{Shell: "sleep 0.3; seq 1000"})
	st := b.start(t, c)
	w, err := b.s.Follow(t.Context(), agent.FollowRequest{ID: c.ID, Offset: -1, Watch: true})
	if err != nil {
		t.Fatal(explain(err))
	}
	defer w.Close()
	seen := make(chan result, 1)
	go func() { seen <- follow(w) }()
	main := drain(t, st)
	watched := <-seen
	if !bytes.Equal(main.out.Bytes(), watched.out.Bytes()) || watched.end.Reason != sandbox.Exited {
		t.Errorf("the watcher saw %d bytes and %s, the reader %d", watched.out.Len(), show(watched.end), main.out.Len())
	}
}

func followEnded(t *testing.T, x *suite) {
	b := x.box(t)
	c := command(sandbox.Command{Shell: "echo kept; exit 6"})
	if _, err := recvEnd(t, b.start(t, c)); err != nil {
		t.Fatal(explain(err))
	}
	b.attach(t) // another owner
	if end, err := b.s.Wait(t.Context(), c.ID); err != nil || end.Code == nil || *end.Code != 6 {
		t.Errorf("wait: %s, %v; want exit 6", show(end), explain(err))
	}
	again, err := b.s.Follow(t.Context(), agent.FollowRequest{ID: c.ID, Offset: -1})
	if err != nil {
		t.Fatal(explain(err))
	}
	defer again.Close()
	r := drain(t, again)
	if r.wantCode(t, 6); r.out.String() != "kept\n" {
		t.Errorf("output %q", r.out.String())
	}
	_, err = b.s.Follow(t.Context(), agent.FollowRequest{ID: "never-started"})
	wantError(t, err, sandbox.NotFound)
}

func silentThrough(t *testing.T, x *suite) {
	b := x.box(t)
	length := lasting(3*time.Second, time.Minute)
	c := command(sandbox.Command{Shell: fmt.Sprintf("sleep %d; exit 8", int(length.Seconds())), Timeout: sandbox.Millis(2 * limit)})
	st := b.start(t, c)
	for range 8 {
		b.attach(t)
		var err error
		if st, err = b.s.Follow(t.Context(), agent.FollowRequest{ID: c.ID}); err != nil {
			t.Fatal(explain(err))
		}
		t.Cleanup(st.Close)
	}
	r := drain(t, st)
	r.wantCode(t, 8)
}

func followLate(t *testing.T, x *suite) {
	b := x.box(t)
	half := lasting(time.Second, 150*time.Second)
	script := fmt.Sprintf("echo early; sleep %d; echo late; exit 9", int(2*half.Seconds()))
	c := command(sandbox.Command{Shell: script, Background: true})
	b.start(t, c).Close()
	time.Sleep(half)
	b.attach(t)
	st, err := b.s.Follow(t.Context(), agent.FollowRequest{ID: c.ID, Offset: -1})
	if err != nil {
		t.Fatal(explain(err))
	}
	defer st.Close()
	r := drain(t, st)
	if r.wantCode(t, 9); r.out.String() != "early\nlate\n" {
		t.Errorf("output %q", r.out.String())
	}
}

func bulk(t *testing.T, x *suite) {
	size := int64(8 << 20)
	if x.Heavy {
		size = 64 << 20
	}
	b := x.box(t)
	st := b.start(t, sandbox.Command{Shell: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' z", size), Timeout: 60_000})
	hash, n := sha256.New(), int64(0)
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			t.Fatalf("after %d bytes: %v", n, explain(err))
		}
		if e.Kind == agent.EventEnd {
			break
		}
		if e.Kind == agent.EventOutput {
			_, _ = hash.Write(e.Data)
			n += int64(len(e.Data))
			if err := st.Ack(ctx, n); err != nil {
				t.Fatal(explain(err))
			}
		}
	}
	want := sha256.New()
	_, _ = io.Copy(want, io.LimitReader(repeat('z'), size))
	if n != size || !bytes.Equal(hash.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes of %d, or another hash", n, size)
	}
}

// many runs short commands, several at a time where the engine bears it, beside
// long ones that go on through all of it.
func many(t *testing.T, x *suite) {
	short, long, atOnce := 40, 4, 1 // gVisor's release of 2022 dies of many at once
	if x.Heavy {
		short, long = 100, 5
	}
	if x.PidsLimit {
		atOnce = 16
	}
	if whole {
		short, long = 2000, 50
	}
	b := x.box(t)
	const lines = "1\n2\n3\n4\n5\n"
	streams := make([]*agent.Stream, long)
	for i := range streams {
		streams[i] = b.start(t, sandbox.Command{Shell: "for i in 1 2 3 4 5; do echo $i; sleep 0.4; done", Timeout: sandbox.Millis(time.Hour)})
	}
	inParallel(atOnce, short, func(i int) { b.one(t, i) })
	for _, st := range streams {
		if r := drain(t, st); r.out.String() != lines {
			t.Errorf("a long command printed %q, end %s", r.out.String(), show(r.end))
		}
	}
}

// inParallel calls fn for 0 to n-1, so many at a time.
func inParallel(atOnce, n int, fn func(int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				fn(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// one runs a command whose output and code tell it from the others. It may be
// called on any goroutine.
func (b *attached) one(t *testing.T, i int) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	text, code := strconv.Itoa(i), i%250
	st, err := b.s.Start(ctx, agent.StartRequest{Boot: b.s.Hello().Boot, Command: command(sandbox.Command{
		Shell: "echo " + text + "; exit " + strconv.Itoa(code),
	})})
	if err != nil {
		t.Errorf("start %d: %v", i, explain(err))
		return
	}
	defer st.Close()
	if r := follow(st); r.out.String() != text+"\n" || r.end.Code == nil || *r.end.Code != code {
		t.Errorf("command %d: output %q, end %s", i, r.out.String(), show(r.end))
		return
	}
	if _, err := st.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("command %d: after its end %v", i, explain(err))
	}
}

// agentSize runs commands in a sandbox of its own, whose ends are all taken, and
// looks at what is left once the agent has had a quiet moment to give memory
// back.
func agentSize(t *testing.T, x *suite) {
	const most = 12 << 10 // KiB
	b := x.fresh(t)
	for i := range 200 {
		b.one(t, i)
	}
	size := func() int {
		kib := b.output(t, `for p in /proc/[0-9]*; do
  [ "$(cat $p/comm)" = agent ] && sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' $p/status; done 2>/dev/null; true`)
		n, err := strconv.Atoi(kib)
		if err != nil {
			t.Fatalf("the agent's size is %q", kib)
		}
		return n
	}
	n := size()
	for end := time.Now().Add(limit); n > most && time.Now().Before(end); n = size() {
		time.Sleep(limit / 5)
	}
	if t.Logf("the agent has %d KiB", n); n > most {
		t.Errorf("more than %d KiB", most)
	}
}

// repeat is an endless reader of one byte.
type repeat byte

func (r repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

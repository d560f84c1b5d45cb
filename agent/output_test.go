package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"shoal/agent"
	"shoal/sandbox"
)

// recvUntil receives until want says so, acknowledging nothing.
func recvUntil(t *testing.T, st *agent.Stream, want func(agent.Event) bool) agent.Event {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if want(e) {
			return e
		}
	}
}

// silent reports that nothing comes for a moment.
func silent(t *testing.T, st *agent.Stream) bool {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	_, err := st.Recv(ctx)
	return sandbox.CodeOf(err) == sandbox.Timeout
}

// TestSlowReaderBlocksTheCommand fills the ring of a command that must not lose
// a byte and takes everything later.
func TestSlowReaderBlocksTheCommand(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	const size = 8 << 20
	st := start(t, s, shell("head -c 8388608 /dev/zero | tr '\\0' 'x'; echo done >&2"))
	var sent int64
	for sent < agent.MaxWindow {
		e := recvUntil(t, st, func(e agent.Event) bool { return e.Kind == agent.EventOutput })
		sent += int64(len(e.Data))
	}
	if sent != agent.MaxWindow || !silent(t, st) {
		t.Errorf("%d bytes without an acknowledgement, the window is %d", sent, agent.MaxWindow)
	}
	list, err := s.List(t.Context())
	if err != nil || list[0].State != sandbox.CommandRunning || list[0].Next-list[0].Oldest > 2<<20 {
		t.Errorf("the command does not wait: %+v, %v", list, err)
	}
	// Others are not held up by it.
	if c := drain(t, start(t, s, shell("echo other"))); c.out != "other\n" {
		t.Errorf("another command: %+v", c)
	}
	if err := st.Ack(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	c := drain(t, st)
	if got := sent + int64(len(c.out)); got != size || c.gaps != 0 || c.err != "done\n" || c.end.Truncated {
		t.Errorf("%d bytes, gaps of %d, %q, %+v", got, c.gaps, c.err, c.end)
	}
}

// TestDropReportsTheGap lets a command that may lose output run ahead.
func TestDropReportsTheGap(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	const size = 6 << 20
	c := shell("seq -f %07g 1 786432; sleep 0.5; echo last")
	c.Overflow = sandbox.OverflowDrop
	st := start(t, s, c)
	var sent, gaps, at int64
	for sent < agent.MaxWindow {
		e := recvUntil(t, st, func(e agent.Event) bool { return e.Kind != agent.EventRole })
		at = e.Offset + int64(len(e.Data)) + e.Bytes
		sent, gaps = sent+int64(len(e.Data)), gaps+e.Bytes
	}
	end, err := s.Wait(t.Context(), c.ID)
	if err != nil || end.Bytes != size+5 {
		t.Fatalf("the command did not run on: %+v, %v", end, err)
	}
	if err := st.Ack(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	got := drain(t, st)
	gaps += got.gaps
	if gaps == 0 || sent+gaps+int64(len(got.out)) != size+5 || !strings.HasSuffix(got.out, "last\n") {
		t.Errorf("%d + gaps of %d + %d of %d bytes", sent, gaps, len(got.out), size+5)
	}
	if kept := int64(len(got.out)); kept > 2<<20 || kept < 1<<20 {
		t.Errorf("%d bytes kept", kept)
	}
}

// TestEndDoesNotWaitForAReader kills a blocked command, whose output nobody takes.
func TestEndDoesNotWaitForAReader(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	c := shell("yes")
	start(t, s, c)
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) { // until its ring is full
		list, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if list[0].Next == 2<<20 {
			break
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("the ring does not fill: %+v", list[0])
		}
	}
	r, err := s.Kill(t.Context(), sandbox.KillRequest{IDs: []sandbox.CommandID{c.ID}})
	if err != nil || len(r.Survivors) != 0 { // its end is waited for below, however slow the scan is here
		t.Fatalf("kill %+v, %v", r, err)
	}
	st, err := s.Follow(t.Context(), agent.FollowRequest{ID: c.ID, Offset: 0})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	got := drain(t, st)
	if got.gaps != 0 || strings.Trim(got.out, "y\n") != "" || got.end.Reason != sandbox.Killed || got.end.By != "kill" {
		t.Errorf("gaps %d, end %+v", got.gaps, got.end)
	}
}

// TestFollowFromAnyOffset follows again and again from different offsets.
func TestFollowFromAnyOffset(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	c := shell("for i in $(seq 200); do echo $i; echo e$i >&2; done; exit 9")
	st := start(t, s, c)
	end := recvUntil(t, st, func(e agent.Event) bool { return e.Kind == agent.EventEnd })
	whole := followAll(t, s, c.ID, 0)
	if int64(len(whole)) != end.Offset {
		t.Fatalf("%d bytes of %d", len(whole), end.Offset)
	}
	for _, from := range []int{0, 1, len(whole) / 3, len(whole) - 1, len(whole)} {
		if got := followAll(t, s, c.ID, int64(from)); !bytes.Equal(got, whole[from:]) {
			t.Errorf("from %d: %d bytes in place of %d", from, len(got), len(whole)-from)
		}
	}
	_, err := s.Follow(t.Context(), agent.FollowRequest{ID: c.ID, Offset: end.Offset + 1})
	if !isCode(err, sandbox.Invalid) {
		t.Errorf("beyond the end: %v", err)
	}
}

func followAll(t *testing.T, s *agent.Session, id sandbox.CommandID, from int64) []byte {
	t.Helper()
	st, err := s.Follow(t.Context(), agent.FollowRequest{ID: id, Offset: from, Watch: true})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var all []byte
	for {
		e, err := st.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch e.Kind {
		case agent.EventOutput:
			all = append(all, e.Data...)
		case agent.EventGap:
			t.Fatalf("a gap of %d", e.Bytes)
		case agent.EventEnd:
			return all
		}
	}
}

// TestPrimaryIsTakenOver lets a second reader take a command over from the
// first, which then governs nothing.
func TestPrimaryIsTakenOver(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	c := shell("cat")
	c.Stdin = sandbox.StdinStream
	first := start(t, s, c)
	watcher, err := s.Follow(t.Context(), agent.FollowRequest{ID: c.ID, Watch: true})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	second, err := s.Follow(t.Context(), agent.FollowRequest{ID: c.ID})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if e := recvUntil(t, first, func(e agent.Event) bool { return e.Kind == agent.EventRole }); e.Primary {
		t.Error("the first reader is still the primary")
	}
	if err := watcher.Stdin(t.Context(), 0, []byte("not from a watcher\n")); err != nil {
		t.Fatal(err)
	}
	if err := second.Stdin(t.Context(), 0, []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if err := second.CloseStdin(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	if got := drain(t, second); got.out != "hello\n" {
		t.Errorf("output %q", got.out)
	}
	for _, st := range []*agent.Stream{first, watcher} {
		e := recvUntil(t, st, func(e agent.Event) bool { return e.Kind == agent.EventEnd })
		if e.Offset != 6 {
			t.Errorf("end at %d", e.Offset)
		}
	}
}

// TestStdinByOffsets streams input larger than the credit with repeats.
func TestStdinByOffsets(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	c := shell("sleep 0.2; sha256sum | cut -d' ' -f1")
	c.Stdin = sandbox.StdinStream
	st := start(t, s, c)
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
	sum := sha256.Sum256(data)
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	var sent int64
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == agent.EventEnd {
			break
		}
		if e.Kind == agent.EventOutput {
			if got, want := strings.TrimSpace(string(e.Data)), hexOf(sum[:]); got != want {
				t.Errorf("hash %s, want %s", got, want)
			}
		}
		if e.Kind != agent.EventInput || e.Closed {
			continue
		}
		if e.Credit > 256<<10 {
			t.Errorf("a credit of %d", e.Credit)
		}
		if e.Offset < sent { // on its way already
			continue
		}
		piece := data[e.Offset:min(int64(len(data)), e.Offset+e.Credit)]
		for range 2 { // the second is dropped
			if err := st.Stdin(ctx, e.Offset, piece); err != nil {
				t.Fatal(err)
			}
		}
		sent = e.Offset + int64(len(piece))
		if e.Offset == int64(len(data)) {
			if err := st.CloseStdin(ctx, e.Offset); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

// TestTerminal checks size, resize, signals by key and by number, in order.
func TestTerminal(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	c := sandbox.Command{
		ID: "tty", Stdin: sandbox.StdinStream, TTY: &sandbox.TTY{Rows: 30, Cols: 100},
		Shell: `stty -echo; stty size; trap 'echo int' INT; trap 'stty size' WINCH; trap 'echo usr; exit 5' USR1; echo ready; while :; do sleep 0.05; done`,
	}
	st := start(t, s, c)
	expect := func(text string) {
		t.Helper()
		var got string
		recvUntil(t, st, func(e agent.Event) bool {
			got += string(e.Data)
			return strings.Contains(got, text)
		})
	}
	expect("30 100\r\nready")
	if err := st.Resize(t.Context(), 1, sandbox.TTY{Rows: 40, Cols: 120}); err != nil {
		t.Fatal(err)
	}
	expect("40 120")
	if err := st.Stdin(t.Context(), 0, []byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	expect("int")
	const usr1 = 10
	if err := st.Signal(t.Context(), 1, usr1); err != nil { // an old number: dropped
		t.Fatal(err)
	}
	if !silent(t, st) {
		t.Error("a signal with a used number came through")
	}
	if err := st.Signal(t.Context(), 2, usr1); err != nil {
		t.Fatal(err)
	}
	expect("usr")
	if e := recvUntil(t, st, func(e agent.Event) bool { return e.Kind == agent.EventEnd }); e.End.Code == nil || *e.End.Code != 5 {
		t.Errorf("end %+v", e.End)
	}
}

// TestRecvCanBeInterrupted checks that a bounded Recv loses nothing.
func TestRecvCanBeInterrupted(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	st := start(t, s, shell("for i in $(seq 40); do printf %1000d $i; sleep 0.01; done"))
	var n int
	for {
		ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
		e, err := st.Recv(ctx)
		stop()
		switch {
		case sandbox.CodeOf(err) == sandbox.Timeout:
			continue
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			t.Fatal(err)
		case e.Kind == agent.EventOutput:
			n += len(e.Data)
		case e.Kind == agent.EventEnd && n != 40_000:
			t.Errorf("%d bytes", n)
		}
	}
}

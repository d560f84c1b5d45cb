package sandboxtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"shoal/agent"
	"shoal/sandbox"
)

var execCases = []Case{
	{Promise: "exit codes and signals are told apart", run: exits},
	{ID: "EX-01", Promise: "a command ends with its main process although a child holds its output", run: heldOutput},
	{Promise: "a background command keeps what it leaves", run: background},
	{ID: "EX-04", Promise: "a command ends although its open stdin is never closed", run: openStdin},
	{ID: "EX-07", Promise: "what cannot be started is a typed error without output", run: startFailures},
	{ID: "EX-09", Promise: "a sandbox without a free process says so", Needs: func(s *Subject) bool { return s.PidsLimit }, run: noProcess},
	{ID: "EX-24", Promise: "a background command has no time limit of its own", run: backgroundLimit},
	{ID: "EX-25", Promise: "a time limit ends everything the command started", run: timesOut},
	{ID: "EX-28", Promise: "stdin that nobody gives is at its end", run: noStdin},
	{ID: "EX-29", Promise: "the same command id starts nothing twice", run: idempotent},
	{ID: "EX-30", Promise: "long scripts run or are refused before the start", run: longScripts},
	{ID: "EX-32", Promise: "a terminal without input is at its end", run: terminalEOF},
	{Promise: "a terminal has its size", run: terminalSize},
	{Promise: "a program sees that its terminal was resized", run: terminalResize},
	{Promise: "keys reach a program as signals", run: terminalKeys},
	{ID: "EX-33", Promise: "a kill by the command itself and a time limit are told apart", run: causes},
	{ID: "EX-33", Promise: "the end for want of memory is named", Needs: isReal, run: outOfMemory},
	{ID: "EX-02", Promise: "all of a long stdin arrives, then its end", run: longStdin},
	{Promise: "stdin pieces out of place are dropped, repeats do no harm", run: stdinOffsets},
	{Promise: "a command gets exactly the promised environment", run: environment},
	{Promise: "commands run beside each other", run: parallel},
	{ID: "KL-12", Promise: "a failed start leaves no record", run: noPhantom},
	{Promise: "a port inside is reached by a forwarded connection", run: forwards},
}

func exits(t *testing.T, x *suite) {
	b := x.box(t)
	for _, code := range []int{0, 1, 126, 127, 137, 255} {
		r := b.run(t, fmt.Sprintf("exit %d", code))
		r.wantCode(t, code)
	}
	for signal := range map[int]bool{2: true, 9: true, 15: true} {
		r := b.run(t, fmt.Sprintf("kill -%d $$; sleep 5", signal))
		if r.wantReason(t, sandbox.Signaled); r.end.Signal != signal {
			t.Errorf("signal %d, want %d", r.end.Signal, signal)
		}
	}
	r := drain(t, b.start(t, sandbox.Command{Argv: []string{"printf", "%s|", "a b", "", "$HOME"}}))
	if r.wantCode(t, 0); r.out.String() != "a b||$HOME|" {
		t.Errorf("argv was not passed as it is: %q", r.out.String())
	}
}

func heldOutput(t *testing.T, x *suite) {
	b := x.box(t)
	r := b.run(t, "(sleep 5; echo late) & echo hi; exit 3")
	r.wantCode(t, 3)
	if r.out.String() != "hi\n" || r.took > 3*time.Second {
		t.Errorf("output %q after %s, want hi at once", r.out.String(), r.took)
	}
	if !r.end.Held {
		t.Error("the end does not say that a child still held the output")
	}
	if r := b.run(t, "echo hi"); r.end.Held {
		t.Error("an ordinary end says that a child held the output")
	}
}

func background(t *testing.T, x *suite) {
	b := x.box(t)
	st := b.start(t, sandbox.Command{Shell: "(sleep 0.5; echo done > left) & echo started", Background: true})
	if r := drain(t, st); r.end.Reason != sandbox.Exited {
		t.Errorf("end %s", show(r.end))
	}
	eventually(t, "what the background command left has run", func() bool { return b.output(t, "cat left 2>/dev/null || true") == "done" })
}

func openStdin(t *testing.T, x *suite) {
	b := x.box(t)
	r := drain(t, b.start(t, sandbox.Command{Shell: "echo hi", Stdin: sandbox.StdinStream}))
	if r.wantCode(t, 0); r.took > 3*time.Second {
		t.Errorf("it took %s", r.took)
	}
	r = drain(t, b.start(t, sandbox.Command{Shell: "cat", Stdin: sandbox.StdinStream, Timeout: 1000}))
	if r.wantReason(t, sandbox.TimedOut); r.took > 4*time.Second {
		t.Errorf("a time limit of 1 s came after %s", r.took)
	}
}

func startFailures(t *testing.T, x *suite) {
	b := x.box(t)
	b.output(t, "echo text > plain; echo '#!/nowhere/sh' > script; chmod 755 script")
	for what, c := range map[string]sandbox.Command{
		"cwd that is missing":    {Shell: "true", Cwd: "/workspace/nowhere"},
		"cwd that is a file":     {Shell: "true", Cwd: "/workspace/plain"},
		"missing program":        {Argv: []string{"nosuchprogram"}},
		"missing path":           {Argv: []string{"/no/such/program"}},
		"file without the right": {Argv: []string{"./plain"}},
		"script without shell":   {Argv: []string{"./script"}},
	} {
		_, err := b.try(t, c)
		e := sandbox.AsError(err)
		if e == nil || e.Code != sandbox.StartFailed || e.Reason == "" {
			t.Errorf("%s: %v, want start_failed with a reason", what, explain(err))
		}
	}
	r := b.run(t, "nosuchprogram") // by the shell, which does start
	if r.wantCode(t, 127); r.err.Len() == 0 {
		t.Error("the shell's word on a missing program is lost")
	}
}

func backgroundLimit(t *testing.T, x *suite) {
	c := sandbox.Command{ID: "x", Shell: "true", Background: true}.WithDefaults()
	if c.Timeout != 0 {
		t.Errorf("a background command gets a limit of %d ms", c.Timeout)
	}
	b := x.box(t)
	script := fmt.Sprintf("sleep %d; echo alive", int(lasting(3*time.Second, 90*time.Second).Seconds()))
	st := b.start(t, sandbox.Command{Shell: script, Background: true})
	if r := drain(t, st); r.out.String() != "alive\n" {
		t.Errorf("output %q, end %s", r.out.String(), show(r.end))
	}
}

func timesOut(t *testing.T, x *suite) {
	b := x.box(t)
	marker := "97531"
	for _, script := range []string{"sleep " + marker, "trap '' TERM; sleep " + marker + " & wait", "setsid sleep " + marker + " & sleep " + marker} {
		asked := time.Now() // the command's time begins later, and the word of its start comes later still
		r := drain(t, b.start(t, sandbox.Command{Shell: script, Timeout: 700}))
		r.wantReason(t, sandbox.TimedOut)
		if all := time.Since(asked); all < 700*time.Millisecond || r.took > 20*time.Second {
			t.Errorf("%s: a limit of 0.7 s came %s after it was asked for, %s after its start", script, all, r.took)
		}
		b.wantNone(t, marker)
	}
}

// wantNone fails when a sleep with this argument runs.
func (b *attached) wantNone(t *testing.T, argument string) {
	t.Helper()
	if n := b.sleeps(t, argument); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}

// sleeps counts the sleeps with this argument. The brackets keep the search from
// finding itself, and the list is read once: a process costs gVisor 20 times as much.
func (b *attached) sleeps(t *testing.T, argument string) int {
	t.Helper()
	count := `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -o "slee[p] ` + argument + ` " | wc -l`
	n, err := strconv.Atoi(b.output(t, count))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func noStdin(t *testing.T, x *suite) {
	b := x.box(t)
	r := b.run(t, "cat; echo $?; python3 -c 'import sys; print(repr(sys.stdin.read()))'")
	if r.wantCode(t, 0); r.out.String() != "0\n''\n" || r.took > 5*time.Second {
		t.Errorf("output %q after %s", r.out.String(), r.took)
	}
}

func idempotent(t *testing.T, x *suite) {
	b := x.box(t)
	c := command(sandbox.Command{Shell: "echo ran >> ran; sleep 0.3; echo out", Tag: "once"})
	for range 3 { // while it runs, and after its end
		r := drain(t, b.start(t, c))
		if r.wantCode(t, 0); !strings.HasSuffix(r.out.String(), "out\n") {
			t.Errorf("output %q", r.out.String())
		}
	}
	if n := b.output(t, "wc -l < ran"); n != "1" {
		t.Errorf("it ran %s times", n)
	}
	other := c
	other.Shell = "echo other >> ran"
	_, err := b.try(t, other)
	wantError(t, err, sandbox.Conflict)
}

func longScripts(t *testing.T, x *suite) {
	b := x.box(t)
	for _, size := range []int{100 << 10, 300 << 10} {
		st, err := b.try(t, sandbox.Command{Shell: "true " + strings.Repeat("x", size) + "; echo ran"})
		if err != nil {
			if code := sandbox.CodeOf(err); code != sandbox.TooLarge && code != sandbox.Invalid && (code != sandbox.StartFailed || sandbox.AsError(err).Reason == "") {
				t.Errorf("%d bytes: %v, want invalid, too_large or start_failed", size, explain(err))
			}
			continue
		}
		r := drain(t, st)
		if r.wantCode(t, 0); r.out.String() != "ran\n" {
			t.Errorf("%d bytes: output %q", size, r.out.String())
		}
	}
}

func terminalEOF(t *testing.T, x *suite) {
	r := drain(t, x.box(t).start(t, sandbox.Command{Shell: "cat; echo ended", TTY: &sandbox.TTY{Rows: 24, Cols: 80}, Timeout: 5000}))
	if r.wantCode(t, 0); !strings.Contains(r.out.String(), "ended") {
		t.Errorf("output %q", r.out.String())
	}
}

func terminalSize(t *testing.T, x *suite) {
	r := drain(t, x.box(t).start(t, sandbox.Command{Shell: "stty size; echo $TERM; tty -s && echo terminal", TTY: &sandbox.TTY{Rows: 30, Cols: 90}}))
	r.wantCode(t, 0)
	if lines := strings.Fields(r.out.String()); len(lines) != 4 || lines[0] != "30" || lines[1] != "90" || lines[2] == "" || lines[3] != "terminal" {
		t.Errorf("output %q", r.out.String())
	}
}

// onTerminal starts a script on a terminal and waits for the word up.
func onTerminal(t *testing.T, x *suite, script string) *agent.Stream {
	t.Helper()
	st := x.box(t).start(t, sandbox.Command{
		Shell: script, TTY: &sandbox.TTY{Rows: 30, Cols: 90}, Stdin: sandbox.StdinStream, Timeout: 15_000,
	})
	await(t, st, "up")
	return st
}

// await receives until the output holds text.
func await(t *testing.T, st *agent.Stream, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var seen strings.Builder
	for !strings.Contains(seen.String(), text) {
		e, err := st.Recv(ctx)
		if err != nil || e.Kind == agent.EventEnd {
			t.Fatalf("waiting for %q after %q: %+v, %v", text, seen.String(), e, explain(err))
		}
		seen.Write(e.Data)
	}
}

func terminalResize(t *testing.T, x *suite) {
	st := onTerminal(t, x, `trap 'stty size; exit 5' WINCH; echo up; while :; do sleep 0.1; done`)
	if err := st.Resize(t.Context(), 1, sandbox.TTY{Rows: 40, Cols: 120}); err != nil {
		t.Fatal(explain(err))
	}
	r := drain(t, st)
	if r.wantCode(t, 5); !strings.Contains(r.out.String(), "40 120") {
		t.Errorf("output %q", r.out.String())
	}
}

func terminalKeys(t *testing.T, x *suite) {
	st := onTerminal(t, x, `trap 'exit 5' INT; echo up; while :; do sleep 0.1; done`)
	if err := st.Stdin(t.Context(), 0, []byte{3}); err != nil { // Ctrl-C
		t.Fatal(explain(err))
	}
	r := drain(t, st)
	r.wantCode(t, 5)
}

func causes(t *testing.T, x *suite) {
	b := x.box(t)
	r := b.run(t, "kill -9 $$")
	if r.wantReason(t, sandbox.Signaled); r.end.Signal != 9 {
		t.Errorf("signal %d, want 9", r.end.Signal)
	}
	r = drain(t, b.start(t, sandbox.Command{Shell: "sleep 60", Timeout: 300}))
	r.wantReason(t, sandbox.TimedOut)
}

func outOfMemory(t *testing.T, x *suite) {
	spec := x.spec("hungry")
	spec.Limits.MemoryMB = sandbox.MinMemoryMB
	b := x.made(t, spec)
	b.attach(t)
	st := b.start(t, sandbox.Command{Shell: "exec python3 -c 'b=[]\nwhile True: b.append(bytearray(16<<20))'"})
	ended := make(chan result, 1)
	go func() { ended <- follow(st) }()
	for end := time.Now().Add(limit); ; {
		select {
		case r := <-ended:
			if r.end.Reason == sandbox.OutOfMemory {
				return
			}
			ended = nil // the stream broke, or another end: the whole sandbox may have gone
		case <-time.After(200 * time.Millisecond):
		}
		o, err := x.Provider.Inspect(t.Context(), b.h)
		if err == nil && o.OOMKilled {
			return
		}
		if ended == nil && time.Now().After(end) {
			t.Fatalf("the engine says OOMKilled %t, %v, and the command no out_of_memory", o.OOMKilled, explain(err))
		}
	}
}

func longStdin(t *testing.T, x *suite) {
	data := bytes.Repeat([]byte("0123456789abcdefghijklmnopqrstuvwxyz\n"), 200_000/37+1)[:200_000]
	st := x.box(t).start(t, sandbox.Command{Shell: "sha256sum; echo $? >&2", Stdin: sandbox.StdinStream})
	r := feed(t, st, data)
	sum := sha256.Sum256(data)
	if r.wantCode(t, 0); !strings.HasPrefix(r.out.String(), hex.EncodeToString(sum[:])) {
		t.Errorf("hash %q differs", r.out.String())
	}
}

// feed sends data within the credit, closes stdin, and follows to the end.
func feed(t *testing.T, st *agent.Stream, data []byte) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	var r result
	sent, closed := int64(0), false
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			t.Fatalf("follow, after %d bytes sent: %v", sent, explain(err))
		}
		switch e.Kind {
		case agent.EventOutput:
			r.take(e)
			_ = st.Ack(ctx, e.Offset+int64(len(e.Data))) // a break shows at Recv
		case agent.EventEnd:
			r.end = *e.End
			return r
		case agent.EventInput:
			upTo := min(int64(len(data)), e.Offset+e.Credit)
			if upTo > sent {
				if err := st.Stdin(ctx, sent, data[sent:upTo]); err != nil {
					t.Fatalf("stdin: %v", explain(err))
				}
				sent = upTo
			}
			if sent == int64(len(data)) && !closed {
				closed = true
				if err := st.CloseStdin(ctx, sent); err != nil {
					t.Fatalf("close stdin: %v", explain(err))
				}
			}
		}
	}
}

func stdinOffsets(t *testing.T, x *suite) {
	st := x.box(t).start(t, sandbox.Command{Shell: "cat", Stdin: sandbox.StdinStream})
	for _, piece := range []struct {
		offset int64
		text   string
	}{{0, "one "}, {9, "far "}, {0, "one "}, {4, "two"}, {4, "two"}} {
		if err := st.Stdin(t.Context(), piece.offset, []byte(piece.text)); err != nil {
			t.Fatal(explain(err))
		}
	}
	if err := st.CloseStdin(t.Context(), 7); err != nil {
		t.Fatal(explain(err))
	}
	r := drain(t, st)
	if r.wantCode(t, 0); r.out.String() != "one two" {
		t.Errorf("stdin arrived as %q, want %q", r.out.String(), "one two")
	}
}

func environment(t *testing.T, x *suite) {
	b := x.box(t)
	r := drain(t, b.start(t, sandbox.Command{Argv: []string{"env", "-0"}, Env: map[string]string{"MINE": "a=b\nc", "LANG": "C"}}))
	got := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(r.out.String(), "\x00"), "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		got[key] = value
	}
	want := []string{
		"HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LOGNAME", "MINE", "NO_PROXY", "PATH", "PWD", "SHELL", "TMPDIR", "USER",
		"http_proxy", "https_proxy", "no_proxy",
	}
	keys := slices.Sorted(maps.Keys(got))
	if !x.Real {
		keys = slices.DeleteFunc(keys, func(k string) bool { return !slices.Contains(want, k) }) // the fake marks by a variable
	}
	if !slices.Equal(keys, want) {
		t.Errorf("variables %v, want %v", keys, want)
	}
	if got["MINE"] != "a=b\nc" || got["LANG"] != "C" || got["NO_PROXY"] != "localhost,127.0.0.1,::1" || got["HTTP_PROXY"] != got["http_proxy"] {
		t.Errorf("environment %q", got)
	}
	if x.Real && (got["HOME"] != "/workspace" || got["PWD"] != "/workspace" || got["USER"] != "sandbox") {
		t.Errorf("environment %q", got)
	}
}

func parallel(t *testing.T, x *suite) {
	b := x.box(t)
	const n = 8
	streams := make([]*agent.Stream, n)
	begun := time.Now()
	for i := range streams {
		streams[i] = b.start(t, sandbox.Command{Shell: fmt.Sprintf("sleep 4; echo %d", i)})
	}
	for i, st := range streams {
		if r := drain(t, st); r.out.String() != fmt.Sprintf("%d\n", i) {
			t.Errorf("command %d printed %q", i, r.out.String())
		}
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("%d commands of 4 s took %s together", n, took)
	}
}

func noPhantom(t *testing.T, x *suite) {
	b := x.box(t)
	c := command(sandbox.Command{Argv: []string{"nosuchprogram"}})
	_, err := b.try(t, c)
	wantError(t, err, sandbox.StartFailed)
	list, err := b.s.List(t.Context())
	if err != nil {
		t.Fatal(explain(err))
	}
	for _, i := range list {
		if i.ID == c.ID && i.State == sandbox.CommandRunning {
			t.Errorf("a failed start is listed as %+v", i)
		}
	}
}

func forwards(t *testing.T, x *suite) {
	b := x.box(t)
	st := b.start(t, sandbox.Command{Background: true, Shell: `exec python3 -u -c '
import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); print(s.getsockname()[1])
c = s.accept()[0]
data = b""
while True:
    p = c.recv(4096)
    if not p: break
    data += p
c.sendall(data.upper()); c.close()'`})
	e, err := st.Recv(t.Context())
	if err != nil {
		t.Fatal(explain(err))
	}
	var port uint16
	if _, err := fmt.Sscan(string(e.Data), &port); err != nil {
		t.Fatalf("port %q: %v", e.Data, err)
	}
	conn, err := b.s.Forward(t.Context(), port)
	if err != nil {
		t.Fatal(explain(err))
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var back bytes.Buffer
	if _, err := back.ReadFrom(conn); err != nil || back.String() != "HELLO" {
		t.Errorf("answer %q, %v", back.String(), err)
	}
	_, err = b.s.Forward(t.Context(), 1)
	wantError(t, err, sandbox.Unavailable)
}

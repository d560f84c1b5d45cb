package sandboxtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"shoal/agent"
	"shoal/sandbox"
)

var killCases = []Case{
	{ID: "KL-01", Promise: "a foreground command whose client is gone ends after its grace", run: clientGone},
	{Promise: "a command that shall be kept goes on without its client", run: clientGoneKept},
	{ID: "KL-02", Promise: "a kill by tag takes what left the session and nothing else", run: killByTag},
	{Promise: "a kill by id takes that command alone", run: killByID},
	{Promise: "a kill of all takes everything", run: killAll},
	{Promise: "a kill takes stopped processes and those that ignore signals", run: killStubborn},
	{Promise: "a kill takes a process that cleared its environment", Needs: isReal, run: killCleared},
	{ID: "KL-04", Promise: "a kill works when no process is left, and siblings live", Needs: func(s *Subject) bool { return s.PidsLimit }, run: killAtLimit},
	{ID: "KL-04", Promise: "a new owner can attach when no process is left", Needs: func(s *Subject) bool { return s.PidsLimit }, run: attachAtLimit},
	{ID: "KL-05", Promise: "orphans leave no zombies", Needs: isReal, run: noZombies},
	{ID: "KL-06", Promise: "commands cannot end the sandbox", Needs: isReal, run: cannotEnd},
	{ID: "KL-08", Promise: "a signal after the end hits nobody", run: lateSignal},
	{Promise: "a signal reaches the command once", run: signals},
	{ID: "KL-11", Promise: "timed-out spinners and their jobs are gone", run: spinners},
}

func clientGone(t *testing.T, x *suite) {
	b := x.box(t)
	c := command(sandbox.Command{Shell: "sleep 86420 & sleep 86420", Grace: 500})
	st := b.start(t, c)
	begun := time.Now()
	st.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	end, err := b.s.Wait(ctx, c.ID)
	if err != nil || end.Reason != sandbox.Disconnected {
		t.Fatalf("end %s, %v; want disconnected", show(end), explain(err))
	}
	if took := time.Since(begun); took < 500*time.Millisecond || took > 5*time.Second {
		t.Errorf("a grace of 0.5 s took %s", took)
	}
	b.wantNone(t, "86420")
}

func clientGoneKept(t *testing.T, x *suite) {
	b := x.box(t)
	c := command(sandbox.Command{Shell: "sleep 1; echo through", OnDisconnect: sandbox.DisconnectKeep, Grace: 100})
	st := b.start(t, c)
	st.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if end, err := b.s.Wait(ctx, c.ID); err != nil || end.Reason != sandbox.Exited {
		t.Errorf("end %s, %v; want exited", show(end), explain(err))
	}
}

// escapees leave their session, their parents and their signals behind.
const escapees = `
(setsid sleep 86421 &)
setsid -f sleep 86421
nohup sleep 86421 >/dev/null 2>&1 & disown
( ( sleep 86421 & ) & )
python3 -c '
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "86421"])
    os._exit(0)
os.wait()'
sleep 86421`

func killByTag(t *testing.T, x *suite) {
	b := x.box(t)
	victim := b.start(t, sandbox.Command{Shell: escapees, Tag: "victim"})
	other := b.start(t, sandbox.Command{Shell: "read line; echo $line", Tag: "other", Stdin: sandbox.StdinStream})
	b.wantSleeps(t, "86421", 6)
	k, err := b.s.Kill(t.Context(), sandbox.KillRequest{Tags: []sandbox.Tag{"victim"}})
	if err != nil || len(k.Survivors) > 0 || !slices.Equal(k.Commands, []sandbox.CommandID{victim.Started().Info.ID}) {
		t.Fatalf("kill: %+v, %v", k, explain(err))
	}
	b.wantNone(t, "86421")
	r := drain(t, victim)
	if r.wantReason(t, sandbox.Killed); r.end.By != "tag" {
		t.Errorf("killed by %q, want tag", r.end.By)
	}
	if err := other.Stdin(t.Context(), 0, []byte("alive\n")); err != nil {
		t.Fatal(explain(err))
	}
	r = drain(t, other)
	if r.wantCode(t, 0); r.out.String() != "alive\n" {
		t.Errorf("the sibling printed %q", r.out.String())
	}
}

// wantSleeps waits until n sleeps with this argument run.
func (b *attached) wantSleeps(t *testing.T, argument string, n int) {
	t.Helper()
	eventually(t, "the processes run", func() bool { return b.sleeps(t, argument) == n })
}

func killByID(t *testing.T, x *suite) {
	b := x.box(t)
	one := b.start(t, sandbox.Command{Shell: "sleep 86422", Tag: "pair"})
	two := b.start(t, sandbox.Command{Shell: "read x; exit 3", Tag: "pair", Stdin: sandbox.StdinStream})
	if _, err := b.s.Kill(t.Context(), sandbox.KillRequest{IDs: []sandbox.CommandID{one.Started().Info.ID}, By: "tester"}); err != nil {
		t.Fatal(explain(err))
	}
	r := drain(t, one)
	if r.wantReason(t, sandbox.Killed); r.end.By != "tester" {
		t.Errorf("killed by %q, want tester", r.end.By)
	}
	if err := two.CloseStdin(t.Context(), 0); err != nil {
		t.Fatal(explain(err))
	}
	r = drain(t, two)
	r.wantCode(t, 3)
	for range 2 { // killing what has ended is success
		if k, err := b.s.Kill(t.Context(), sandbox.KillRequest{IDs: []sandbox.CommandID{one.Started().Info.ID}}); err != nil || len(k.Commands) > 0 {
			t.Errorf("kill of an ended command: %+v, %v", k, explain(err))
		}
	}
}

func killAll(t *testing.T, x *suite) {
	b := x.box(t)
	one := b.start(t, sandbox.Command{Shell: "sleep 86423", Tag: "a"})
	two := b.start(t, sandbox.Command{Shell: "sleep 86423 & exit 0", Background: true})
	drain(t, two)
	b.wantSleeps(t, "86423", 2)
	k, err := b.s.Kill(t.Context(), sandbox.KillRequest{All: true})
	if err != nil || len(k.Survivors) > 0 {
		t.Fatalf("kill: %+v, %v", k, explain(err))
	}
	r := drain(t, one)
	r.wantReason(t, sandbox.Killed)
	b.wantNone(t, "86423")
}

func killStubborn(t *testing.T, x *suite) {
	b := x.box(t)
	st := b.start(t, sandbox.Command{Tag: "stubborn", Shell: `
trap '' TERM HUP INT QUIT
(sleep 86424; true) & kill -STOP $!
python3 -c '
import signal, time
for s in range(1, 32):
    if s not in (9, 17, 19): signal.signal(s, signal.SIG_IGN)
open("ready", "w").close()
time.sleep(86424)' &
sleep 86424`})
	eventually(t, "it is ready", func() bool { return b.output(t, "[ -e ready ] && echo ready || true") == "ready" })
	begun := time.Now()
	k, err := b.s.Kill(t.Context(), sandbox.KillRequest{Tags: []sandbox.Tag{"stubborn"}})
	if err != nil || len(k.Survivors) > 0 || time.Since(begun) > 5*time.Second {
		t.Fatalf("kill: %+v, %v after %s", k, explain(err), time.Since(begun))
	}
	r := drain(t, st)
	r.wantReason(t, sandbox.Killed)
	b.wantNone(t, "86424")
}

func killCleared(t *testing.T, x *suite) {
	b := x.box(t)
	st := b.start(t, sandbox.Command{Tag: "bare", Shell: "env -i setsid -f sleep 86425; exec env -i sleep 86425"})
	b.wantSleeps(t, "86425", 2)
	if k, err := b.s.Kill(t.Context(), sandbox.KillRequest{Tags: []sandbox.Tag{"bare"}}); err != nil || len(k.Survivors) > 0 {
		t.Fatalf("kill: %+v, %v", k, explain(err))
	}
	r := drain(t, st)
	r.wantReason(t, sandbox.Killed)
	b.wantNone(t, "86425")
}

// small returns a sandbox whose processes are soon used up, without much harm
// to the machine.
func (x *suite) small(t *testing.T) *attached {
	t.Helper()
	spec := x.spec("small")
	spec.Limits.CPU, spec.Limits.Pids = 0.5, sandbox.MinPids
	b := x.made(t, spec)
	b.attach(t)
	return b
}

// bomb uses up every process under the tag bomb.
func (b *attached) bomb(t *testing.T) {
	t.Helper()
	b.start(t, sandbox.Command{Shell: "trap '' HUP; f() { while :; do f & done; }; f 2>/dev/null", Tag: "bomb"})
	eventually(t, "no process is left", func() bool {
		s, err := b.s.Stats(t.Context())
		return err == nil && s.PidsLimit > 0 && s.Pids >= s.PidsLimit-2
	})
}

// defuse kills what bomb has started.
func defuse(t *testing.T, s *agent.Session) {
	t.Helper()
	begun := time.Now()
	k, err := s.Kill(t.Context(), sandbox.KillRequest{Tags: []sandbox.Tag{"bomb"}})
	if took := time.Since(begun); err != nil || len(k.Survivors) > 0 || took > 5*time.Second {
		t.Fatalf("kill: %d processes, survivors %v, %v after %s", k.Processes, k.Survivors, explain(err), took)
	}
}

// filler takes every process there is, and each that becomes free. (A shell that
// finds none waits for seconds before it tries again.)
const filler = `
import subprocess, time
sleepers = []
while True:
    try: sleepers.append(subprocess.Popen(["sleep", "100"]))
    except OSError: time.sleep(0.005)
`

func noProcess(t *testing.T, x *suite) {
	b := x.small(t)
	b.start(t, sandbox.Command{Argv: []string{"python3", "-c", filler}, Tag: "bomb"})
	var last error
	eventually(t, "a start fails for want of a process", func() bool {
		st, err := b.try(t, sandbox.Command{Shell: "true"})
		if err == nil {
			_ = follow(st)
			return false
		}
		last = err
		return true
	})
	if e := sandbox.AsError(last); e.Code != sandbox.StartFailed && e.Code != sandbox.Busy {
		t.Errorf("%v, want start_failed or busy", explain(last))
	}
	defuse(t, b.s)
	if got := b.output(t, "echo again"); got != "again" {
		t.Errorf("after the kill: %q", got)
	}
}

func killAtLimit(t *testing.T, x *suite) {
	b := x.small(t)
	sibling := b.start(t, sandbox.Command{Shell: "read x; echo $x", Tag: "sibling", Stdin: sandbox.StdinStream})
	b.bomb(t)
	defuse(t, b.s)
	if err := sibling.Stdin(t.Context(), 0, []byte("lives\n")); err != nil {
		t.Fatal(explain(err))
	}
	r := drain(t, sibling)
	if r.wantCode(t, 0); r.out.String() != "lives\n" {
		t.Errorf("the sibling printed %q", r.out.String())
	}
}

// attachAtLimit tries again and again: the engine's own program that enters the
// sandbox needs threads, and gets them in one of some 15 tries (runc 1.1.5).
func attachAtLimit(t *testing.T, x *suite) {
	b := x.small(t)
	b.bomb(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*limit)
	defer cancel()
	for tries := 1; ; tries++ {
		s, err := b.dial(ctx)
		if err == nil {
			t.Logf("attached at try %d", tries)
			t.Cleanup(func() { _ = s.Close() })
			claim(t, s)
			defuse(t, s)
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%d tries to attach: %v", tries, explain(err))
		}
	}
}

func noZombies(t *testing.T, x *suite) {
	b := x.box(t)
	rounds := 50
	if !x.PidsLimit { // a process costs gVisor 20 times as much
		rounds = 10
	}
	for range rounds {
		r := b.run(t, "(true &) ; (setsid true &)")
		r.wantCode(t, 0)
	}
	eventually(t, "no zombie is left", func() bool {
		return b.output(t, `grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l`) == "0"
	})
}

func cannotEnd(t *testing.T, x *suite) {
	b := x.box(t)
	boot := b.s.Hello().Boot
	for _, script := range []string{"kill -9 1; echo $?", "kill -9 -1", "python3 -c 'import os; os.kill(-1, 19)'"} {
		st := b.start(t, sandbox.Command{Shell: script, Timeout: 2000})
		r := follow(st)
		if r.end.Reason == "" {
			t.Fatalf("%s: the stream broke", script)
		}
	}
	if got := b.output(t, "echo on"); got != "on" || b.s.Hello().Boot != boot || b.s.Err() != nil {
		t.Errorf("after the attempts: %q, session %v", got, b.s.Err())
	}
}

func lateSignal(t *testing.T, x *suite) {
	b := x.box(t)
	st := b.start(t, sandbox.Command{Shell: "exit 0"})
	if _, err := recvEnd(t, st); err != nil {
		t.Fatal(explain(err))
	}
	live := b.start(t, sandbox.Command{Shell: "sleep 0.5; echo unhurt"})
	if err := st.Signal(t.Context(), 1, 9); err != nil {
		t.Fatal(explain(err))
	}
	r := drain(t, live)
	if r.wantCode(t, 0); r.out.String() != "unhurt\n" {
		t.Errorf("output %q", r.out.String())
	}
}

func signals(t *testing.T, x *suite) {
	st := x.box(t).start(t, sandbox.Command{Shell: "n=0; trap 'n=$((n+1)); echo got' USR1; trap 'echo $n; exit 0' USR2; echo up; while :; do sleep 0.05; done"})
	await(t, st, "up")
	for range 3 { // one signal and two repeats of it
		if err := st.Signal(t.Context(), 1, 10); err != nil {
			t.Fatal(explain(err))
		}
	}
	await(t, st, "got")
	if err := st.Signal(t.Context(), 2, 12); err != nil {
		t.Fatal(explain(err))
	}
	r := drain(t, st)
	if r.wantCode(t, 0); !strings.HasSuffix(r.out.String(), "1\n") {
		t.Errorf("the rest of the output is %q, want one signal", r.out.String())
	}
}

func spinners(t *testing.T, x *suite) {
	b := x.box(t)
	streams := make([]*agent.Stream, 3)
	for i := range streams {
		streams[i] = b.start(t, sandbox.Command{Shell: "for i in 1 2; do (exec -a spinner9 bash -c 'while :; do :; done') & done; while :; do :; done", Timeout: 800})
	}
	for _, st := range streams {
		r := drain(t, st)
		r.wantReason(t, sandbox.TimedOut)
	}
	if left := b.output(t, `cat /proc/[0-9]*/cmdline | tr '\0' '\n' | grep -c "spinner[9]" || true`); left != "0" {
		t.Errorf("%s spinners are left", left)
	}
}

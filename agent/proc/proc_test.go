package proc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"shoal/agent/boxtest"
	"shoal/agent/launch"
	"shoal/agent/proc"
	"shoal/agent/threads"
)

// box is what an agent is made of, as far as processes go.
type box struct {
	reaper   *proc.Reaper
	table    *proc.Table
	launcher *launch.Launcher
	lenient  *launch.Launcher // without the rule against rewritten calls
}

// agent is shared by the cases: a process has one Reaper of all its children.
var agent = sync.OnceValues(func() (*box, error) {
	threads.Park(24)
	pool, err := threads.NewPool(threads.Config{UID: boxtest.UID, GID: boxtest.GID})
	if err != nil {
		return nil, err
	}
	if err := pool.Start(); err != nil {
		return nil, err
	}
	b := &box{reaper: proc.NewReaper()}
	go b.reaper.Run(context.Background())
	if b.table, err = proc.NewTable(proc.Config{UID: boxtest.UID, Reaper: b.reaper}); err != nil {
		return nil, err
	}
	cfg := launch.Config{Program: boxtest.Program("launch"), UID: boxtest.UID, GID: boxtest.GID, Reaper: b.reaper, Threads: pool}
	if b.lenient, err = launch.New(cfg); err != nil {
		return nil, err
	}
	cfg.NoRewrite = launch.RewriteUnchecked()
	b.launcher, err = launch.New(cfg)
	return b, err
})

func setup(t *testing.T) *box {
	t.Helper()
	b, err := agent()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// command is a started command with its mark.
type command struct {
	*launch.Process
	mark proc.Mark
}

func (b *box) start(t *testing.T, argv ...string) command {
	t.Helper()
	return b.startBy(t, b.launcher, argv...)
}

func (b *box) startBy(t *testing.T, l *launch.Launcher, argv ...string) command {
	t.Helper()
	mark, err := b.table.Acquire()
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Start(t.Context(), launch.Command{
		Argv: argv, Env: []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}, Dir: "/workspace", Mark: mark.Number(),
	})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		_ = p.Signal(syscall.SIGKILL)
		p.Close()
	})
	return command{p, mark}
}

func (b *box) shell(t *testing.T, script string) command {
	t.Helper()
	return b.start(t, "bash", "-c", script)
}

// line waits for the command's first line of output.
func (c command) line(t *testing.T) string {
	t.Helper()
	_ = c.Stdout.SetReadDeadline(time.Now().Add(30 * time.Second))
	var line []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(line), "\n"); line = append(line, b[0]) {
		if _, err := c.Stdout.Read(b); err != nil {
			_ = c.Stderr.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			errs, _ := io.ReadAll(c.Stderr)
			t.Fatalf("read a line after %q: %v; stderr %q", line, err, errs)
		}
	}
	return strings.TrimSpace(string(line))
}

func (c command) end(t *testing.T) proc.Exit {
	t.Helper()
	select {
	case <-c.Done():
		return c.Exit()
	case <-time.After(20 * time.Second):
		t.Fatal("the command does not end")
		panic("unreachable")
	}
}

// living returns the sandbox user's processes that are alive.
func (b *box) living(t *testing.T) []proc.Process {
	t.Helper()
	all, err := b.table.Processes()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(p proc.Process) bool { return !p.Alive() })
}

func (b *box) kill(t *testing.T, target proc.Target) proc.Result {
	t.Helper()
	began := time.Now()
	r, err := b.table.Kill(t.Context(), target)
	if err != nil {
		t.Fatalf("kill: %v", err)
	}
	t.Logf("killed %d in %v", r.Killed, time.Since(began))
	if len(r.Survivors) > 0 {
		t.Errorf("survivors: %+v", r.Survivors)
	}
	return r
}

func TestSandbox(t *testing.T) {
	boxtest.Run(t, []boxtest.Case{
		{Name: "children are collected", Func: childrenAreCollected},
		{Name: "KL-08 a late signal hits nobody", Func: lateSignal},
		{Name: "KL-02 a kill finds what hides", Func: killFindsWhatHides},
		{Name: "a kill takes its mark alone", Func: killTakesItsMark},
		{Name: "a kill of all takes all", Func: killAll},
		{Name: "an ordinary end", Func: ordinaryEnd},
		{Name: "what a command leaves is ended", Func: leftovers},
		{Name: "kept processes keep their mark", Func: keptProcesses},
		{Name: "marks rest until nobody carries them", Func: marksRest},
		{Name: "KL-05 orphans are collected", Func: orphansAreCollected},
		{Name: "a storm of SIGSTOP", Func: stormOfStops},
		{Name: "processes that wake each other", Func: stormOfContinues},
		{Name: "a dead main thread with living threads", Func: deadMainThread},
		{Name: "a hostile name", Func: hostileName},
		{Name: "KL-06 the agent is out of reach", Func: agentOutOfReach},
		{Name: "KL-04 at the limit of processes", Func: processLimit, Runtime: "runc"},
		{Name: "a fork bomb", Func: forkBomb, Runtime: "runc"},
		{Name: "escape into a user namespace", Func: namespaceEscape, Runtime: "runsc"},
		{Name: "what a process uses", Func: details},
		{Name: "what the sandbox uses", Func: usage, Runtime: "runc"},
		{Name: "killed for want of memory", Func: outOfMemory, Runtime: "runc"},
	})
}

func childrenAreCollected(t *testing.T) {
	b := setup(t)
	if e := b.shell(t, "exit 7").end(t); e.Code != 7 || e.Signal != 0 {
		t.Errorf("exit 7: got %+v", e)
	}
	if e := b.shell(t, "kill -USR1 $$").end(t); e.Signal != syscall.SIGUSR1 {
		t.Errorf("kill -USR1: got %+v", e)
	}
	e := b.start(t, "python3", "-c", "import time\nx = b'x' * (40 << 20)\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass").end(t)
	if e.Code != 0 || e.CPU < 150*time.Millisecond || e.CPU > 10*time.Second {
		t.Errorf("cpu: got %+v", e)
	}
	if boxtest.Runtime() == "runc" && e.MaxRSS < 40<<20 { // gVisor (2022) does not count it
		t.Errorf("memory: got %d", e.MaxRSS)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				if e := b.start(t, "true").end(t); e.Code != 0 || e.Signal != 0 {
					t.Errorf("true: got %+v", e)
				}
			}
		})
	}
	wg.Wait()
	if n := b.reaper.Running(); n != 0 {
		t.Errorf("%d children are still known", n)
	}
}

func lateSignal(t *testing.T) {
	b := setup(t)
	c := b.shell(t, "exit 0")
	c.end(t)
	if err := c.Signal(syscall.SIGKILL); !errors.Is(err, proc.ErrEnded) {
		t.Errorf("signal: %v", err)
	}
	if err := c.SignalGroup(syscall.SIGKILL); !errors.Is(err, proc.ErrEnded) {
		t.Errorf("signal the group: %v", err)
	}
	c = b.shell(t, "sleep 30 & wait; exit 3")
	if err := c.SignalGroup(syscall.SIGTERM); err != nil {
		t.Errorf("signal the group: %v", err)
	}
	if e := c.end(t); e.Signal != syscall.SIGTERM {
		t.Errorf("after SIGTERM: %+v", e)
	}
	b.kill(t, proc.Target{Marks: []proc.Mark{c.mark}})
}

// hide leaves one process in each way that other kills have missed.
const hide = `trap '' TERM HUP INT
setsid sleep 300 &
setsid -f sleep 301
(setsid bash -c 'sleep 302 & exec sleep 303' &)
env -i sleep 304 & disown
nohup sleep 305 >/dev/null 2>&1 &
python3 -c 'import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        os.execvp("sleep", ["sleep", "306"])'
sleep 307 & kill -STOP $!
sleep 0.3
echo ready`

func killFindsWhatHides(t *testing.T) {
	b := setup(t)
	c := b.shell(t, hide+"; sleep 308")
	c.line(t)
	if n := len(b.living(t)); n < 9 {
		t.Fatalf("only %d processes were made", n)
	}
	if r := b.kill(t, proc.Target{Marks: []proc.Mark{c.mark}}); r.Killed < 9 {
		t.Errorf("killed %d", r.Killed)
	}
	if left := b.living(t); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	if e := c.end(t); e.Signal != syscall.SIGKILL {
		t.Errorf("the main process: %+v", e)
	}
	b.table.Release(c.mark)
}

func killTakesItsMark(t *testing.T) {
	b := setup(t)
	a, other := b.shell(t, "sleep 300 & echo up; sleep 300"), b.shell(t, "sleep 301 & echo up; sleep 301")
	a.line(t)
	other.line(t)
	b.kill(t, proc.Target{Marks: []proc.Mark{a.mark}})
	for _, p := range b.living(t) {
		if p.Mark != other.mark.Number() {
			t.Errorf("left: %+v", p)
		}
	}
	select {
	case <-other.Done():
		t.Error("another command was killed")
	default:
	}
	b.table.Release(a.mark)
	// A mark given back is nobody's: what still carries it is a runaway.
	b.table.Release(other.mark)
	if r := b.kill(t, proc.Target{}); r.Killed < 2 {
		t.Errorf("killed %d runaways", r.Killed)
	}
}

func killAll(t *testing.T) {
	b := setup(t)
	for range 3 {
		c := b.shell(t, "sleep 300 & echo up; sleep 300")
		c.line(t)
		defer b.table.Release(c.mark)
	}
	if r := b.kill(t, proc.Target{All: true}); r.Killed < 6 {
		t.Errorf("killed %d", r.Killed)
	}
	if left := b.living(t); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

func ordinaryEnd(t *testing.T) {
	b := setup(t)
	keep := b.shell(t, "(setsid sleep 300 &); echo up; sleep 300") // an orphan of another command
	keep.line(t)
	c := b.shell(t, "true")
	c.end(t)
	began := time.Now()
	r, err := b.table.Finish(t.Context(), c.mark)
	t.Logf("finished in %v", time.Since(began))
	if err != nil || r.Killed != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	if n := len(b.living(t)); n != 2 {
		t.Errorf("%d processes of the other command live", n)
	}
	b.kill(t, proc.Target{All: true})
	b.table.Release(keep.mark)
}

func leftovers(t *testing.T) {
	b := setup(t)
	c := b.shell(t, hide)
	c.end(t)
	r, err := b.table.Finish(t.Context(), c.mark)
	if err != nil || r.Killed < 8 || len(r.Survivors) > 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	if left := b.living(t); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

func keptProcesses(t *testing.T) {
	b := setup(t)
	c := b.shell(t, "setsid -f sleep 300")
	c.end(t)
	b.table.Keep(c.mark)
	if r := b.kill(t, proc.Target{}); r.Killed != 0 {
		t.Errorf("a kill of runaways took %d kept processes", r.Killed)
	}
	if r := b.kill(t, proc.Target{Marks: []proc.Mark{c.mark}}); r.Killed != 1 {
		t.Errorf("killed %d", r.Killed)
	}
}

// marksRest hands out all the numbers: none that a process carries comes back.
func marksRest(t *testing.T) {
	b := setup(t)
	table, err := proc.NewTable(proc.Config{UID: boxtest.UID, Reaper: b.reaper})
	if err != nil {
		t.Fatal(err)
	}
	c := b.shell(t, "echo up; sleep 300") // carries a number that table hands out too
	c.line(t)
	var carried proc.Mark
	for range proc.LastMark - proc.FirstMark + 1 {
		mark, err := table.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		if mark.Number() == c.mark.Number() {
			carried = mark
			table.Keep(mark)
			continue
		}
		table.Release(mark)
	}
	for range 3 * (proc.LastMark - proc.FirstMark) {
		mark, err := table.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		if mark.Number() == c.mark.Number() {
			t.Fatal("a carried number was handed out again")
		}
		table.Release(mark)
	}
	b.kill(t, proc.Target{Marks: []proc.Mark{c.mark}})
	c.end(t)
	b.table.Release(c.mark)
	for range 2 * (proc.LastMark - proc.FirstMark) {
		mark, err := table.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		if mark.Number() == c.mark.Number() {
			// The number is in use again; a kill by its old use must not reach it.
			again, err := b.launcher.Start(t.Context(), launch.Command{
				Argv: []string{"sleep", "300"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Mark: mark.Number(),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if r, err := table.Kill(t.Context(), proc.Target{Marks: []proc.Mark{carried}}); err != nil || r.Killed != 0 {
				t.Errorf("a kill by an old use of the number: %+v, %v", r, err)
			}
			b.kill(t, proc.Target{All: true})
			return
		}
		table.Release(mark)
	}
	t.Error("the number never came back")
}

func orphansAreCollected(t *testing.T) {
	b := setup(t)
	n := 100
	if boxtest.Runtime() != "runc" {
		n = 20
	}
	c := b.shell(t, fmt.Sprintf("for i in $(seq %d); do (setsid true &) ; done; sleep 0.5", n))
	c.end(t)
	if _, err := b.table.Finish(t.Context(), c.mark); err != nil {
		t.Error(err)
	}
	time.Sleep(200 * time.Millisecond)
	all, err := b.table.Processes()
	if err != nil || len(all) > 0 {
		t.Errorf("left, zombies included: %+v, %v", all, err)
	}
}

func details(t *testing.T) {
	b := setup(t)
	c := b.start(t, "python3", "-c", "import time\nx = b'x' * (40 << 20)\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint('up', flush=True); time.sleep(60)")
	c.line(t)
	all, err := b.table.Details()
	if err != nil || len(all) != 1 {
		t.Fatalf("got %+v, %v", all, err)
	}
	if d := all[0]; d.Pid != c.Pid() || d.Name != "python3" || d.RSS < 40<<20 || d.CPU < 200*time.Millisecond {
		t.Errorf("got %+v", d)
	}
	b.kill(t, proc.Target{All: true})
	b.table.Release(c.mark)
}

func usage(t *testing.T) {
	b := setup(t)
	c := b.shell(t, "sleep 60 & sleep 60 & echo up; wait")
	c.line(t)
	u := proc.OpenCgroup().Read()
	if u.MemoryLimit != 1<<30 || u.Memory <= 0 || u.Pids < 4 || u.PidsLimit != 160 || u.CPU <= 0 || u.OOMKills < 0 {
		t.Errorf("got %+v", u)
	}
	b.kill(t, proc.Target{All: true})
	b.table.Release(c.mark)
}

// The kernel takes the command and not the agent, which has the lower score.
func outOfMemory(t *testing.T) {
	b := setup(t)
	before := proc.OpenCgroup().OOMKills()
	c := b.start(t, "python3", "-c", "x = b'x' * (1 << 30)")
	if e := c.end(t); e.Signal != syscall.SIGKILL {
		t.Errorf("got %+v", e)
	}
	if after := proc.OpenCgroup().OOMKills(); after != before+1 {
		t.Errorf("the counter went from %d to %d", before, after)
	}
	b.table.Release(c.mark)
}

package proc_test

import (
	_ "embed"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"shoal/agent/launch"
	"shoal/agent/proc"
)

// hostile does what the argument names.
//
//go:embed testdata/hostile.py
var hostile string

func (b *box) hostile(t *testing.T, what string) command {
	t.Helper()
	return b.start(t, "python3", "-c", hostile, what)
}

// All of the user's processes are stopped all the time, the killer's victims and
// whatever starts meanwhile.
func stormOfStops(t *testing.T) {
	b := setup(t)
	storm := b.hostile(t, "storm-stop")
	storm.line(t)
	var others []proc.Mark
	for range 5 {
		mark, err := b.table.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, mark)
		go func() {
			if p, err := b.launcher.Start(t.Context(), launch.Command{
				Argv: []string{"sleep", "300"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Mark: mark.Number(),
			}); err == nil {
				<-p.Done()
				p.Close()
			}
		}()
	}
	time.Sleep(300 * time.Millisecond)
	b.kill(t, proc.Target{All: true})
	storm.end(t)
	for _, mark := range append(others, storm.mark) {
		b.table.Release(mark)
	}
	c := b.shell(t, "echo fine")
	if out := c.line(t); out != "fine" {
		t.Errorf("after the storm: %q", out)
	}
	c.end(t)
	b.table.Release(c.mark)
	b.kill(t, proc.Target{All: true})
}

func stormOfContinues(t *testing.T) {
	b := setup(t)
	c := b.hostile(t, "storm-continue")
	c.line(t)
	b.kill(t, proc.Target{Marks: []proc.Mark{c.mark}})
	b.table.Release(c.mark)
	if left := b.living(t); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

func deadMainThread(t *testing.T) {
	b := setup(t)
	c := b.hostile(t, "dead-main-thread")
	c.line(t)
	time.Sleep(300 * time.Millisecond)
	select {
	case <-c.Done():
		t.Fatal("the process is taken for ended while a thread of it lives")
	default:
	}
	b.kill(t, proc.Target{Marks: []proc.Mark{c.mark}})
	c.end(t)
	b.table.Release(c.mark)
}

// The name forges status lines of root without a mark.
func hostileName(t *testing.T) {
	b := setup(t)
	c := b.hostile(t, "hostile-name")
	c.line(t)
	found := false
	for _, p := range b.living(t) {
		if p.Pid == c.Pid() {
			found = true
			if p.Mark != c.mark.Number() || p.UIDs != [4]int{1000, 1000, 1000, 1000} {
				t.Errorf("got %+v", p)
			}
		}
	}
	if !found {
		t.Error("the process is not seen")
	}
	b.kill(t, proc.Target{Marks: []proc.Mark{c.mark}})
	c.end(t)
	b.table.Release(c.mark)
}

func agentOutOfReach(t *testing.T) {
	b := setup(t)
	c := b.hostile(t, "kill-everything")
	if e := c.end(t); e.Code != 0 {
		t.Errorf("got %+v", e)
	}
	if out := c.line(t); out != "refused" {
		t.Errorf("got %q", out)
	}
	b.table.Release(c.mark)
	b.shell(t, "kill -9 -1").end(t)
	if out := b.shell(t, "echo fine").line(t); out != "fine" {
		t.Errorf("after kill -9 -1: %q", out)
	}
}

// The sandbox has no process number left: starts fail at once and by name, and
// kill and Reaper work, as neither needs a new process or thread.
func processLimit(t *testing.T) {
	b := setup(t)
	other := b.shell(t, "echo up; sleep 300")
	other.line(t)
	c := b.hostile(t, "fill")
	c.line(t)
	mark, err := b.table.Acquire()
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.launcher.Start(t.Context(), launch.Command{Argv: []string{"true"}, Env: []string{"PATH=/bin"}, Dir: "/", Mark: mark.Number()})
	e, ok := errors.AsType[*launch.StartError](err)
	if !ok || e.Step != launch.StepFork || e.Errno != syscall.EAGAIN {
		t.Errorf("a start at the limit: %v", err)
	}
	b.table.Release(mark)
	if r := b.kill(t, proc.Target{Marks: []proc.Mark{c.mark}}); r.Killed < 50 {
		t.Errorf("killed %d", r.Killed)
	}
	c.end(t)
	b.table.Release(c.mark)
	if living := b.living(t); len(living) != 1 && len(living) != 2 {
		t.Errorf("of the other command live: %+v", living)
	}
	b.kill(t, proc.Target{All: true})
	b.table.Release(other.mark)
	if out := b.shell(t, "echo fine").line(t); out != "fine" {
		t.Errorf("afterwards: %q", out)
	}
}

func forkBomb(t *testing.T) {
	b := setup(t)
	c := b.hostile(t, "bomb")
	c.line(t)
	for limit := time.Now().Add(10 * time.Second); len(b.living(t)) < 80 && time.Now().Before(limit); {
		time.Sleep(50 * time.Millisecond)
	}
	began := time.Now()
	r := b.kill(t, proc.Target{Marks: []proc.Mark{c.mark}})
	if took := time.Since(began); r.Killed < 50 || took > 5*time.Second {
		t.Errorf("killed %d in %v", r.Killed, took)
	}
	if left := b.living(t); len(left) > 0 {
		t.Errorf("left: %d", len(left))
	}
	b.table.Release(c.mark)
}

// The command is started without the filter's rule against rewriting, so that
// its tracing parent takes a child out of its mark, as gVisor allows. The
// escapee is a runaway.
func namespaceEscape(t *testing.T) {
	b := setup(t)
	c := b.startBy(t, b.lenient, "python3", "-c", hostile, "escape")
	if out := c.line(t); !strings.HasPrefix(out, "escaped") {
		t.Fatalf("this shows nothing: %q", out)
	}
	runaways := 0
	for _, p := range b.living(t) {
		if p.Mark == 0 {
			runaways++
		}
	}
	if runaways == 0 {
		t.Fatal("nobody got rid of the mark, so this shows nothing")
	}
	if r := b.kill(t, proc.Target{Marks: []proc.Mark{c.mark}}); r.Killed < 2 {
		t.Errorf("killed %d", r.Killed)
	}
	if left := b.living(t); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	b.table.Release(c.mark)
}

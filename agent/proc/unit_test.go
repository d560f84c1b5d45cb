package proc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
)

const status = "Name:\tbash\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t7\nPid:\t7\nPPid:\t3\nUid:\t1000\t1001\t1002\t1003\nGid:\t1000\t1000\t1000\t1000\nGroups:\t4 61007 \nThreads:\t2\n"

func TestParseStatus(t *testing.T) {
	p, err := parseStatus(7, []byte(status))
	want := Process{Pid: 7, PPid: 3, Name: "bash", State: 'S', Threads: 2, UIDs: [4]int{1000, 1001, 1002, 1003}, Mark: 61007}
	if err != nil || p != want {
		t.Errorf("got %+v, %v", p, err)
	}
	for name, text := range map[string]string{
		"nothing":      "",
		"no state":     strings.Replace(status, "State", "Stale", 1),
		"empty state":  strings.Replace(status, "S (sleeping)", "", 1),
		"no uid":       strings.Replace(status, "Uid", "Vid", 1),
		"three uids":   strings.Replace(status, "1000\t1001", "1001", 1),
		"negative uid": strings.Replace(status, "1000\t1001", "-1\t1001", 1),
	} {
		if p, err := parseStatus(7, []byte(text)); err == nil {
			t.Errorf("%s: got %+v", name, p)
		}
	}
	forged := strings.Replace(status, "bash", "x\nUid:\t0\t0\t0\t0\nGroups:\t", 1)
	if p, err := parseStatus(7, []byte(forged)); err != nil || p.UIDs != want.UIDs || p.Mark != want.Mark {
		t.Errorf("a forged name: got %+v, %v", p, err)
	}
	for groups, mark := range map[string]int{"": 0, "60999": 0, "61000": 61000, "62023": 62023, "62024": 0, "x 61001": 61001} {
		p, err := parseStatus(7, []byte(strings.Replace(status, "4 61007", groups, 1)))
		if err != nil || p.Mark != mark {
			t.Errorf("groups %q: got %+v, %v", groups, p, err)
		}
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte(status))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := parseStatus(1, text)
		if err == nil && p.Mark != 0 && !isMark(p.Mark) {
			t.Errorf("got %+v", p)
		}
	})
}

func TestAlive(t *testing.T) {
	for _, c := range []struct {
		state   byte
		threads int
		alive   bool
	}{{'R', 1, true}, {'T', 1, true}, {'Z', 1, false}, {'Z', 0, false}, {'Z', 2, true}, {'X', 1, false}} {
		p := Process{State: c.state, Threads: c.threads}
		if p.Alive() != c.alive {
			t.Errorf("%c with %d threads: alive is %v", c.state, c.threads, p.Alive())
		}
	}
}

// A scan that began before a change knows nothing about it.
func TestMarksSettle(t *testing.T) {
	m := newMarks()
	mark, _ := m.take()
	began := m.now()
	m.set(mark, markKept)
	m.settle(began, nil)
	if !m.inUse(mark.number) {
		t.Error("a scan of before freed the mark")
	}
	m.settle(m.now(), map[int]bool{mark.number: true})
	if !m.inUse(mark.number) {
		t.Error("a carried mark was freed")
	}
	m.settle(m.now(), nil)
	if m.inUse(mark.number) || m.current(mark) {
		t.Error("a mark that nobody carries is still in use")
	}
	m.set(mark, markUsed)
	if m.inUse(mark.number) {
		t.Error("an old use took the number back")
	}
}

// The child ends before its number is known.
func TestEarlyEnd(t *testing.T) {
	r := newReaper(true)
	c, err := r.Fork(func() (int, error) {
		pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit 5"}, nil)
		if err == nil {
			if got, err := awaitZombie(1 /* P_PID */, pid); got != pid || err != nil {
				t.Errorf("got %d, %v", got, err)
			}
			r.collect(pid)
		}
		return pid, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if e := c.Exit(); e.Code != 5 {
		t.Errorf("got %+v", e)
	}
	if len(r.early) != 0 || len(r.forks) != 0 || r.Running() != 0 {
		t.Errorf("left: %+v", r)
	}
	// The status of another process that had the number before the fork began.
	r.early[c.pid] = early{at: 1, exit: Exit{Code: 9}}
	again, err := r.Fork(func() (int, error) { return c.pid, nil })
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-again.Done():
		t.Error("the child got a stranger's end")
	default:
	}
}

// An own Reaper leaves other children alone.
func TestOwnReaper(t *testing.T) {
	r := NewOwnReaper()
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { r.Run(ctx); close(ran) }()
	other := exec.CommandContext(ctx, "sh", "-c", "exit 3")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := r.Fork(func() (int, error) { return syscall.ForkExec("/bin/sh", []string{"sh", "-c", "kill -TERM $$"}, nil) })
	if err != nil {
		t.Fatal(err)
	}
	if e := c.Exit(); e.Signal != syscall.SIGTERM {
		t.Errorf("got %+v", e)
	}
	if err := c.Signal(syscall.SIGTERM); !errors.Is(err, ErrEnded) {
		t.Errorf("a late signal: %v", err)
	}
	if err := other.Wait(); other.ProcessState == nil || other.ProcessState.ExitCode() != 3 {
		t.Errorf("the other child: %v", err)
	}
	if _, err := r.Fork(func() (int, error) { return 0, syscall.EAGAIN }); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a fork that fails: %v", err)
	}
	cancel()
	select {
	case <-ran:
	case <-time.After(5 * time.Second):
		t.Error("Run does not end")
	}
}

// A process in the midst of an exec shows no environment, and so no mark: the kill
// looks again, and takes also one that does nothing else.
func TestUnhardenedKillFindsWhatExecs(t *testing.T) {
	r := NewOwnReaper()
	table, err := Unhardened(r)
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "again")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec \"$0\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 60 {
		mark, err := table.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		c, err := r.Fork(func() (int, error) {
			return syscall.ForkExec(script, []string{script}, &syscall.ProcAttr{Env: []string{r.MarkVariable(mark.number)}})
		})
		if err != nil {
			t.Fatal(err)
		}
		if k, err := table.Kill(t.Context(), Target{Marks: []Mark{mark}}); err != nil || len(k.Survivors) > 0 {
			t.Fatalf("kill: %+v, %v", k, err)
		}
		select {
		case <-c.done:
		case <-time.After(10 * time.Second):
			_ = c.Signal(syscall.SIGKILL)
			t.Fatal("the kill did not find it")
		}
		table.Release(mark)
	}
}

func TestCgroup(t *testing.T) {
	one := fstest.MapFS{
		"memory/memory.oom_control":    {Data: []byte("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")},
		"memory/memory.usage_in_bytes": {Data: []byte("1000\n")},
		"memory/memory.stat":           {Data: []byte("cache 5\ninactive_file 7\ntotal_inactive_file 300\n")},
		"memory/memory.limit_in_bytes": {Data: []byte("4096\n")},
		"pids/pids.current":            {Data: []byte("9\n")},
		"pids/pids.max":                {Data: []byte("max\n")},
		"cpuacct/cpuacct.usage":        {Data: []byte("2000000000\n")},
	}
	if got, want := openCgroup(one).Read(), (Usage{CPU: 2 * time.Second, Memory: 700, MemoryLimit: 4096, OOMKills: 3, Pids: 9, PidsLimit: -1}); got != want {
		t.Errorf("version 1: got %+v", got)
	}
	two := fstest.MapFS{
		"cgroup.controllers": {},
		"memory.events":      {Data: []byte("low 0\noom 1\noom_kill 2\noom_group_kill 0\n")},
		"memory.current":     {Data: []byte("1000\n")},
		"memory.stat":        {Data: []byte("inactive_file 1200\n")},
		"memory.max":         {Data: []byte("max\n")},
		"pids.current":       {Data: []byte("9\n")},
		"pids.max":           {Data: []byte("512\n")},
		"cpu.stat":           {Data: []byte("usage_usec 1500000\nuser_usec 1\n")},
	}
	if got, want := openCgroup(two).Read(), (Usage{CPU: 1500 * time.Millisecond, Memory: 0, MemoryLimit: -1, OOMKills: 2, Pids: 9, PidsLimit: 512}); got != want {
		t.Errorf("version 2: got %+v", got)
	}
	if got, want := openCgroup(fstest.MapFS{}).Read(), (Usage{CPU: -1, Memory: -1, MemoryLimit: -1, OOMKills: -1, Pids: -1, PidsLimit: -1}); got != want {
		t.Errorf("nothing: got %+v", got)
	}
}

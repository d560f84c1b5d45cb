package launch_test

import (
	_ "embed"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"shoal/agent/boxtest"
	"shoal/agent/launch"
)

// escape tries what the argument names, by raw system calls.
//
//go:embed testdata/escape.py
var escape string

func python(script string, args ...string) launch.Command {
	return launch.Command{Argv: append([]string{"python3", "-c", script}, args...), Env: env, Dir: "/workspace", Mark: mark}
}

// That setns and setgroups are denied cannot be told from the missing
// capabilities, which deny them too.
func filterHolds(t *testing.T) {
	l := starter(t)
	tries := map[string]string{
		"unshare": "EPERM", "clone-newuser": "EPERM",
		"clone-newnet": "EPERM", "clone-parent": "EPERM", "clone3": "ENOSYS", "thread-unshare": "EPERM",
	}
	if boxtest.Runtime() == "runc" { // gVisor has neither
		tries["x32"], tries["int80"] = "ENOSYS", "ENOSYS"
	}
	for try, want := range tries {
		r := run(t, l, python(escape, try))
		if try == "int80" && r.exit.Signal == syscall.SIGSEGV {
			continue // a kernel without 32-bit calls
		}
		if strings.TrimSpace(r.out) != want {
			t.Errorf("%s: got %q (%q), want %s", try, r.out, r.errs, want)
		}
	}
	if r := run(t, l, shell("unshare -U true")); r.exit.Code == 0 {
		t.Error("unshare -U worked")
	}
}

// A tracer turns its child's getppid into unshare(CLONE_NEWUSER). Linux asks the
// filter again; for gVisor the filter denies the way there.
func noRewriting(t *testing.T) {
	l := starter(t)
	for _, road := range []string{"rewrite-syscall", "rewrite-seccomp"} {
		r := run(t, l, python(escape, road))
		if out := strings.TrimSpace(r.out); out != "EPERM" {
			t.Errorf("%s: got %q (%q), want EPERM", road, out, r.errs)
		}
	}
}

func programs(t *testing.T) {
	l := starter(t)
	for name, script := range map[string]string{
		"threads":    `python3 -c 'import threading as t; x=[t.Thread(target=print, args=(i,)) for i in range(8)]; [a.start() for a in x]; [a.join() for a in x]'`,
		"subprocess": `python3 -c 'import subprocess as s; s.run(["true"], check=True); s.run(["true"], close_fds=False, check=True); s.run("echo x | cat", shell=True, check=True)'`,
		"processes":  "cat > p.py <<'E'\nimport multiprocessing as m\nif __name__ == '__main__':\n    with m.Pool(2) as p: assert p.map(abs, [-1, 2]) == [1, 2]\nE\npython3 p.py",
		"git":        `export HOME=$(mktemp -d) && cd $HOME && git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git gc -q && git clone -q . ../s`,
		"jobs":       `sleep 0.01 & wait %1; coproc cat; echo a >&"${COPROC[1]}"; read x <&"${COPROC[0]}"; [ "$x" = a ]; cat <(echo b) >/dev/null`,
		"login":      `bash -lc 'id; groups'`,
		"xargs":      `seq 20 | xargs -P4 -n1 true`,
	} {
		r := run(t, l, shell("set -e\n"+script))
		if r.exit.Code != 0 || r.exit.Signal != 0 || r.errs != "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A program in launch's place that never gets ready, and one that ends before.
func startsThatHang(t *testing.T) {
	for program, step := range map[string]launch.Step{"/usr/bin/yes": launch.StepStopped, "/usr/bin/true": launch.StepKilled} {
		l := starter(t, func(c *launch.Config) { c.Program, c.Timeout = program, 200*time.Millisecond })
		began := time.Now()
		_, err := l.Start(t.Context(), launch.Command{Argv: []string{"x"}, Env: env, Dir: "/", Mark: mark}) // no option of theirs
		if e, ok := errors.AsType[*launch.StartError](err); !ok || e.Step != step {
			t.Errorf("%s: got %v", program, err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("%s: took %v", program, took)
		}
	}
}

// One command stops everything of its user all the time. A start must come back,
// the Launcher must stay of use, and nothing may be left.
func stormOfStops(t *testing.T) {
	l := starter(t, func(c *launch.Config) { c.Timeout = 200 * time.Millisecond })
	storm, err := l.Start(t.Context(), python("import os, signal\nsignal.signal(signal.SIGALRM, signal.SIG_DFL); signal.alarm(60)\nwhile True:\n  try: os.kill(-1, signal.SIGSTOP)\n  except OSError: pass"))
	if err != nil {
		t.Fatal(err)
	}
	defer storm.Close()
	time.Sleep(300 * time.Millisecond)
	var started []*launch.Process
	stopped, slowest := 0, time.Duration(0)
	for range 10 {
		began := time.Now()
		p, err := l.Start(t.Context(), shell("exec sleep 60"))
		slowest = max(slowest, time.Since(began))
		if err == nil {
			started = append(started, p)
			continue
		}
		e, ok := errors.AsType[*launch.StartError](err)
		if !ok || e.Step != launch.StepStopped {
			t.Errorf("got %v", err)
		}
		stopped++
	}
	t.Logf("started %d, stopped %d, slowest %v", len(started), stopped, slowest)
	if slowest > 5*time.Second {
		t.Errorf("a start took %v", slowest)
	}
	for _, p := range append(started, storm) {
		_ = p.Signal(syscall.SIGKILL)
		select {
		case <-p.Done():
		case <-time.After(5 * time.Second):
			t.Error("SIGKILL did not end a command")
		}
		p.Close()
	}
	if r := run(t, starter(t), shell("echo fine")); r.out != "fine\n" {
		t.Errorf("after the storm: %+v", r)
	}
}

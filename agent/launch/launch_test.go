package launch_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"shoal/agent/boxtest"
	"shoal/agent/launch"
	"shoal/agent/proc"
	"shoal/agent/threads"
)

const mark = 61007

var env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/workspace", "LANG=C.UTF-8"}

// starter returns a Launcher as the agent would make it.
func starter(t *testing.T, change ...func(*launch.Config)) *launch.Launcher {
	t.Helper()
	pool, err := threads.NewPool(threads.Config{UID: boxtest.UID, GID: boxtest.GID})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	cfg := launch.Config{
		Program: boxtest.Program("launch"), UID: boxtest.UID, GID: boxtest.GID,
		Reaper: proc.NewOwnReaper(), Threads: pool, NoRewrite: launch.RewriteUnchecked(),
	}
	for _, f := range change {
		f(&cfg)
	}
	l, err := launch.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func shell(script string) launch.Command {
	return launch.Command{Argv: []string{"bash", "-c", script}, Env: env, Dir: "/workspace", Mark: mark}
}

// result is what a command wrote and how it ended.
type result struct {
	out, errs string
	exit      proc.Exit
}

func run(t *testing.T, l *launch.Launcher, c launch.Command) result {
	t.Helper()
	p, err := l.Start(t.Context(), c)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return finish(t, p)
}

func finish(t *testing.T, p *launch.Process) result {
	t.Helper()
	defer p.Close()
	limit := time.Now().Add(20 * time.Second)
	_ = p.Stdout.SetReadDeadline(limit)
	_ = p.Stderr.SetReadDeadline(limit)
	errs := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(p.Stderr)
		errs <- string(b)
	}()
	out, err := io.ReadAll(p.Stdout)
	if err != nil {
		t.Fatalf("read stdout: %v", err)
	}
	r := result{out: string(out), errs: <-errs}
	select {
	case <-p.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the command did not end")
	}
	r.exit = p.Exit()
	return r
}

func TestSandbox(t *testing.T) {
	boxtest.Run(t, []boxtest.Case{
		{Name: "what a command is", Func: whatACommandIs},
		{Name: "its limits and descriptors", Func: limitsAndDescriptors},
		{Name: "its pipes are its own", Func: pipesAreTheUsers},
		{Name: "a terminal", Func: terminal},
		{Name: "failed starts name the step", Func: failedStarts},
		{Name: "no way around the filter", Func: filterHolds},
		{Name: "no rewriting of calls by a tracer", Func: noRewriting},
		{Name: "programs that must work", Func: programs},
		{Name: "starts that hang", Func: startsThatHang},
		{Name: "a storm of stops cannot hold a start", Func: stormOfStops},
		{Name: "a cancelled start leaves nothing", Func: cancelledStart},
		{Name: "the limit of processes", Func: processLimit, Runtime: "runsc"},
		{Name: "attach joins", Func: attachJoins},
		{Name: "attach ends with its input", Func: attachEnds},
		{Name: "attach without an agent", Func: attachAlone},
		{Name: "how long a start takes", Func: startTime},
	})
}

func whatACommandIs(t *testing.T) {
	l := starter(t)
	r := run(t, l, shell("cat /proc/self/status; umask; id; id -Gn; pwd"))
	if r.exit.Code != 0 || r.errs != "" {
		t.Errorf("exit %+v, stderr %q", r.exit, r.errs)
	}
	want := map[string]string{
		"Uid": "1000\t1000\t1000\t1000", "Gid": "1000\t1000\t1000\t1000", "Groups": strconv.Itoa(mark),
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "Seccomp": "2",
	}
	if boxtest.Runtime() == "runc" { // gVisor's status has no such lines
		want["NoNewPrivs"], want["CapAmb"] = "1", "0000000000000000"
	}
	for line := range strings.Lines(r.out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if w, ok := want[key]; ok && strings.TrimSpace(value) == w {
			delete(want, key)
		}
	}
	if len(want) > 0 {
		t.Errorf("not as promised: %v in\n%s", slices.Sorted(maps.Keys(want)), r.out)
	}
	for _, text := range []string{"0022\n", "uid=1000(sandbox) gid=1000(sandbox) groups=1000(sandbox),61007(mark61007)\n", "sandbox mark61007\n", "/workspace\n"} {
		if !strings.Contains(r.out, text) {
			t.Errorf("%q is not in\n%s", text, r.out)
		}
	}
}

func limitsAndDescriptors(t *testing.T) {
	l := starter(t, func(c *launch.Config) { c.OpenFiles = 777 })
	r := run(t, l, shell(`ulimit -c; ulimit -Hc; ulimit -n; ulimit -Hn; cat /proc/self/oom_score_adj
python3 -c '
import os
for fd in range(3, 777):
    try: os.fstat(fd); print("open", fd)
    except OSError: pass'
ps -o sid= -p $$ | tr -d ' ' | grep -qx $$ && echo own session`))
	if want := "0\n0\n777\n777\n500\nown session\n"; r.out != want {
		t.Errorf("got %q, want %q (stderr %q)", r.out, want, r.errs)
	}
}

func pipesAreTheUsers(t *testing.T) {
	l := starter(t)
	c := shell("echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin")
	c.Stdin = true
	p, err := l.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdin.WriteString("in\n"); err != nil {
		t.Fatal(err)
	}
	_ = p.Stdin.Close()
	if r := finish(t, p); r.out != "out\nin\n" || r.errs != "err\n" || r.exit.Code != 0 {
		t.Errorf("got %+v", r)
	}
	if r := run(t, l, shell("cat; echo end")); r.out != "end\n" {
		t.Errorf("without stdin: got %+v", r)
	}
}

func terminal(t *testing.T) {
	l := starter(t)
	c := shell(`tty; stty size; read line; echo "got $line"; : < $(tty) && echo reopened; tty -s < /dev/tty && echo controlling; stty size`)
	c.Terminal = &launch.Size{Rows: 33, Cols: 101}
	p, err := l.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.Stdin != nil || p.Stdout != nil || p.Stderr != nil {
		t.Error("pipes beside a terminal")
	}
	if err := p.Terminal.Resize(launch.Size{Rows: 40, Cols: 120}); err != nil {
		t.Errorf("resize: %v", err)
	}
	if _, err := p.Terminal.Write([]byte("hello\r")); err != nil {
		t.Errorf("write: %v", err)
	}
	_ = p.Terminal.SetReadDeadline(time.Now().Add(20 * time.Second))
	go func() { // gVisor (2022) does not tell the end of a terminal
		<-p.Done()
		_ = p.Terminal.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	}()
	out, err := io.ReadAll(p.Terminal)
	if err != nil && boxtest.Runtime() == "runc" {
		t.Errorf("read: %v", err)
	}
	want := []string{"/dev/pts/", "got hello", "reopened", "40 120"}
	if boxtest.Runtime() == "runc" { // gVisor (2022) opens no /dev/tty
		want = append(want, "controlling")
	}
	for _, w := range want {
		if !strings.Contains(string(out), w) {
			t.Errorf("%q is not in %q", w, out)
		}
	}
}

func failedStarts(t *testing.T) {
	l := starter(t)
	in := func(dir string, argv ...string) launch.Command {
		return launch.Command{Argv: argv, Env: env, Dir: dir, Mark: mark}
	}
	for name, c := range map[string]struct {
		command launch.Command
		step    launch.Step
		errno   syscall.Errno
	}{
		"no directory":       {in("/nope", "true"), launch.StepDirectory, syscall.ENOENT},
		"a file":             {in("/etc/passwd", "true"), launch.StepDirectory, syscall.ENOTDIR},
		"root's directory":   {in("/run/shoal", "true"), launch.StepDirectory, syscall.EACCES},
		"no program":         {in("/", "no-such-program"), launch.StepExec, syscall.ENOENT},
		"no program by path": {in("/", "/bin/no-such-program"), launch.StepExec, syscall.ENOENT},
		"not executable":     {in("/", "/etc/passwd"), launch.StepExec, syscall.EACCES},
		"a directory":        {in("/", "/etc"), launch.StepExec, syscall.EACCES},
		"not to be entered":  {in("/", "/opt/shoal/bin/agent"), launch.StepExec, syscall.EACCES},
		"too long":           {in("/", "true", strings.Repeat("x", 1<<20)), launch.StepExec, syscall.E2BIG},
		"a NUL":              {in("/", "true", "a\x00b"), launch.StepFork, syscall.EINVAL},
		"empty program":      {in("/", ""), launch.StepOptions, syscall.EINVAL},
		"no mark":            {launch.Command{Argv: []string{"true"}, Dir: "/"}, launch.StepOptions, syscall.EINVAL},
	} {
		p, err := l.Start(t.Context(), c.command)
		if err == nil {
			p.Close()
			t.Errorf("%s: started", name)
			continue
		}
		e, ok := errors.AsType[*launch.StartError](err)
		if !ok || e.Step != c.step || e.Errno != c.errno {
			t.Errorf("%s: got %v, want %v: %v", name, err, c.step, c.errno)
		}
	}
	lost := starter(t, func(c *launch.Config) { c.Program = "/nope/launch" })
	if _, err := lost.Start(t.Context(), shell("true")); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("without the launch program: %v", err)
	}
}

func cancelledStart(t *testing.T) {
	l := starter(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("withdrawn")
	cancel(because)
	if _, err := l.Start(ctx, shell("true")); !errors.Is(err, because) {
		t.Errorf("cancelled before: %v", err)
	}
	for delay := range 20 {
		ctx, cancel := context.WithCancelCause(t.Context())
		timer := time.AfterFunc(time.Duration(delay)*100*time.Microsecond, func() { cancel(because) })
		p, err := l.Start(ctx, shell("exec sleep 30"))
		timer.Stop()
		cancel(because)
		switch {
		case err == nil:
			_ = p.Signal(syscall.SIGKILL)
			<-p.Done()
			p.Close()
		case !errors.Is(err, because):
			t.Errorf("cancelled after %d: %v", delay, err)
		}
	}
}

func processLimit(t *testing.T) {
	l := starter(t, func(c *launch.Config) { c.Processes = 12 })
	r := run(t, l, shell("for i in $(seq 30); do sleep 3 & done; true"))
	if !strings.Contains(r.errs, "fork") {
		t.Errorf("30 processes under a limit of 12: %+v", r)
	}
}

// Beside a plain start, which drops nothing.
func startTime(t *testing.T) {
	n := 100
	if boxtest.Runtime() != "runc" {
		n = 10
	}
	hardened, plain := starter(t), launch.NewUnhardened(proc.NewOwnReaper())
	times := map[*launch.Launcher][]time.Duration{}
	for range n {
		for _, l := range []*launch.Launcher{hardened, plain} {
			began := time.Now()
			p, err := l.Start(t.Context(), shell("true"))
			if err != nil {
				t.Fatal(err)
			}
			<-p.Done()
			times[l] = append(times[l], time.Since(began))
			p.Close()
		}
	}
	slices.Sort(times[hardened])
	slices.Sort(times[plain])
	t.Logf("bash -c true, %d times, median: %v hardened, %v plain", n, times[hardened][n/2], times[plain][n/2])
}

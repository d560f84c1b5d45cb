package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/nats-io/nats.go"

	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

// bed is a fleet of fakes that command lines are run against.
type bed struct {
	t    *testing.T
	url  string
	fake *messagingtest.Fake
}

func newBed(t *testing.T) *bed {
	t.Helper()
	ns := messagingtest.Listening(t, "", "")
	b := &bed{t: t, url: ns.ClientURL(), fake: messagingtest.NewFake(map[string]messagingtest.Program{
		"say": func(_ context.Context, p *messagingtest.Proc) int {
			fmt.Fprintln(p.Stdout(), "out")
			fmt.Fprintln(p.Stderr(), "err")
			return 3
		},
		"cat": cat,
		"bash -l": func(ctx context.Context, p *messagingtest.Proc) int {
			fmt.Fprint(p.Stdout(), "$ ")
			return cat(ctx, p)
		},
		"sleep 100 s": sleep,
	})}
	nc, err := nats.Connect(b.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b.fake.StartWorker(t, nc, "w1")
	return b
}

func cat(_ context.Context, p *messagingtest.Proc) int {
	_, _ = io.Copy(p.Stdout(), p)
	fmt.Fprintf(p.Stderr(), "%d rows\n", p.Size().Rows)
	return 0
}

func sleep(ctx context.Context, p *messagingtest.Proc) int {
	fmt.Fprintln(p.Stdout(), "asleep")
	<-ctx.Done()
	return 0
}

// shoal runs one command line.
func (b *bed) shoal(stdin string, args ...string) (stdout, stderr string, code int) {
	b.t.Helper()
	var out, errs syncBuffer
	a := &app{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs}
	code = a.main(b.t.Context(), append([]string{"--nats-url", b.url}, args...))
	return out.String(), errs.String(), code
}

// must runs a command line that has to succeed and returns its output.
func (b *bed) must(args ...string) string {
	b.t.Helper()
	out, errs, code := b.shoal("", args...)
	if code != 0 {
		b.t.Fatalf("shoal %v: code %d, %s", args, code, errs)
	}
	return out
}

// syncBuffer may be read while a command line writes to it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *syncBuffer) await(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !strings.Contains(s.String(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %q in %q", text, s.String())
		}
	}
}

func TestExecPassesStreamsAndCodeOn(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if got := b.must("create", "box"); got != "box\n" {
		t.Errorf("create printed %q", got)
	}
	for _, args := range [][]string{{"exec", "box", "-c", "say"}, {"exec", "-c", "say", "box"}, {"exec", "box", "--", "say"}, {"exec", "box", "say"}} {
		out, errs, code := b.shoal("", args...)
		if out != "out\n" || errs != "err\n" || code != 3 {
			t.Errorf("%v: %q, %q, code %d", args, out, errs, code)
		}
	}
	if out, _, code := b.shoal("typed", "exec", "-i", "box", "--", "cat"); out != "typed" || code != 0 {
		t.Errorf("stdin: %q, code %d", out, code)
	}
	if _, errs, code := b.shoal("", "exec", "box", "--", "nothing"); code != exitFailure || !strings.Contains(errs, "no such program") {
		t.Errorf("a program that is missing: code %d, %q", code, errs)
	}
	if _, errs, code := b.shoal("", "exec", "nobox", "--", "say"); code != exitFailure || !strings.Contains(errs, "no sandbox nobox") {
		t.Errorf("a sandbox that is missing: code %d, %q", code, errs)
	}
	if _, errs, code := b.shoal("", "exec", "--nonsense"); code != exitUsage || !strings.Contains(errs, "nonsense") {
		t.Errorf("usage: code %d, %q", code, errs)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var info messaging.SandboxInfo
	if err := json.Unmarshal([]byte(b.must("--json", "create", "box")), &info); err != nil || info.Name != "box" {
		t.Fatalf("%+v, %v", info, err)
	}
	out, _, code := b.shoal("", "--json", "exec", "box", "--", "say")
	var r result
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Stdout != "out\n" || r.Stderr != "err\n" || r.Code != 3 || code != 3 {
		t.Fatalf("%s, %v, code %d", out, err, code)
	}
	out, _, code = b.shoal("", "--json", "exec", "nobox", "--", "say")
	var failed struct{ Error sandbox.Error }
	if err := json.Unmarshal([]byte(out), &failed); err != nil || failed.Error.Code != sandbox.NotFound || code != exitFailure {
		t.Fatalf("%s, %v, code %d", out, err, code)
	}
}

// Run destroys its sandbox whatever happens.
func TestRunLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for _, c := range []struct {
		program string
		code    int
	}{{"say", 3}, {"nothing", exitFailure}} {
		if _, _, code := b.shoal("", "run", "--", c.program); code != c.code {
			t.Errorf("%s: code %d", c.program, code)
		}
	}
	if got := b.must("ls", "-q"); got != "" {
		t.Errorf("left: %s", got)
	}
}

// Ctrl-C kills the command, says so, and the code is a shell's.
func TestInterruptKillsTheCommand(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var out, errs syncBuffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
	code := make(chan int, 1)
	go func() { code <- a.main(b.t.Context(), []string{"--nats-url", b.url, "run", "--", "sleep", "100", "s"}) }()
	out.await(t, "asleep")
	a.interrupt()
	if got := <-code; got != 130 || !strings.Contains(errs.String(), "killing the command") {
		t.Errorf("code %d, %q", got, errs.String())
	}
	if got := b.must("ls", "-q"); got != "" {
		t.Errorf("left: %s", got)
	}
}

func TestCommandsInTheBackground(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.must("create", "box")
	id := strings.TrimSpace(b.must("exec", "-d", "--id", "c1", "box", "--", "sleep", "100", "s"))
	if id != "c1" {
		t.Fatalf("id %q", id)
	}
	if got := b.must("ps", "box"); !strings.Contains(got, "c1") || !strings.Contains(got, "running") {
		t.Errorf("ps: %s", got)
	}
	if got := b.must("logs", "box", "c1"); got != "asleep\n" {
		t.Errorf("logs: %q", got)
	}
	var out, errs syncBuffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
	code := make(chan int, 1)
	go func() { code <- a.main(b.t.Context(), []string{"--nats-url", b.url, "attach", "box", "c1"}) }()
	out.await(t, "asleep")
	if got := b.must("kill", "box", "c1"); !strings.Contains(got, "1 commands") {
		t.Errorf("kill: %q", got)
	}
	if got := <-code; got != 137 || !strings.Contains(errs.String(), "killed by kill") {
		t.Errorf("attach: code %d, %q", got, errs.String())
	}
	if _, errs, code := b.shoal("", "attach", "box", "other"); code != exitFailure || !strings.Contains(errs, "shoal ps box") {
		t.Errorf("a command that is missing: code %d, %q", code, errs)
	}
}

func TestCopyBothWays(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.must("create", "box")
	dir := t.TempDir()
	data := bytes.Repeat([]byte("0123456789"), 200_000)
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, data, 0o600); err != nil {
		t.Fatal(err)
	}
	b.must("cp", in, "box:f")
	b.must("cp", "box:/workspace/f", out)
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if _, _, code := b.shoal("piped", "cp", "-", "box:p"); code != 0 {
		t.Errorf("from standard input: code %d", code)
	}
	if got := b.must("cp", "box:p", "-"); got != "piped" {
		t.Errorf("to standard output: %q", got)
	}
	if _, errs, code := b.shoal("", "cp", "box:nope", out); code != exitFailure || !strings.Contains(errs, "nope") {
		t.Errorf("missing: code %d, %q", code, errs)
	}
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, data) {
		t.Errorf("a copy that failed changed its destination: %v", err)
	}
	for _, args := range [][]string{{"cp", in, out}, {"cp", "box:a", "box:b"}, {"cp", dir, "box:d"}} {
		if _, errs, code := b.shoal("", args...); code != exitFailure || errs == "" {
			t.Errorf("%v: code %d, %q", args, code, errs)
		}
	}
}

func TestCopyTree(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.must("create", "box")
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "a", "b", "run"), []byte("x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("b/run", filepath.Join(tree, "a", "l")); err != nil {
		t.Fatal(err)
	}
	b.must("cp", "-r", tree, "box:t")
	b.must("cp", "-r", "box:t", filepath.Join(dir, "back"))
	st, err := os.Stat(filepath.Join(dir, "back", "a", "b", "run"))
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Fatalf("%v, %v", st, err)
	}
	if l, err := os.Readlink(filepath.Join(dir, "back", "a", "l")); err != nil || l != "b/run" {
		t.Errorf("link %q, %v", l, err)
	}
}

func TestForwardCarriesBothWays(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.must("create", "box")
	var out, errs syncBuffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
	code := make(chan int, 1)
	go func() { code <- a.main(b.t.Context(), []string{"--nats-url", b.url, "forward", "box", "0:8080"}) }()
	errs.await(t, "Ctrl-C ends it")
	addr := strings.Fields(errs.String())[1]
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data := bytes.Repeat([]byte("ping"), 100_000)
	go func() {
		_, _ = conn.Write(data)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	a.interrupt()
	if c := <-code; c != 0 {
		t.Errorf("code %d, %q", c, errs.String())
	}
}

// A shell on a real terminal: keys go in, the size is passed on, Ctrl-]
// detaches and attach comes back.
func TestShellOnATerminal(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.must("create", "box")
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 33, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	var screen, errs syncBuffer
	go func() { _, _ = io.Copy(&screen, master) }()
	a := &app{stdin: tty, stdout: tty, stderr: &errs}
	code := make(chan int, 1)
	go func() { code <- a.main(b.t.Context(), []string{"--nats-url", b.url, "shell", "box"}) }()
	screen.await(t, "$ ")                                       // the terminal is raw by now
	if _, err := master.WriteString("abc\x03def"); err != nil { // Ctrl-C is the program's
		t.Fatal(err)
	}
	screen.await(t, "abc\x03def")
	if _, err := master.WriteString("\x1d"); err != nil {
		t.Fatal(err)
	}
	if c := <-code; c != 0 || !strings.Contains(errs.String(), "shoal attach box ") {
		t.Fatalf("code %d, %q", c, errs.String())
	}
	_, id, _ := strings.Cut(errs.String(), "attach box ")
	id, _, _ = strings.Cut(id, "`")
	var after syncBuffer
	a = &app{stdin: strings.NewReader(""), stdout: &after, stderr: &errs}
	go func() { code <- a.main(b.t.Context(), []string{"--nats-url", b.url, "attach", "--watch", "box", id}) }()
	after.await(t, "abc\x03def")
	b.must("kill", "box", id)
	<-code
}

func TestFirstFailuresInPlainWords(t *testing.T) {
	t.Parallel()
	locked := messagingtest.Listening(t, "user", "right")
	empty := messagingtest.Listening(t, "", "")
	state := t.TempDir()
	stale := t.TempDir()
	if err := os.WriteFile(filepath.Join(stale, credentialsFile), []byte(`{"url":"nats://127.0.0.1:1","user":"u","password":"topsecret"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no worker here", []string{"--state-dir", state}, "no worker runs on this machine"},
		{"a worker that has gone", []string{"--state-dir", stale}, "no NATS server answers at nats://127.0.0.1:1"},
		{"no NATS there", []string{"--nats-url", "nats://u:topsecret@127.0.0.1:1"}, "no NATS server answers at nats://127.0.0.1:1"},
		{"wrong credentials", []string{"--nats-url", "nats://user:wrong@" + strings.TrimPrefix(locked.ClientURL(), "nats://")}, "NATS refuses these credentials"},
		{"no worker on it", []string{"--nats-url", empty.ClientURL()}, "no worker answers"},
		{"a bad name", []string{"--nats-url", empty.ClientURL(), "rm", "-x"}, "unknown flag"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
			code := a.main(t.Context(), append(c.args, "ls"))
			if code == 0 || !strings.Contains(errs.String(), c.want) {
				t.Errorf("code %d, %q", code, errs.String())
			}
			if strings.Contains(errs.String(), "topsecret") {
				t.Errorf("a password is printed: %q", errs.String())
			}
		})
	}
}

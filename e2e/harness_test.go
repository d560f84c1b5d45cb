package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/docker/dockertest"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// binaries is where TestMain builds the programs.
var binaries string

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(originsEnv); ok {
		os.Exit(egressWorker(text))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shoal-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	if err := linkSelf(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for name, pkg := range map[string]string{
		"worker": "shoal/cmd/worker", "shoal": "shoal/cmd/shoal", "nats-server": "github.com/nats-io/nats-server/v2",
	} {
		out, err := exec.Command("go", "build", "-tags", buildTags, "-o", filepath.Join(dir, name), pkg).CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", pkg, err, out)
			return 1
		}
	}
	// A fleet's tests mostly wait: for heartbeats, leases and programs that sleep.
	flag.Parse()
	if err := flag.Set("test.parallel", "3"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// lasting returns how much of a thing is done: enough to show the promise, or its
// full length where `make whole` asks for it.
func lasting(shortly, full int) int {
	if os.Getenv("SHOAL_WHOLE") != "" {
		return full
	}
	return shortly
}

// process is a program that the test started.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	once sync.Once
}

func start(t *testing.T, name string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(filepath.Join(binaries, name), args...), done: make(chan struct{})}
	p.log = filepath.Join(t.TempDir(), name+".log")
	f, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.Env = append(os.Environ(), env...)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		_ = f.Close()
		close(p.done)
	}()
	t.Cleanup(p.stop)
	return p
}

// stop ends the process, SIGTERM first, and shows its log when the test failed.
func (p *process) stop() {
	p.once.Do(func() {
		p.signal(syscall.SIGCONT)
		p.signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(40 * time.Second):
			p.t.Errorf("%s did not end within 40 s of SIGTERM", p.name)
			p.signal(syscall.SIGKILL)
			<-p.done
		}
		if p.t.Failed() {
			if data, err := os.ReadFile(p.log); err == nil {
				p.t.Logf("log of %s:\n%s", p.name, tail(data, 8<<10))
			}
		}
	})
}

// kill ends the process with SIGKILL and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

func (p *process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Logf("signal %s: %v", p.name, err)
	}
}

// output returns what the process has printed so far.
func (p *process) output() string {
	data, _ := os.ReadFile(p.log)
	return string(data)
}

func (p *process) rss() int64 { return statusField(p.cmd.Process.Pid, "VmRSS:") }

// statusField reads a line of /proc/<pid>/status in KiB.
func statusField(pid int, field string) int64 {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}

func tail(b []byte, n int) []byte {
	if len(b) > n {
		return b[len(b)-n:]
	}
	return b
}

// freePort returns a loopback port that was free a moment ago.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// bus is a NATS server as a process of its own.
type bus struct {
	*process
	url  string
	port int
	dir  string
}

func startBus(t *testing.T) *bus {
	t.Helper()
	b := &bus{port: freePort(t), dir: t.TempDir()}
	b.url = "nats://127.0.0.1:" + strconv.Itoa(b.port)
	b.start(t)
	return b
}

func (b *bus) start(t *testing.T) {
	t.Helper()
	b.process = start(t, "nats-server", nil, "-a", "127.0.0.1", "-p", strconv.Itoa(b.port), "-js", "-sd", b.dir)
	eventually(t, 10*time.Second, "the NATS server answers", func() error {
		nc, err := nats.Connect(b.url)
		if err == nil {
			nc.Close()
		}
		return err
	})
}

// fleet is a set of workers on one NATS server and one engine.
type fleet struct {
	t       *testing.T
	name    string
	bus     *bus
	client  *messaging.Client
	workers []*process
	flags   []string
	program string   // what the workers run
	env     []string // of the workers, beside this process's own
}

// newFleet starts a NATS server, makes the buckets and starts n workers.
func newFleet(t *testing.T, n int, flags ...string) *fleet {
	t.Helper()
	return newFleetOf(t, "worker", nil, n, flags...)
}

func newFleetOf(t *testing.T, program string, env []string, n int, flags ...string) *fleet {
	t.Helper()
	dockertest.NeedImage(t)
	f := &fleet{t: t, name: dockertest.Fleet(t), bus: startBus(t), flags: flags, program: program, env: env}
	f.init()
	for range n {
		f.add()
	}
	var err error
	if f.client, err = messaging.Connect(f.bus.url, messaging.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.client.Close() })
	if n > 0 {
		f.settle()
	}
	return f
}

// init makes the buckets as an operator does.
func (f *fleet) init() {
	f.t.Helper()
	nc, err := nats.Connect(f.bus.url)
	if err != nil {
		f.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := kv.Create(f.t.Context(), js, kv.Config{}); err != nil {
		f.t.Fatal(err)
	}
}

// add starts another worker.
func (f *fleet) add(flags ...string) *process {
	f.t.Helper()
	args := append([]string{"--nats-url", f.bus.url, "--fleet", f.name, "--image", dockertest.Image, "--log-level", "debug", "--sweep-grace", "2s", "--sweep-every", "1s"}, f.flags...)
	p := start(f.t, f.program, f.env, append(args, flags...)...)
	f.workers = append(f.workers, p)
	return p
}

// settle waits until every worker serves.
func (f *fleet) settle() {
	f.t.Helper()
	eventually(f.t, 30*time.Second, "all workers serve", func() error {
		list, err := f.client.Workers(f.t.Context())
		if err != nil {
			return err
		}
		serving := 0
		for _, w := range list {
			if w.State == "serving" {
				serving++
			}
		}
		if serving < len(f.workers) {
			return fmt.Errorf("%d of %d serve", serving, len(f.workers))
		}
		return nil
	})
}

// patience is how long an engine that has much else to do may take.
const patience = 2 * time.Minute

// create makes a sandbox that is destroyed with the test.
func (f *fleet) create(r messaging.CreateRequest) messaging.Target {
	f.t.Helper()
	if r.Name == "" {
		r.Name = sandbox.Name("box-" + sandbox.NewID()[:8])
	}
	if r.Limits.MemoryMB == 0 {
		r.Limits = sandbox.Limits{MemoryMB: 512, Pids: 256}
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	info, err := f.client.Create(ctx, r)
	if err != nil {
		f.t.Fatalf("create: %v", err)
	}
	t := messaging.Target{Sandbox: info.Name, Generation: info.Generation}
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := f.client.Destroy(ctx, t)
		replaced := err != nil && sandbox.AsError(err).Reason == "no_worker" // those that came later end first; the fleet is swept
		if err != nil && sandbox.CodeOf(err) != sandbox.Stale && !replaced {
			f.t.Errorf("destroy: %v", err)
		}
	})
	return t
}

// run runs a shell command to its end.
func (f *fleet) run(t messaging.Target, shell string) *messaging.RunResult {
	f.t.Helper()
	r, err := f.client.Run(f.t.Context(), t, sandbox.Command{Shell: shell}, messaging.RunOptions{})
	if err != nil {
		f.t.Fatalf("run %q: %v", shell, err)
	}
	return r
}

// owner returns the process of the worker that owns a sandbox.
func (f *fleet) owner(t messaging.Target) (*process, messaging.WorkerID) {
	f.t.Helper()
	info, err := f.client.Get(f.t.Context(), t)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, p := range f.workers {
		data, _ := os.ReadFile(p.log)
		if strings.Contains(string(data), `"worker":"`+string(info.Owner)+`"`) {
			return p, info.Owner
		}
	}
	f.t.Fatalf("no process for the owner %q", info.Owner)
	return nil, ""
}

// eventually tries fn until it succeeds, at most for d.
func eventually(t *testing.T, d time.Duration, what string, fn func() error) {
	t.Helper()
	deadline := time.Now().Add(d)
	for {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, d, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// credentials of an embedded server.
type credentials struct{ URL, User, Password string }

// embedded starts one worker with a NATS server of its own. Its settings come
// from the environment, as every flag's can.
func embedded(t *testing.T, flags ...string) (*process, credentials, string) {
	t.Helper()
	dockertest.NeedImage(t)
	state := filepath.Join(t.TempDir(), "state")
	p := start(t, "worker", []string{"SHOAL_STATE_DIR=" + state, "SHOAL_FLEET=" + dockertest.Fleet(t), "SHOAL_IMAGE=" + dockertest.Image}, flags...)
	var c credentials
	eventually(t, 30*time.Second, "the worker writes its credentials", func() error {
		data, err := os.ReadFile(filepath.Join(state, "nats.json"))
		if err != nil {
			return err
		}
		return json.Unmarshal(data, &c)
	})
	return p, c, state
}

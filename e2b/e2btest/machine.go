package e2btest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"shoal/e2b/e2btest/envd"
)

// machine is what a sandbox runs in.
type machine interface {
	// dial reaches the daemon.
	dial(ctx context.Context) (net.Conn, error)
	// freeze and thaw stop and continue every process.
	freeze(ctx context.Context) error
	thaw(ctx context.Context) error
	// off ends every process and keeps the files; boot begins anew.
	off(ctx context.Context) error
	boot(ctx context.Context) error
	destroy(ctx context.Context) error
}

// Backend makes the machines of a fake's sandboxes.
type Backend interface {
	machine(ctx context.Context, id string, c envd.Config) (machine, error)
}

// Plain runs the processes of sandboxes on the test's own machine. A paused
// sandbox cannot be reached, but its processes run on.
type Plain struct{}

func (Plain) machine(_ context.Context, _ string, c envd.Config) (machine, error) {
	c.AnyUser = true
	m := &plainMachine{cfg: c}
	if err := m.boot(context.Background()); err != nil {
		return nil, err
	}
	return m, nil
}

type plainMachine struct {
	cfg envd.Config

	mu     sync.Mutex
	daemon *envd.Server
	server *httptest.Server
}

func (m *plainMachine) dial(ctx context.Context) (net.Conn, error) {
	m.mu.Lock()
	server := m.server
	m.mu.Unlock()
	if server == nil {
		return nil, errors.New("the machine is off")
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
}

func (m *plainMachine) freeze(context.Context) error { return nil }
func (m *plainMachine) thaw(context.Context) error   { return nil }

func (m *plainMachine) boot(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.daemon = envd.New(m.cfg)
	m.server = httptest.NewServer(m.daemon)
	return nil
}

func (m *plainMachine) off(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.server != nil {
		m.daemon.Close()
		m.server.CloseClientConnections()
		m.server.Close()
		m.server, m.daemon = nil, nil
	}
	return nil
}

func (m *plainMachine) destroy(ctx context.Context) error { return m.off(ctx) }

// Docker makes each sandbox a container. The zero value is not usable; see
// [NewDocker].
type Docker struct {
	image string
	build json.RawMessage
	guest string // the built guest program
	root  string // a directory per sandbox
	label string
}

// NewDocker returns a backend that makes containers of image, each prepared as
// build says: the body of a template's build request, nil for none. It builds the
// guest program unless guest names it (see [BuildGuest]). What is left of its
// containers is removed at the end of the test.
func NewDocker(t testing.TB, image string, build json.RawMessage, guest string) *Docker {
	t.Helper()
	root, err := os.MkdirTemp("", "e2b") //nolint:usetesting // Unix sockets live below it: t.TempDir is too long
	if err != nil {
		t.Fatal(err)
	}
	if build == nil {
		build = json.RawMessage("{}")
	}
	d := &Docker{image: image, build: build, root: root, guest: guest, label: "shoal.e2btest=" + filepath.Base(root)}
	t.Cleanup(func() {
		d.sweep(t)
		_ = os.RemoveAll(root)
	})
	if guest == "" {
		d.guest = filepath.Join(root, "guest")
		if err := BuildGuest(t.Context(), d.guest); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// BuildGuest builds the program that runs in the containers into the file path:
// several backends of one test program may share it.
func BuildGuest(ctx context.Context, path string) error {
	compile := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "shoal/e2b/e2btest/guest")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("build the guest program: %w\n%s", err, out)
	}
	return nil
}

// sweep removes the containers of this backend, and of no other.
func (d *Docker) sweep(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ids, err := docker(ctx, "ps", "-aq", "--no-trunc", "--filter", "label="+d.label)
	if err != nil {
		t.Errorf("list leftover containers: %v", err)
		return
	}
	for id := range bytes.FieldsSeq(ids) {
		if _, err := docker(ctx, "rm", "-f", "-v", string(id)); err != nil {
			t.Errorf("remove a leftover container: %v", err)
		}
	}
}

// docker runs the command line client: the fake stands for another vendor's
// engine and shares no code with the Docker provider.
func docker(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("docker %s: %w: %s", args[0], err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out.Bytes(), nil
}

func (d *Docker) machine(ctx context.Context, id string, c envd.Config) (machine, error) {
	dir := filepath.Join(d.root, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	data, err := json.Marshal(map[string]any{"envd": c, "template": d.build})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600); err != nil {
		return nil, err
	}
	m := &container{name: "e2btest-" + filepath.Base(d.root) + "-" + id, socket: filepath.Join(dir, "envd.sock")}
	_, err = docker(ctx, "run", "-d", "--init", "--name", m.name, "--label", d.label,
		"--tmpfs", "/tmp:rw,nosuid,nodev,exec,size=64m,mode=1777", // a small file system, which a test may fill
		"--network", "none", "--memory", "1g", "--memory-swap", "1g", "--cpus", "1", "--pids-limit", "1024",
		"-v", dir+":/run/envd", "-v", d.guest+":/run/guest:ro", "-v", d.guest+":/usr/bin/sync:ro", "--entrypoint", "/run/guest", d.image, "/run/envd")
	if err == nil {
		err = m.ready(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, m.destroy(context.WithoutCancel(ctx)))
	}
	return m, nil
}

// container is a sandbox in Docker.
type container struct{ name, socket string }

func (m *container) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", m.socket)
}

// ready waits for the daemon.
func (m *container) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return m.dial(ctx) },
		DisableKeepAlives: true,
	}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envd/health", http.NoBody)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			return resp.Body.Close()
		}
		select {
		case <-ctx.Done():
			logs, _ := docker(context.WithoutCancel(ctx), "logs", "--tail", "20", m.name)
			return fmt.Errorf("the guest did not answer: %w: %s", ctx.Err(), logs)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (m *container) freeze(ctx context.Context) error {
	_, err := docker(ctx, "pause", m.name)
	return err
}

func (m *container) thaw(ctx context.Context) error {
	_, err := docker(ctx, "unpause", m.name)
	return err
}

func (m *container) off(ctx context.Context) error {
	_, err := docker(ctx, "kill", m.name)
	return err
}

func (m *container) boot(ctx context.Context) error {
	if _, err := docker(ctx, "start", m.name); err != nil {
		return err
	}
	return m.ready(ctx)
}

func (m *container) destroy(ctx context.Context) error {
	_, err := docker(ctx, "rm", "-f", "-v", m.name)
	return err
}

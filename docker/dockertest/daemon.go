package dockertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/client"
)

// Daemon is an engine of the test's own, which it may stop, kill and start
// again. It has no network to give and its own data, removed with the test.
type Daemon struct {
	t    testing.TB
	dir  string
	cmd  *exec.Cmd
	done chan error

	volumes *sizedVolumes // nil: no volume plugin
}

// NewDaemon starts an engine. It needs root and the program dockerd.
func NewDaemon(t testing.TB) *Daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a Docker engine: run without -short")
	}
	dir, err := os.MkdirTemp("", "shoal-dockerd-") //nolint:usetesting // a socket has at most 107 bytes, too few for the test's name
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{t: t, dir: dir}
	t.Cleanup(func() {
		if d.cmd != nil {
			d.Stop()
		}
		d.volumes.close(t) // after the engine, which would wait for it
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the engine's data: %v", err)
		}
	})
	if err := os.MkdirAll(d.plugins(), 0o700); err != nil {
		t.Fatal(err)
	}
	d.Start()
	return d
}

// mounting runs a mount command where the engine sees its effect.
func (d *Daemon) mounting(command ...string) error {
	args := append([]string{"--mount", "--target", strconv.Itoa(d.cmd.Process.Pid)}, command...)
	if out, err := exec.CommandContext(d.t.Context(), "nsenter", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command[0], err, out)
	}
	return nil
}

// plugins is the engine's own folder of plugins. The machine's is seen by every
// engine on it, and one that has found a plugin there waits for it for good.
func (d *Daemon) plugins() string { return filepath.Join(d.dir, "plugins") }

// Endpoint is where the engine listens.
func (d *Daemon) Endpoint() string { return "unix://" + filepath.Join(d.dir, "docker.sock") }

// Start starts the engine and waits until it answers.
func (d *Daemon) Start() {
	d.t.Helper()
	in := func(name string) string { return filepath.Join(d.dir, name) }
	log, err := os.OpenFile(in("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	if err := os.WriteFile(in("config.json"), []byte("{}"), 0o600); err != nil { // not the machine's own
		d.t.Fatal(err)
	}
	// The engine outlives no test but must end in its own time: not bound to a
	// context, which would kill it and leave its containers' processes.
	// The default bridge is the machine's: with --bridge=none an engine deletes
	// docker0 at its start, whoever made it (measured on Engine 20.10). So this
	// one shares it, leaves the machine's forwarding alone and gives it to nobody.
	const own = `mkdir -p /run/docker/plugins && mount --bind "$0" /run/docker/plugins && exec dockerd "$@"`
	d.cmd = exec.Command("unshare", "--mount", "sh", "-c", own, d.plugins(), "--data-root", in("data"), "--exec-root", in("exec"), "--pidfile", in("pid"),
		"--host", d.Endpoint(), "--config-file", in("config.json"), "--storage-driver=vfs",
		"--iptables=false", "--ip-forward=false", "--ip-masq=false")
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatalf("start dockerd: %v", err)
	}
	d.done = make(chan error, 1)
	go func(cmd *exec.Cmd, done chan<- error) { done <- cmd.Wait() }(d.cmd, d.done)
	d.await()
}

func (d *Daemon) await() {
	d.t.Helper()
	c, err := client.NewClientWithOpts(client.WithHost(d.Endpoint()), client.WithAPIVersionNegotiation())
	if err != nil {
		d.t.Fatal(err)
	}
	defer c.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err = c.Ping(d.t.Context()); err == nil {
			return
		}
		if len(d.done) > 0 || time.Now().After(end) {
			text, _ := os.ReadFile(filepath.Join(d.dir, "log")) // the failure is told with what there is
			d.t.Fatalf("dockerd does not answer: %v\n%s", err, text[max(0, len(text)-2000):])
		}
	}
}

// Stop ends the engine as its service does; its containers stop with it.
func (d *Daemon) Stop() {
	d.t.Helper()
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-d.done: // its exit code does not matter
	case <-time.After(time.Minute):
		d.t.Error("dockerd does not end; killing it")
		_ = d.cmd.Process.Kill()
		<-d.done
	}
	d.cmd = nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"shoal/sandbox"
)

// worker is a worker that the benchmark started, as a process of its own: it
// can be looked into and killed.
type worker struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
}

// startWorker starts the program; bus, where there is one, is the NATS server.
func startWorker(r *rig, bus string, args ...string) (*worker, error) {
	w := &worker{log: filepath.Join(r.dir, "worker-"+sandbox.NewID()[:8]+".log"), done: make(chan struct{})}
	log, err := os.Create(w.log)
	if err != nil {
		return nil, fmt.Errorf("make the worker's log: %w", err)
	}
	defer log.Close() // the process has its own descriptor
	args = append([]string{
		"--fleet", r.fleet, "--image", r.settings.image, "--docker-endpoint", r.settings.endpoint, "--log-level", "warn",
	}, append(args, r.flags...)...)
	w.cmd = exec.Command(r.settings.worker, args...) //nolint:noctx // stop ends it, and in order
	w.cmd.Stdout, w.cmd.Stderr = log, log
	w.cmd.Env = append(os.Environ(), "SHOAL_NATS_URL="+bus) // holds a password, which arguments would show
	// The terminal's ^C is for the benchmark alone: it still needs the worker to
	// clean up. Should the benchmark die, the worker ends too.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the worker: %w: run make build, or use -worker", err)
	}
	go func() {
		defer close(w.done)
		_ = w.cmd.Wait() // how it ended is in its log
	}()
	return w, nil
}

// startHome starts a worker with a NATS server inside and returns its address.
func startHome(ctx context.Context, r *rig) (*worker, string, error) {
	w, err := startWorker(r, "", "--state-dir", r.dir)
	if err != nil {
		return nil, "", err
	}
	var login struct{ URL, User, Password string }
	err = eventually(ctx, "the worker's NATS server runs", func() error {
		select {
		case <-w.done:
			log, _ := os.ReadFile(w.log)
			return fmt.Errorf("the worker has ended: %s", log[max(0, len(log)-1000):])
		default:
		}
		data, err := os.ReadFile(filepath.Join(r.dir, "nats.json"))
		if err != nil {
			return err
		}
		return json.Unmarshal(data, &login)
	})
	if err != nil {
		return w, "", err
	}
	address, err := url.Parse(login.URL)
	if err != nil {
		return w, "", fmt.Errorf("the worker's NATS server: %w", err)
	}
	address.User = url.UserPassword(login.User, login.Password)
	return w, address.String(), nil
}

func (w *worker) pid() int { return w.cmd.Process.Pid }

// kill ends it at once.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // fails only when it has ended
	<-w.done
}

// stop ends it in order, and by force after half a minute.
func (w *worker) stop() error {
	_ = w.cmd.Process.Signal(syscall.SIGTERM) // fails only when it has ended
	select {
	case <-w.done:
		return nil
	case <-time.After(30 * time.Second):
		w.kill()
		return errors.New("the worker did not end within 30 s of SIGTERM")
	}
}

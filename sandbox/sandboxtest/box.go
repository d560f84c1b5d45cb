package sandboxtest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"shoal/agent"
	"shoal/agent/files"
	"shoal/agent/host"
	"shoal/agent/threads"
	"shoal/sandbox"
)

// box is one sandbox of a [Fake]: a folder, and a machine while it runs.
type box struct {
	handle  sandbox.Handle
	bucket  string
	created time.Time
	dir     string

	mu      sync.Mutex // held through every change of state
	state   sandbox.RunState
	machine *machine // nil when stopped
}

func (b *box) object() sandbox.Object {
	b.mu.Lock()
	defer b.mu.Unlock()
	return sandbox.Object{Handle: b.handle, State: b.state, Bucket: b.bucket, Created: b.created, Complete: b.state != sandbox.Absent}
}

func (b *box) build() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bootLocked()
}

func (b *box) bootLocked() (err error) {
	b.machine, err = boot(b.dir)
	if err == nil {
		b.state = sandbox.Running
	}
	return err
}

func (b *box) wake() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wakeLocked()
}

func (b *box) wakeLocked() error {
	switch b.state {
	case sandbox.Running:
		return nil
	case sandbox.Paused:
		b.machine.thaw()
		b.state = sandbox.Running
		return nil
	case sandbox.Stopped:
		return b.bootLocked()
	}
	return gone(b.handle)
}

func (b *box) pause() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state {
	case sandbox.Absent:
		return gone(b.handle)
	case sandbox.Running:
		b.machine.freeze()
		b.state = sandbox.Paused
	}
	return nil
}

func (b *box) stop() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == sandbox.Absent {
		return gone(b.handle)
	}
	if b.machine != nil {
		b.machine.thaw()
		b.machine.suspend()
	}
	b.machine, b.state = nil, sandbox.Stopped
	return nil
}

func (b *box) restart() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == sandbox.Absent {
		return gone(b.handle)
	}
	b.haltLocked()
	return b.bootLocked()
}

func (b *box) destroy() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.haltLocked()
	b.state = sandbox.Absent
	_ = os.RemoveAll(b.dir) // a folder of the test's; what stays is removed with it
}

func (b *box) haltLocked() {
	if b.machine != nil {
		b.machine.thaw()
		b.machine.halt()
		b.machine = nil
	}
}

func (b *box) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine != nil {
		b.machine.cut()
	}
}

func (b *box) attach(wake bool) (io.ReadWriteCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wake {
		if err := b.wakeLocked(); err != nil {
			return nil, err
		}
	}
	switch b.state {
	case sandbox.Running:
		return b.machine.connect(), nil
	case sandbox.Absent:
		return nil, gone(b.handle)
	}
	return nil, sandbox.Errorf(sandbox.Unavailable, "sandbox %s is suspended", b.handle.Name).
		Because("suspended").From(sandbox.FromEngine)
}

// machine is one boot of a box: the agent's server over plain processes.
type machine struct {
	home   string
	server *agent.Server
	gate   gate
	stop   context.CancelFunc // ends the host
	egress func(net.Listener) // serves the agent's proxy address until stop
	wg     sync.WaitGroup     // the host and the sessions

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// boot starts a machine whose home is a folder in dir; beside it is what only
// the agent reads.
func boot(dir string) (*machine, error) {
	home, skills := filepath.Join(dir, "workspace"), filepath.Join(dir, "skills")
	if err := errors.Join(os.MkdirAll(home, 0o755), os.MkdirAll(skills, 0o755)); err != nil {
		return nil, err
	}
	tree, err := files.New(files.Config{Threads: threads.Self{}, Workspace: home, Skills: skills, SkillsWrite: skills})
	if err != nil {
		return nil, err
	}
	h, err := host.NewUnhardened(home, tree)
	if err != nil {
		return nil, err
	}
	server, err := agent.NewServer(agent.ServerConfig{Host: h, Home: home, SpecFile: filepath.Join(dir, "spec")})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &machine{home: home, server: server, stop: stop, conns: make(map[net.Conn]struct{})}
	m.wg.Go(func() { h.Run(ctx) })
	m.egress = func(l net.Listener) {
		m.wg.Go(func() { _ = server.ServeEgress(ctx, l) }) // whoever dials l learns of its end
	}
	return m, nil
}

// connect returns the worker's end of a new stream to the agent.
func (m *machine) connect() net.Conn {
	ours, theirs := net.Pipe()
	m.mu.Lock()
	m.conns[ours] = struct{}{}
	m.mu.Unlock()
	m.wg.Go(func() {
		m.server.ServeConn(gated{theirs, &m.gate})
		m.mu.Lock()
		delete(m.conns, ours)
		m.mu.Unlock()
	})
	return ours
}

func (m *machine) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.conns {
		_ = c.Close()
	}
}

func (m *machine) freeze() {
	m.gate.shut()
	m.signal(syscall.SIGSTOP)
}

func (m *machine) thaw() {
	m.signal(syscall.SIGCONT)
	m.gate.open()
}

// suspend ends as the agent does on SIGTERM, halt as on SIGKILL.
func (m *machine) suspend() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = m.server.Suspend(ctx) // what it could not end, halt kills
	m.halt()
}

func (m *machine) halt() {
	m.cut()
	m.server.Close()
	m.stop()
	m.wg.Wait()
}

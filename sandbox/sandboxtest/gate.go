package sandboxtest

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// gate stops what passes it while it is shut. The zero value is open.
type gate struct {
	mu   sync.Mutex
	wait chan struct{} // nil when open
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait == nil {
		g.wait = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait != nil {
		close(g.wait)
		g.wait = nil
	}
}

func (g *gate) pass() {
	g.mu.Lock()
	wait := g.wait
	g.mu.Unlock()
	if wait != nil {
		<-wait
	}
}

// gated is a connection whose far end stands still while the gate is shut.
type gated struct {
	net.Conn
	gate *gate
}

func (c gated) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.pass()
	return n, err
}

func (c gated) Write(p []byte) (int, error) {
	c.gate.pass()
	return c.Conn.Write(p)
}

// signal signals every process that has the box's HOME.
func (m *machine) signal(sig syscall.Signal) {
	home := []byte("HOME=" + m.home)
	environs, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well formed
	for _, path := range environs {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(path) // it may be gone, or somebody else's
		if err != nil {
			continue
		}
		for entry := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(entry, home) {
				_ = syscall.Kill(pid, sig) // it may be gone
			}
		}
	}
}

package e2e_test

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"shoal/docker/dockertest"
)

// engineLink stands between a worker and the engine. It can act at the moment
// when the engine has removed a container and the worker does not know it yet:
// between the first engine call of a destroy and the next.
type engineLink struct {
	endpoint string // for the worker
	l        net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	trap   func()                // guarded by mu: runs once, before the answer is passed on
	conns  map[net.Conn]struct{} // guarded by mu
	closed bool                  // guarded by mu
}

func newEngineLink(t *testing.T) *engineLink {
	t.Helper()
	path := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	e := &engineLink{endpoint: "unix://" + path, l: l, conns: map[net.Conn]struct{}{}}
	e.wg.Go(e.accept)
	t.Cleanup(e.close)
	return e
}

func (e *engineLink) close() {
	_ = e.l.Close()
	e.mu.Lock()
	e.closed = true
	for c := range e.conns {
		_ = c.Close()
	}
	e.mu.Unlock()
	e.wg.Wait()
}

// arm sets the trap; nil takes it away and reports whether it was still there.
func (e *engineLink) arm(trap func()) (unused bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	unused = e.trap != nil
	e.trap = trap
	return unused
}

func (e *engineLink) spring() {
	e.mu.Lock()
	trap := e.trap
	e.trap = nil
	e.mu.Unlock()
	if trap != nil {
		trap()
	}
}

func (e *engineLink) accept() {
	for {
		c, err := e.l.Accept()
		if err != nil {
			return
		}
		e.wg.Go(func() { e.serve(c) })
	}
}

func (e *engineLink) serve(c net.Conn) {
	defer c.Close()
	network, address, _ := strings.Cut(dockertest.Endpoint(), "://")
	up, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer up.Close()
	if !e.add(c, up) {
		return
	}
	defer e.remove(c, up)
	removing := make(chan struct{}, 1) // a request to remove a container has no answer yet
	var wg sync.WaitGroup
	wg.Go(func() { pass(up, c, func(b []byte) { noteRemoval(b, removing) }) })
	pass(c, up, func([]byte) {
		select {
		case <-removing:
			e.spring()
		default:
		}
	})
	wg.Wait()
}

// noteRemoval looks at what the worker sends: the head of a request comes in
// one piece.
func noteRemoval(b []byte, removing chan<- struct{}) {
	if bytes.HasPrefix(b, []byte("DELETE /")) && bytes.Contains(b, []byte("/containers/")) {
		select {
		case removing <- struct{}{}:
		default:
		}
	}
}

// pass copies from one side to the other and shows each piece before it goes on.
func pass(to, from net.Conn, show func([]byte)) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			show(buf[:n])
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err == nil {
			continue
		}
		if half, ok := to.(interface{ CloseWrite() error }); ok && err == io.EOF { //nolint:errorlint // of a Read
			_ = half.CloseWrite() // the other direction may go on
			return
		}
		_ = to.Close()
		_ = from.Close()
		return
	}
}

func (e *engineLink) add(conns ...net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	for _, c := range conns {
		e.conns[c] = struct{}{}
	}
	return true
}

func (e *engineLink) remove(conns ...net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range conns {
		delete(e.conns, c)
	}
}

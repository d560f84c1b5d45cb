package e2e_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// link is a TCP proxy in front of a NATS server that can be cut, or made to
// swallow what its client sends before it is cut.
type link struct {
	target string
	l      net.Listener
	wg     sync.WaitGroup

	mu     sync.Mutex
	cut    bool
	mute   bool
	conns  map[net.Conn]struct{}
	closed bool
}

func newLink(t *testing.T, target string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{target: target, l: listener, conns: map[net.Conn]struct{}{}}
	k.wg.Go(k.accept)
	t.Cleanup(func() {
		k.mu.Lock()
		k.closed = true
		k.mu.Unlock()
		_ = listener.Close()
		k.sever()
		k.wg.Wait()
	})
	return k
}

func (k *link) url() string { return "nats://" + k.l.Addr().String() }

func (k *link) accept() {
	for {
		c, err := k.l.Accept()
		if err != nil {
			return
		}
		k.wg.Go(func() { k.serve(c) })
	}
}

func (k *link) serve(c net.Conn) {
	defer c.Close()
	up, err := net.Dial("tcp", k.target)
	if err != nil {
		return
	}
	defer up.Close()
	if !k.add(c, up) {
		return
	}
	defer k.remove(c, up)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(c, up)
		_ = c.Close()
	})
	k.sendUp(up, c)
	_ = up.Close()
	wg.Wait()
}

// sendUp copies what the client sends, unless the link is mute.
func (k *link) sendUp(up, c net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := c.Read(buf)
		k.mu.Lock()
		mute := k.mute
		k.mu.Unlock()
		if n > 0 && !mute {
			if _, werr := up.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (k *link) add(conns ...net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut || k.closed {
		return false
	}
	for _, c := range conns {
		k.conns[c] = struct{}{}
	}
	return true
}

func (k *link) remove(conns ...net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range conns {
		delete(k.conns, c)
	}
}

// set cuts or mends the link. What was swallowed is never sent later: a link
// that was mute is severed.
func (k *link) set(cut, mute bool) {
	k.mu.Lock()
	was := k.mute
	k.cut, k.mute = cut, mute
	k.mu.Unlock()
	if cut || was && !mute {
		k.sever()
	}
}

func (k *link) sever() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		_ = c.Close()
	}
}

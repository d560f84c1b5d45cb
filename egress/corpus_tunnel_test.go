package egress_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// tunnelEnd is the origin of a tunnel case.
type tunnelEnd struct {
	spec corpusTunnel
	over chan struct{} // closed when the first connection has ended

	mu  sync.Mutex // guards got
	got []byte
}

func newTunnelEnd(spec *corpusTunnel) *tunnelEnd {
	e := &tunnelEnd{over: make(chan struct{})}
	if spec != nil {
		e.spec = *spec
	}
	return e
}

func (e *tunnelEnd) serve(c *net.TCPConn) {
	defer close(e.over)
	say := func() {
		_, _ = io.WriteString(c, e.spec.UpstreamSends)
		if e.spec.UpstreamHalfClose {
			_ = c.CloseWrite()
		}
	}
	if !e.spec.ClientHalfClose {
		say()
	}
	_, _ = io.Copy(e, c)
	if e.spec.ClientHalfClose {
		say()
	}
}

// Write keeps what arrived.
func (e *tunnelEnd) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got = append(e.got, b...)
	return len(b), nil
}

func (e *tunnelEnd) received() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return string(e.got)
}

// checkTunnel plays the client's part after the 200 and checks what passed.
func (r *caseRun) checkTunnel(t *testing.T) {
	t.Helper()
	spec := r.Tunnel
	if spec.Idle {
		r.wantClosed(t, time.Duration(spec.ClosedWithinMs)*time.Millisecond)
		return
	}
	var heard string
	if spec.UpstreamHalfClose {
		heard = r.hear(t)
	}
	if !spec.SameSegment {
		r.say(t)
	}
	if spec.ClientHalfClose {
		if err := r.client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		heard = r.hear(t)
	}
	if spec.ExpectClientReceives != heard {
		t.Errorf("the client received %q, want %q", heard, spec.ExpectClientReceives)
	}
	if want := spec.ExpectUpstreamReceives; want != "" {
		eventually(t, 10*time.Second, "bytes at the origin", func() bool { return r.wire.received() == want })
	}
}

// say writes the client's bytes, in the pieces the case asks for.
func (r *caseRun) say(t *testing.T) {
	t.Helper()
	text := r.Tunnel.bytes()
	last := 0
	for _, at := range append(slices.Clone(r.Tunnel.SplitAt), len(text)) {
		if _, err := io.WriteString(r.client, text[last:at]); err != nil {
			t.Fatal(err)
		}
		if at < len(text) {
			time.Sleep(50 * time.Millisecond) // a segment of its own
		}
		last = at
	}
}

func (r *caseRun) hear(t *testing.T) string {
	t.Helper()
	_ = r.client.SetReadDeadline(time.Now().Add(3 * time.Second))
	b, err := io.ReadAll(r.reader)
	if err != nil {
		t.Fatalf("no end of the origin's direction after %q: %v", b, err)
	}
	return string(b)
}

func (r *caseRun) wantClosed(t *testing.T, within time.Duration) {
	t.Helper()
	start := time.Now()
	_ = r.client.SetReadDeadline(start.Add(within))
	if _, err := io.Copy(io.Discard, r.reader); err != nil && os.IsTimeout(err) {
		t.Fatalf("still open after %s", within)
	}
}

// judgeTunnel is for cases whose verdict is whether the client's bytes pass.
func (r *caseRun) judgeTunnel(t *testing.T, got reply) {
	t.Helper()
	for _, a := range r.rig.dialer.all() {
		if !slices.Contains(r.ExpectDial, a) {
			t.Errorf("dialled %s, want only %v", a, r.ExpectDial)
		}
	}
	if r.Expect == "deny" && got.status != http.StatusOK {
		return // refused even earlier
	}
	if got.status != http.StatusOK {
		t.Fatalf("status %d for an allowed tunnel: %s", got.status, got.text)
	}
	r.say(t)
	if r.Expect == "allow" {
		want := r.Tunnel.bytes()
		eventually(t, 10*time.Second, "the ClientHello at the origin", func() bool { return r.wire.received() == want })
		return
	}
	r.wantClosed(t, 10*time.Second)
	select {
	case <-r.wire.over:
	case <-time.After(2 * time.Second):
		t.Error("the upstream connection stays open")
	}
	if b := r.wire.received(); b != "" {
		t.Errorf("%d bytes passed", len(b))
	}
}

package egress_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"shoal/egress"
)

// A session that is closed ends what is open and refuses the rest.
func TestSessionClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{
		hosts:   []string{"example.com"},
		options: egress.PolicyOptions{SNIExempt: []string{"example.com"}},
		names:   map[string][]string{"example.com": {"93.184.216.34"}},
	})
	newOrigin(t, r).takeOver(func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	tunnel, idle := tunnelTo(t, r, "example.com:443"), r.connect(t)
	echo(t, tunnel)
	r.session.Close()
	r.session.Close()
	for _, c := range []net.Conn{tunnel, idle} {
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
		if _, err := io.ReadAll(c); os.IsTimeout(err) {
			t.Error("still open")
		}
	}
	r.serving.Wait()
	if st := r.session.Stats(); st.Conns != 0 || st.Tunnels != 0 || st.Allowed != 1 || st.BytesUp == 0 || st.BytesDown == 0 || st.LastTraffic.IsZero() {
		t.Errorf("stats %+v", st)
	}
	if !r.session.Active(time.Minute) || r.session.Active(0) {
		t.Error("activity is wrong")
	}
	if got := r.ask(t, get("http://example.com/")); got.status != http.StatusForbidden || !strings.Contains(got.text, "rule: off") {
		t.Errorf("after close: status %d, %s", got.status, got.text)
	}
}

// The end of the caller's context ends the connection.
func TestContextEndsConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"example.com"}})
	ctx, cancel := context.WithCancel(t.Context())
	client, server := net.Pipe()
	defer client.Close()
	done := make(chan struct{})
	go func() { defer close(done); r.proxy.ServeConn(ctx, server, r.session) }()
	cancel()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		t.Fatal("ServeConn goes on")
	}
}

// Too many connections get 503 at once, and a place that is freed is used again.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]egress.Config{"per sandbox": {MaxConns: 2}, "in total": {MaxTotalConns: 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigConfig{egress: cfg, hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
			newOrigin(t, r)
			first, _ := r.connect(t), r.connect(t)
			eventually(t, time.Second, "two connections", func() bool { return r.session.Stats().Conns == 2 })
			got := r.ask(t, get("http://example.com/"))
			if got.status != http.StatusServiceUnavailable || !strings.Contains(got.text, "rule: connections") {
				t.Fatalf("status %d: %s", got.status, got.text)
			}
			_ = first.Close()
			eventually(t, time.Second, "a free place", func() bool { return r.session.Stats().Conns == 1 })
			if got := r.ask(t, get("http://example.com/")); got.status != http.StatusOK {
				t.Errorf("status %d", got.status)
			}
		})
	}
}

// Decisions are bounded, counters are not, and neither holds what is private.
func TestDecisionsAreBounded(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	r := newRig(t, rigConfig{
		egress: egress.Config{DecisionsPerSecond: 1, Log: slog.New(slog.NewTextHandler(&log, nil))},
		hosts:  []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}},
	})
	newOrigin(t, r)
	c := r.connect(t)
	const n = 50
	for range n {
		askOn(t, c, "GET http://evil.org/SECRETPATH?SECRETQUERY HTTP/1.1\r\nHost: SECRETHOST\r\nAuthorization: SECRETHEADER\r\n\r\n")
	}
	askOn(t, c, "GET http://SECRETUSER:SECRETPASS@example.com/ HTTP/1.1\r\nHost: x\r\n\r\n")
	if st := r.session.Stats(); st.Denied != n+1 {
		t.Errorf("counted %d denials, want %d", st.Denied, n+1)
	}
	if got := r.reported(); len(got) < 2 || len(got) > 6 {
		t.Errorf("%d reports for a rate of 1 and a burst of 2", len(got))
	}
	time.Sleep(1100 * time.Millisecond)
	askOn(t, c, get("http://evil.org/"))
	if got := r.reported(); got[len(got)-1].Suppressed < n-6 {
		t.Errorf("the last report says that %d were left out", got[len(got)-1].Suppressed)
	}
	if text := fmt.Sprintf("%+v", r.reported()) + log.String(); strings.Contains(text, "SECRET") || !strings.Contains(text, "evil.org") {
		t.Errorf("reports: %s", text)
	}
}

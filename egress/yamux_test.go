package egress_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"shoal/egress"
)

// streams gives connections of a sandbox as the agent's attach stream does.
func streams(t *testing.T, r *rig) *yamux.Session {
	t.Helper()
	cfg := yamux.DefaultConfig()
	cfg.EnableKeepAlive = false
	cfg.LogOutput = io.Discard
	here, there := net.Pipe()
	worker, err := yamux.Server(here, cfg)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := yamux.Client(there, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.serving.Go(func() {
		for {
			s, err := worker.Accept()
			if err != nil {
				return
			}
			r.serving.Go(func() { r.proxy.ServeConn(context.Background(), s, r.session) })
		}
	})
	t.Cleanup(func() { _, _ = agent.Close(), worker.Close() })
	return agent
}

// Over yamux streams the proxy does what it does over TCP: requests, refusals,
// TLS tunnels, the end of either side, a live change.
func TestOverYamux(t *testing.T) {
	t.Parallel()
	r, o := tlsRig(t, egress.PolicyOptions{})
	s := newSite(t, o, "shop.example.com")
	agent := streams(t, r)
	open := func() net.Conn {
		c, err := agent.Open()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			c := open()
			defer c.Close()
			if got := askOn(t, c, connectText("evil.example.org:443")); got.status != http.StatusForbidden {
				t.Errorf("status %d", got.status)
			}
		})
		wg.Go(func() {
			c := open()
			defer c.Close()
			if status := connect(t, c, "shop.example.com:443"); status != http.StatusOK {
				t.Errorf("status %d", status)
				return
			}
			if said, err := handshake(t, c, &tls.Config{ServerName: "shop.example.com", RootCAs: s.roots}); err != nil || said != "serving shop.example.com" {
				t.Errorf("said %q, %v", said, err)
			}
		})
	}
	wg.Wait()
	eventually(t, 5*time.Second, "all streams served", func() bool { return r.session.Stats().Conns == 0 })
	c := open()
	if status := connect(t, c, "shop.example.com:443"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	r.session.SetPolicy(nil)
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("after the change: %q, %v", b, err)
	}
}

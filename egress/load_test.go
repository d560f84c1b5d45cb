package egress_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"shoal/egress"
)

// EG-11: 2,000 connections whose client has ended its direction while the server
// stays silent. With the default limits for half-closed connections, descriptors
// and goroutines are back at their base within 30 s.
func TestEG11HalfClosedConnections(t *testing.T) {
	n := 2000
	cfg := egress.Config{MaxConns: n}
	if testing.Short() {
		n, cfg.HalfClosedTimeout = 100, time.Second
	}
	r := newRig(t, rigConfig{
		egress:  cfg,
		hosts:   []string{"example.com"},
		options: egress.PolicyOptions{SNIExempt: []string{"example.com"}},
		names:   map[string][]string{"example.com": {"93.184.216.34"}},
	})
	// The server reads to the end and stays. Its own descriptors are freed by
	// release: TCP does not tell it that the proxy has closed.
	release := make(chan struct{})
	newOrigin(t, r).takeOver(func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		<-release
	})
	baseFDs, baseGoroutines := openFDs(t), runtime.NumGoroutine()
	clients := make([]*net.TCPConn, n)
	for i := range clients {
		if i%2 == 0 {
			clients[i] = tunnelTo(t, r, "example.com:443")
		} else {
			clients[i] = r.connect(t)
			if _, err := io.WriteString(clients[i], get("http://example.com/")); err != nil {
				t.Fatal(err)
			}
		}
		if err := clients[i].CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	if now := openFDs(t); now < baseFDs+2*n {
		t.Fatalf("%d descriptors for %d connections: they are not open", now, n)
	}
	start := time.Now()
	eventually(t, 30*time.Second, "all connections closed", func() bool { return r.session.Stats().Conns == 0 })
	close(release)
	for _, c := range clients {
		_ = c.Close()
	}
	eventually(t, 30*time.Second-time.Since(start), "base", func() bool {
		return openFDs(t) <= baseFDs+2 && runtime.NumGoroutine() <= baseGoroutines+2
	})
	t.Logf("%d connections: back at %d descriptors and %d goroutines after %s", n, baseFDs, baseGoroutines, time.Since(start).Round(time.Millisecond))
}

func openFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// EG-11, the other half: a legal half-close still delivers a late answer, for a
// tunnel and for a plain request.
func TestEG11HalfCloseDeliversTheAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{
		hosts:   []string{"example.com"},
		options: egress.PolicyOptions{SNIExempt: []string{"example.com"}},
		names:   map[string][]string{"example.com": {"93.184.216.34"}},
	})
	late := "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + "late\n"
	newOrigin(t, r).takeOver(func(c *net.TCPConn) {
		if req, err := http.ReadRequest(bufio.NewReader(c)); err != nil || req.Method != http.MethodGet {
			return
		}
		time.Sleep(300 * time.Millisecond)
		_, _ = io.WriteString(c, late)
	})
	tunnel := tunnelTo(t, r, "example.com:443")
	plain := r.connect(t)
	for name, c := range map[string]*net.TCPConn{"tunnel": tunnel, "plain": plain} {
		if _, err := io.WriteString(c, get("http://example.com/")); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "late\n" || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d, %q, %v", name, resp.StatusCode, body, err)
		}
	}
}

// A connection that cannot end one direction alone, as a yamux stream, still gets
// every byte of the upstream, and its end.
func TestWithoutCloseWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{
		hosts:   []string{"example.com"},
		options: egress.PolicyOptions{SNIExempt: []string{"example.com"}},
		names:   map[string][]string{"example.com": {"93.184.216.34"}},
	})
	newOrigin(t, r).takeOver(func(c *net.TCPConn) { _, _ = io.WriteString(c, "all of it") })
	client, server := net.Pipe()
	r.serving.Go(func() { r.proxy.ServeConn(context.Background(), server, r.session) })
	if status := connect(t, client, "example.com:443"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	_ = client.SetReadDeadline(time.Now().Add(3 * time.Second))
	if b, err := io.ReadAll(client); err != nil || string(b) != "all of it" {
		t.Errorf("read %q, %v", b, err)
	}
}

// downloadSize is how much the download test and the benchmark move; the
// environment variable EGRESS_DOWNLOAD_MIB asks for more (512 for the number in
// the documentation).
func downloadSize(t testing.TB) int64 {
	t.Helper()
	text, ok := os.LookupEnv("EGRESS_DOWNLOAD_MIB")
	if !ok {
		return 16 << 20
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 20
}

// pattern is a stream of bytes that do not repeat within a buffer.
type pattern struct{ at byte }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		p.at = p.at*167 + 13
		b[i] = p.at ^ byte(i>>8)
	}
	return len(b), nil
}

func downloadRig(t testing.TB, size int64) (*rig, *origin, [32]byte) {
	t.Helper()
	var block [1 << 20]byte
	_, _ = (&pattern{}).Read(block[:])
	sum := sha256.New()
	for range size / int64(len(block)) {
		sum.Write(block[:])
	}
	r := newRig(t, rigConfig{hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
	o := newOrigin(t, r)
	o.takeOver(func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size)
		for range size / int64(len(block)) {
			if _, err := c.Write(block[:]); err != nil {
				return
			}
		}
	})
	return r, o, [32]byte(sum.Sum(nil))
}

// A download arrives whole, and the proxy's memory does not grow with it.
func TestDownload(t *testing.T) {
	size := downloadSize(t)
	r, _, want := downloadRig(t, size)
	c := r.connect(t)
	_, _ = io.WriteString(c, get("http://example.com/"))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sum := sha256.New()
	if n, err := io.Copy(sum, resp.Body); err != nil || n != size {
		t.Fatalf("%d bytes of %d: %v", n, size, err)
	}
	runtime.ReadMemStats(&after)
	if got := [32]byte(sum.Sum(nil)); got != want {
		t.Error("the bytes are others")
	}
	if grown := int64(after.TotalAlloc - before.TotalAlloc); grown > size/4 {
		t.Errorf("%d bytes were allocated for a download of %d", grown, size)
	}
}

// BenchmarkDownload prints the rate of a download through the proxy, as a plain
// request and as a tunnel, beside the same one without it.
func BenchmarkDownload(b *testing.B) {
	size := downloadSize(b)
	drain := func(b *testing.B, c net.Conn) {
		b.Helper()
		resp, err := http.ReadResponse(bufio.NewReaderSize(c, 64<<10), nil)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != size {
			b.Fatalf("%d bytes: %v", n, err)
		}
		_ = c.Close()
	}
	run := func(b *testing.B, open func(*rig, *origin) net.Conn, request string) {
		b.Helper()
		r, o, _ := downloadRig(b, size)
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			c := open(r, o)
			if _, err := io.WriteString(c, request); err != nil {
				b.Fatal(err)
			}
			drain(b, c)
		}
	}
	b.Run("direct", func(b *testing.B) {
		run(b, func(_ *rig, o *origin) net.Conn {
			c, err := net.Dial("tcp", o.listener.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			return c
		}, get("/"))
	})
	b.Run("plain", func(b *testing.B) {
		run(b, func(r *rig, _ *origin) net.Conn { return r.connect(b) }, get("http://example.com/"))
	})
	b.Run("tunnel", func(b *testing.B) {
		run(b, func(r *rig, _ *origin) net.Conn { return tunnelTo(b, r, "example.com:80") }, get("/"))
	})
}

// BenchmarkRequest is one small plain request on a connection that stays.
func BenchmarkRequest(b *testing.B) {
	r := newRig(b, rigConfig{hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
	newOrigin(b, r)
	c := r.connect(b)
	b.ReportAllocs()
	for b.Loop() {
		if got := askOn(b, c, get("http://example.com/")); got.status != http.StatusOK {
			b.Fatalf("status %d", got.status)
		}
	}
}

// Many goroutines use one session at once: requests, changes of the list, reads of
// the counters, and its end. For the race detector.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
	newOrigin(t, r)
	policies := []*egress.Policy{r.session.Policy(), nil}
	var conns []*net.TCPConn
	for range 8 {
		conns = append(conns, r.connect(t))
	}
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			for j := range 20 {
				if _, err := io.WriteString(c, get("http://example.com/")); err != nil {
					return
				}
				if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
					return
				} else if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					return
				}
				r.session.SetPolicy(policies[(i+j)%2])
				_ = r.session.Stats()
			}
		})
	}
	wg.Wait()
	r.session.Close()
	r.serving.Wait()
	if st := r.session.Stats(); st.Conns != 0 || st.Tunnels != 0 || st.Allowed+st.Denied+st.Failed == 0 {
		t.Errorf("stats %+v", st)
	}
}

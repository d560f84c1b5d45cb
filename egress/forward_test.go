package egress_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/egress"
)

func plainRig(t *testing.T, cfg egress.Config) (*rig, *origin) {
	t.Helper()
	r := newRig(t, rigConfig{egress: cfg, hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
	return r, newOrigin(t, r)
}

// A body that breaks off at the origin breaks off at the client, in either framing.
func TestTruncatedAnswer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"length":  "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
		"chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, o := plainRig(t, egress.Config{})
			o.takeOver(func(c *net.TCPConn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					_, _ = io.WriteString(c, answer)
				}
			})
			c := r.connect(t)
			_, _ = io.WriteString(c, get("http://example.com/"))
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(resp.Body); err == nil || string(b) != "half" {
				t.Errorf("%q looks complete", b)
			}
		})
	}
}

// What the origin sends bit by bit arrives bit by bit.
func TestStreamedAnswer(t *testing.T) {
	t.Parallel()
	r, o := plainRig(t, egress.Config{})
	next := make(chan struct{})
	end := sync.OnceFunc(func() { close(next) })
	t.Cleanup(end)
	o.takeOver(func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n")
		for range next {
			_, _ = io.WriteString(c, "5\r\ntick\n\r\n")
		}
		_, _ = io.WriteString(c, "0\r\n\r\n")
	})
	c := r.connect(t)
	_, _ = io.WriteString(c, get("http://example.com/"))
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(resp.Body)
	for range 3 {
		next <- struct{}{} // taken as soon as the last tick is out
		if line, err := lines.ReadString('\n'); err != nil || line != "tick\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	end()
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// An origin that answers before it has read an upload is heard at once, and the
// connection ends instead of taking the rest of the upload for a request.
func TestEarlyAnswerToAnUpload(t *testing.T) {
	t.Parallel()
	r, o := plainRig(t, egress.Config{})
	o.takeOver(func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n")
			_, _ = io.Copy(io.Discard, c)
		}
	})
	c := r.connect(t)
	_, _ = io.WriteString(c, "POST http://example.com/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nbegin")
	start := time.Now()
	_ = c.SetReadDeadline(start.Add(5 * time.Second))
	reader := bufio.NewReader(c)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Fatalf("%+v, %v", resp, err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "no\n" {
		t.Fatalf("%q, %v", b, err)
	}
	if _, err := io.ReadAll(reader); os.IsTimeout(err) || time.Since(start) > 3*time.Second {
		t.Errorf("open after %s: %v", time.Since(start), err)
	}
}

// An upload asks first when the client does, and arrives whole.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	r, o := plainRig(t, egress.Config{})
	o.takeOver(func(c *net.TCPConn) {
		br := bufio.NewReader(c)
		req, err := http.ReadRequest(br)
		if err != nil || req.Header.Get("Expect") != "100-continue" {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		n, _ := io.Copy(io.Discard, req.Body)
		text := fmt.Sprintf("%d bytes", n)
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	})
	c := r.connect(t)
	_, _ = io.WriteString(c, "PUT http://example.com/ HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 300000\r\n\r\n")
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	br := bufio.NewReader(c)
	if line, err := br.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = br.ReadString('\n')
	r.serving.Go(func() { _, _ = io.WriteString(c, strings.Repeat("a", 300000)) })
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "300000 bytes" {
		t.Errorf("%q, %v", b, err)
	}
}

// A CONNECT with a body is no tunnel request: its bytes would be taken for TLS.
func TestConnectWithBody(t *testing.T) {
	t.Parallel()
	r, _ := plainRig(t, egress.Config{})
	r.wantDenied(t, "CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody", egress.RuleTarget)
	r.wantDenied(t, "CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", egress.RuleTarget)
}

// Bytes that net/http refuses by itself are counted and reported like the rest.
func TestMalformedIsCounted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"\x16\x03\x01\x00\x05hello",
		"\x05\x01\x00",
		"GET http://example.com/ HTTP/9.9\r\n\r\n",
		"GET http://example.com/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	} {
		r, _ := plainRig(t, egress.Config{})
		c := r.connect(t)
		_, _ = io.WriteString(c, text)
		_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
		if _, err := io.ReadAll(c); os.IsTimeout(err) {
			t.Errorf("%q: not refused at once", text)
		}
		if d := r.decision(t, 1); d.Verdict != egress.Denied || d.Rule != string(egress.RuleTarget) || r.session.Stats().Denied != 1 {
			t.Errorf("%q: %+v", text, d)
		}
	}
	r, _ := plainRig(t, egress.Config{})
	if got := r.ask(t, get("/healthz")); got.status != http.StatusOK {
		t.Errorf("health: status %d", got.status)
	}
	if st := r.session.Stats(); st.Allowed+st.Denied+st.Failed != 0 {
		t.Errorf("health counts as egress: %+v", st)
	}
}

// A client that reads nothing, and a host that sends nothing, cost IdleTimeout.
func TestIdle(t *testing.T) {
	t.Parallel()
	r, o := plainRig(t, egress.Config{IdleTimeout: 300 * time.Millisecond})
	o.takeOver(func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
		for block := make([]byte, 1<<20); ; {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	c := r.connect(t)
	_, _ = io.WriteString(c, get("http://example.com/"))
	quiet := r.connect(t)
	_, _ = io.WriteString(quiet, get("/healthz"))
	eventually(t, time.Second, "two connections", func() bool { return r.session.Stats().Conns == 2 })
	eventually(t, 3*time.Second, "both closed", func() bool { return r.session.Stats().Conns == 0 })
}

// Answers say which addresses failed and how, in the status that fits.
func TestFailures(t *testing.T) {
	t.Parallel()
	r, o := plainRig(t, egress.Config{DNSTimeout: 100 * time.Millisecond})
	for _, tc := range []struct {
		name   string
		set    func()
		status int
		rule   egress.Rule
	}{
		{"no such name", func() { r.dns.names["example.com"].failure = "nxdomain" }, 502, egress.RuleDNS},
		{"name servers fail", func() { r.dns.names["example.com"].failure = "servfail" }, 502, egress.RuleDNS},
		{"name servers are silent", func() { r.dns.names["example.com"].failure = "timeout" }, 504, egress.RuleDNS},
		{"no address", func() { *r.dns.names["example.com"] = fakeName{answers: [][]string{{}}} }, 502, egress.RuleDNS},
		{"too many addresses", func() { r.dns.names["example.com"].answers = [][]string{manyAddresses(65)} }, 502, egress.RuleDNS},
		{"refused", func() {
			r.dns.names["example.com"].answers = [][]string{{"93.184.216.34"}}
			r.dialer.refuse = map[string]bool{"93.184.216.34:80": true}
		}, 502, egress.RuleConnect},
		{"no proper answer", func() { r.dialer.refuse = nil; o.respond("HTTP/1.1 042 Odd\r\n\r\n") }, 502, egress.RuleUpstream},
		{"header without end", func() { o.respond("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 100_000)) }, 502, egress.RuleUpstream},
	} {
		tc.set()
		n := len(r.reported())
		got := r.ask(t, get("http://example.com/"))
		if d := r.decision(t, n+1); got.status != tc.status || d.Verdict != egress.Failed || d.Rule != string(tc.rule) {
			t.Errorf("%s: status %d, %+v", tc.name, got.status, d)
		}
	}
	if st := r.session.Stats(); st.Failed != 8 || st.Denied != 0 {
		t.Errorf("stats %+v", st)
	}
}

func manyAddresses(n int) []string {
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("93.184.216.%d", i)
	}
	return addrs
}

// A refused CONNECT says why in its status line, which is all that most clients show.
func TestRefusedConnectStatusLine(t *testing.T) {
	t.Parallel()
	r, _ := plainRig(t, egress.Config{})
	c := r.connect(t)
	_, _ = io.WriteString(c, connectText("evil.org:443"))
	_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.Status != "403 Forbidden (egress rule not_listed)" {
		t.Errorf("%+v, %v", resp, err)
	}
}

func TestNewProxyValidates(t *testing.T) {
	t.Parallel()
	for field, cfg := range map[string]egress.Config{
		"MaxHeaderBytes": {MaxHeaderBytes: 10},
		"MaxConns":       {MaxConns: -1},
		"IdleTimeout":    {IdleTimeout: -time.Second},
		"DeniedPrefixes": {DeniedPrefixes: []netip.Prefix{{}}},
		"mixes mapped":   {DeniedPrefixes: []netip.Prefix{netip.MustParsePrefix("::ffff:0.0.0.0/80")}},
	} {
		if _, err := egress.NewProxy(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := egress.NewProxy(egress.Config{}); err != nil {
		t.Error(err)
	}
}

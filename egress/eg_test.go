package egress_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"shoal/egress"
)

// ask sends text on a fresh connection and returns the answer; status 0 is a close.
func (r *rig) ask(t testing.TB, text string) reply {
	t.Helper()
	return askOn(t, r.connect(t), text)
}

func askOn(t testing.TB, c net.Conn, text string) reply {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(text, " ")
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		if os.IsTimeout(err) {
			t.Fatal("no answer")
		}
		return reply{}
	}
	if method == http.MethodConnect && resp.StatusCode == http.StatusOK {
		return reply{status: resp.StatusCode}
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{status: resp.StatusCode, text: string(body)}
}

func get(url string) string {
	return "GET " + url + " HTTP/1.1\r\nHost: ignored.example\r\n\r\n"
}

func connectText(authority string) string {
	return "CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n\r\n"
}

func (r *rig) wantDenied(t testing.TB, text string, rule egress.Rule) {
	t.Helper()
	before := len(r.dialer.all())
	n := len(r.reported())
	got := r.ask(t, text)
	d := r.decision(t, n+1)
	for ; d.Verdict == egress.Closed; d = r.decision(t, n+1) { // of a tunnel that has been cut just before
		n++
	}
	if got.status != http.StatusForbidden && got.status != http.StatusBadRequest || d.Verdict != egress.Denied || d.Rule != string(rule) {
		t.Errorf("%.60q: status %d, decision %+v, want %s", text, got.status, d, rule)
	}
	if byServer := got.text == "400 Bad Request"; !strings.Contains(got.text, "rule: "+string(rule)) && !byServer {
		t.Errorf("%.60q: the answer does not name the rule %s: %q", text, rule, got.text)
	}
	if after := r.dialer.all(); len(after) != before {
		t.Errorf("%.60q: dialled %v", text, after[before:])
	}
}

// EG-01: the name is resolved once, every address of that answer is judged, and
// the judged address is the one that is dialled.
func TestEG01ResolvedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"*.example.com"}, names: map[string][]string{
		"mixed.example.com": {"93.184.216.34", "169.254.169.254"},
		"late.example.com":  {"93.184.216.34", "93.184.216.35", "93.184.216.36", "127.0.0.1"},
	}})
	newOrigin(t, r)
	r.dns.names["rebind.example.com"] = &fakeName{answers: [][]string{{"93.184.216.34"}, {"127.0.0.1"}}}
	r.wantDenied(t, connectText("mixed.example.com:443"), egress.RuleAddress)
	r.wantDenied(t, get("http://mixed.example.com/"), egress.RuleAddress)
	r.wantDenied(t, connectText("late.example.com:443"), egress.RuleAddress)
	if got := r.ask(t, get("http://rebind.example.com/")); got.status != http.StatusOK {
		t.Fatalf("first answer is public: status %d", got.status)
	}
	if n := r.dns.count("rebind.example.com"); n != 1 {
		t.Errorf("%d lookups for one request", n)
	}
	if dialed := r.dialer.all(); !slices.Equal(dialed, []string{"93.184.216.34:80"}) {
		t.Errorf("dialled %v", dialed)
	}
	r.wantDenied(t, get("http://rebind.example.com/"), egress.RuleAddress)
}

// EG-02: IPv4 hidden in IPv6, and the ranges that helpers of package net miss.
func TestEG02HiddenAddresses(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{
		"::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "fec0::1",
		"fe80::1%eth0", "0.0.0.0", "100.64.0.1", "198.18.0.1", "240.0.0.1", "::ffff:168.63.129.16", "64:ff9b::a83f:8110",
	} {
		r := newRig(t, rigConfig{hosts: []string{"example.com"}, names: map[string][]string{"example.com": {addr}}})
		newOrigin(t, r)
		r.wantDenied(t, connectText("example.com:443"), egress.RuleAddress)
	}
}

// EG-03: brackets do not turn an address into a name, nor a name into another.
func TestEG03Brackets(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
	newOrigin(t, r)
	r.wantDenied(t, connectText("[::1]:443"), egress.RuleLiteral)
	r.wantDenied(t, get("http://[::ffff:7f00:1]/"), egress.RuleLiteral)
	r.wantDenied(t, get("http://[fe80::1%25eth0]:80/"), egress.RuleLiteral)
	r.wantDenied(t, get("http://93.184.216.34/"), egress.RuleLiteral)
	r.wantDenied(t, connectText("[example.com]:443"), egress.RuleTarget)
	r.wantDenied(t, get("http://example.com/#@evil.org/"), egress.RuleTarget)
}

// EG-04: a star stands for whole labels only, and never covers a public suffix.
func TestEG04Wildcards(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"*.a.com"}, names: map[string][]string{"x.a.com": {"93.184.216.34"}}})
	newOrigin(t, r)
	for _, host := range []string{"a.com.evil.net", "xa.com", "a.com", "A.COM", "a.com.", "xn--a-0ga.com"} {
		r.wantDenied(t, get("http://"+host+"/"), egress.RuleNotListed)
	}
	for _, host := range []string{"%61.a.com", "x.a.com@evil.net", ".a.com", "x.а.com"} {
		if got := r.ask(t, get("http://"+host+"/")); got.status != http.StatusBadRequest {
			t.Errorf("%s: status %d", host, got.status)
		}
	}
	for _, host := range []string{"x.a.com", "X.A.COM", "x.a.com."} {
		if got := r.ask(t, get("http://"+host+"/")); got.status != http.StatusOK {
			t.Errorf("%s: status %d", host, got.status)
		}
	}
	for _, entry := range []string{"*.com", "*.co.uk", "*.github.io", "*", "*."} {
		if _, err := egress.ParsePolicy([]string{entry}, egress.PolicyOptions{}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", entry)) {
			t.Errorf("entry %q: %v", entry, err)
		}
	}
}

// EG-05: every shape of request meets the same list.
func TestEG05Matrix(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"ok.example.com"}, names: map[string][]string{
		"ok.example.com": {"93.184.216.34"}, "no.example.com": {"93.184.216.34"},
	}})
	newOrigin(t, r)
	shapes := map[string]func(host string) string{
		"get":     func(host string) string { return get("http://" + host + "/") },
		"connect": func(host string) string { return connectText(host + ":443") },
		"upgrade": func(host string) string {
			return "GET http://" + host + "/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
		},
	}
	for name, shape := range shapes {
		if got := r.ask(t, shape("ok.example.com")); got.status != http.StatusOK {
			t.Errorf("%s to a listed host: status %d", name, got.status)
		}
		r.wantDenied(t, shape("no.example.com"), egress.RuleNotListed)
		r.wantDenied(t, shape("93.184.216.34"), egress.RuleLiteral)
	}
}

// EG-06: on one connection each request is judged alone, and Host comes from the
// target.
func TestEG06KeptAliveConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"ok.example.com"}, names: map[string][]string{
		"ok.example.com": {"93.184.216.34"}, "no.example.com": {"93.184.216.34"},
	}})
	o := newOrigin(t, r)
	c := r.connect(t)
	for _, step := range []struct {
		host, header string
		status       int
	}{
		{"ok.example.com", "ok.example.com", 200},
		{"no.example.com", "ok.example.com", 403},
		{"ok.example.com", "no.example.com", 200},
	} {
		got := askOn(t, c, "GET http://"+step.host+"/ HTTP/1.1\r\nHost: "+step.header+"\r\n\r\n")
		if got.status != step.status {
			t.Errorf("%+v: status %d", step, got.status)
		}
	}
	for _, req := range o.got() {
		if h := req.header("Host"); !slices.Equal(h, []string{"ok.example.com"}) {
			t.Errorf("Host %q reached the origin", h)
		}
	}
	if n := len(o.got()); n != 2 {
		t.Errorf("%d requests reached the origin, want 2", n)
	}
}

// EG-10: a redirect is the client's to follow, and then judged.
func TestEG10Redirect(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
	o := newOrigin(t, r)
	o.respond("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n")
	if got := r.ask(t, get("http://example.com/")); got.status != http.StatusFound {
		t.Errorf("status %d", got.status)
	}
	if n := len(r.dialer.all()); n != 1 {
		t.Errorf("%d dials", n)
	}
	r.wantDenied(t, get("http://169.254.169.254/latest/"), egress.RuleLiteral)
}

// EG-12: a black hole costs a bounded time, and slow header bytes do too.
func TestEG12BlackHole(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{
		egress: egress.Config{ConnectTimeout: 300 * time.Millisecond, HeaderTimeout: 300 * time.Millisecond},
		hosts:  []string{"example.com"},
		names:  map[string][]string{"example.com": {"93.184.216.34", "93.184.216.35"}},
	})
	r.dialer.block = true
	for _, text := range []string{connectText("example.com:443"), get("http://example.com/")} {
		start := time.Now()
		if got := r.ask(t, text); got.status != http.StatusGatewayTimeout || !strings.Contains(got.text, "rule: connect") {
			t.Errorf("status %d: %s", got.status, got.text)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("took %s", took)
		}
	}
	if n := len(r.dialer.all()); n != 4 {
		t.Errorf("%d dials, want both addresses tried each time", n)
	}
	c := r.connect(t)
	start := time.Now()
	for range 20 {
		if _, err := io.WriteString(c, "G"); err != nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.ReadAll(c); os.IsTimeout(err) || time.Since(start) > 3*time.Second {
		t.Errorf("slow header: %v after %s", err, time.Since(start))
	}
	var cfg egress.Config
	if _, err := egress.NewProxy(cfg); err != nil || cfg.ConnectTimeout > 30*time.Second {
		t.Errorf("defaults: %v", err)
	}
}

// EG-14: what listens on the machine itself is out of reach, by its loopback, its
// interfaces' addresses, and the prefixes that a deployment names.
func TestEG14TheMachineItself(t *testing.T) {
	t.Parallel()
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{
		"public.example.com": {"93.184.216.34"},
		"denied.example.com": {"151.101.1.69"},
		"nat64.example.com":  {"64:ff9b::9765:145"}, // 151.101.1.69 inside
		"near.example.com":   {"151.101.2.69"},
	}
	for i, a := range own {
		names[fmt.Sprintf("own%d.example.com", i)] = []string{a.(*net.IPNet).IP.String()}
	}
	r := newRig(t, rigConfig{
		egress: egress.Config{
			HostAddrs:      func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil },
			DeniedPrefixes: []netip.Prefix{netip.MustParsePrefix("::ffff:151.101.1.0/120")},
		},
		hosts: []string{"*.example.com"}, names: names,
	})
	newOrigin(t, r)
	for i := range own {
		r.wantDenied(t, connectText(fmt.Sprintf("own%d.example.com:443", i)), egress.RuleAddress)
	}
	r.wantDenied(t, connectText("public.example.com:443"), egress.RuleOwnAddress)
	r.wantDenied(t, connectText("denied.example.com:443"), egress.RulePrefix)
	r.wantDenied(t, connectText("nat64.example.com:443"), egress.RulePrefix)
	if got := r.ask(t, connectText("near.example.com:443")); got.status != http.StatusOK {
		t.Errorf("beside the denied prefix: status %d", got.status)
	}
}

// EG-16: a listed DNS-over-HTTPS host is a host like any other, and one that is
// not listed is not reached. What its answers are good for is the list's concern.
func TestEG16DNSOverHTTPS(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"dns.google"}, names: map[string][]string{
		"dns.google": {"8.8.8.8"}, "cloudflare-dns.com": {"104.16.248.249"},
	}})
	newOrigin(t, r)
	if got := r.ask(t, connectText("dns.google:443")); got.status != http.StatusOK {
		t.Errorf("status %d", got.status)
	}
	r.wantDenied(t, connectText("cloudflare-dns.com:443"), egress.RuleNotListed)
	r.wantDenied(t, connectText("8.8.8.8:443"), egress.RuleLiteral)
}

// EG-17: a change of the list reaches what is open.
func TestEG17LiveChange(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{
		hosts:   []string{"keep.example.com", "drop.example.com"},
		options: egress.PolicyOptions{SNIExempt: []string{"keep.example.com", "drop.example.com"}},
		names:   map[string][]string{"keep.example.com": {"93.184.216.34"}, "drop.example.com": {"93.184.216.35"}},
	})
	o := newOrigin(t, r)
	o.takeOver(func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	keep, drop := tunnelTo(t, r, "keep.example.com:443"), tunnelTo(t, r, "drop.example.com:443")
	echo(t, keep)
	echo(t, drop)
	if n := r.session.Stats().Tunnels; n != 2 {
		t.Fatalf("%d tunnels open, want 2", n)
	}
	narrow, err := egress.ParsePolicy([]string{"keep.example.com"}, egress.PolicyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	r.session.SetPolicy(narrow)
	_ = drop.SetReadDeadline(start.Add(2 * time.Second))
	if _, err := drop.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Fatalf("the dropped host's tunnel is open after %s: %v", time.Since(start), err)
	}
	echo(t, keep)
	eventually(t, time.Second, "one tunnel", func() bool { return r.session.Stats().Tunnels == 1 })
	d := r.decision(t, 3)
	if d.Verdict != egress.Closed || d.Host != "drop.example.com" || d.Rule != string(egress.RuleNowUnlisted) {
		t.Errorf("decision %+v", d)
	}
	r.wantDenied(t, connectText("drop.example.com:443"), egress.RuleNotListed)
	r.session.SetPolicy(nil)
	_ = keep.SetReadDeadline(time.Now().Add(2 * time.Second))
	if _, err := keep.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Fatalf("open with an empty list: %v", err)
	}
	r.wantDenied(t, connectText("keep.example.com:443"), egress.RuleOff)
}

func echo(t testing.TB, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := io.WriteString(c, "ping"); err != nil {
		t.Fatal(err)
	}
	var b [4]byte
	if _, err := io.ReadFull(c, b[:]); err != nil || string(b[:]) != "ping" {
		t.Fatalf("echo %q, %v", b, err)
	}
}

// EG-17, requests that are under way: one that waits for its answer, one whose body
// is arriving, one whose name is being resolved, one that is connecting.
func TestEG17LiveChangeUnderWay(t *testing.T) {
	t.Parallel()
	type state struct {
		name  string
		setUp func(*rig, *origin)
	}
	for _, s := range []state{
		{"waiting for the answer", func(_ *rig, o *origin) { o.hang = true }},
		{"in the body", func(_ *rig, o *origin) { o.respond("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf") }},
		{"resolving", func(r *rig, _ *origin) { r.dns.names["example.com"].failure = "timeout" }},
		{"connecting", func(r *rig, _ *origin) { r.dialer.block = true }},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigConfig{hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
			s.setUp(r, newOrigin(t, r))
			c := r.connect(t)
			if _, err := io.WriteString(c, get("http://example.com/")); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Second, "lookup", func() bool { return r.dns.count("example.com") == 1 })
			time.Sleep(50 * time.Millisecond) // let it get as far as it goes
			start := time.Now()
			r.session.SetPolicy(nil)
			_ = c.SetReadDeadline(start.Add(2 * time.Second))
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				if resp.StatusCode == http.StatusOK && err == nil {
					t.Error("the answer looks complete")
				}
			}
			if os.IsTimeout(err) {
				t.Errorf("still open after %s", time.Since(start))
			}
			eventually(t, time.Second, "the event", func() bool {
				return slices.ContainsFunc(r.reported(), func(d egress.Decision) bool { return d.Rule == string(egress.RuleNowUnlisted) })
			})
		})
	}
}

// EG-19: the proxy takes nothing from the environment; above all no other proxy.
func TestEG19Environment(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:9")
	t.Setenv("http_proxy", "http://127.0.0.1:9")
	t.Setenv("ALL_PROXY", "http://127.0.0.1:9")
	r := newRig(t, rigConfig{hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
	newOrigin(t, r)
	if got := r.ask(t, get("http://example.com/")); got.status != http.StatusOK {
		t.Errorf("status %d: %s", got.status, got.text)
	}
}

// EG-21: a listed name does not open its address, and an address cannot be listed.
func TestEG21NameAndAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
	newOrigin(t, r)
	r.wantDenied(t, connectText("93.184.216.34:443"), egress.RuleLiteral)
	for _, entry := range []string{"93.184.216.34", "[2606:4700::1]", "2606:4700::1", "10.0.0.0/8", "2130706433", "0x7f.1"} {
		if _, err := egress.ParsePolicy([]string{entry}, egress.PolicyOptions{}); err == nil {
			t.Errorf("entry %q was taken", entry)
		}
	}
}

// EG-22: the proxy adds nothing to a request, so there is no credential it could
// send in the clear or to a fronted host; what the client sends passes as it is.
func TestEG22AddsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{hosts: []string{"example.com"}, names: map[string][]string{"example.com": {"93.184.216.34"}}})
	o := newOrigin(t, r)
	r.ask(t, "GET http://example.com/a%2Fb//c?x=%20&y HTTP/1.1\r\nHost: x\r\nX-Mine: 1\r\n\r\n")
	want := "GET /a%2Fb//c?x=%20&y HTTP/1.1\r\nHost: example.com\r\nX-Mine: 1\r\nConnection: close"
	if got := o.got(); len(got) != 1 || got[0].head != want {
		t.Errorf("the origin got %+v", got)
	}
}

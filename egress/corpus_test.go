package egress_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
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

// corpusSize is how many cases the file beside this test has; a shorter file must
// not pass for the whole.
const corpusSize = 299

// features are the optional ones that cases may require.
var features = map[string]bool{"sni-check": true}

func loadCorpus(t *testing.T) corpusFile {
	t.Helper()
	path, own := os.LookupEnv("EGRESS_CORPUS")
	if !own {
		path = "testdata/egress-cases.json"
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var file corpusFile
	d := json.NewDecoder(f)
	d.DisallowUnknownFields() // a field that this driver does not know would not be checked
	if err := d.Decode(&file); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if len(file.Cases) == 0 || !own && len(file.Cases) != corpusSize {
		t.Fatalf("%s has %d cases, want %d", path, len(file.Cases), corpusSize)
	}
	return file
}

// TestCorpus sends every case's bytes over a real connection and judges what the
// proxy did. EGRESS_CORPUS names another file of the same format.
func TestCorpus(t *testing.T) {
	file := loadCorpus(t)
	count := map[string]int{}
	for _, c := range file.Cases {
		count["expect "+c.Expect]++
		t.Run(c.ID, func(t *testing.T) {
			for _, f := range c.Requires {
				count["requires "+f]++
				if !features[f] {
					count["not run"]++
					t.Skipf("needs the optional feature %s", f)
				}
			}
			if outcome := runCase(t, file.Policy, c); outcome != "" {
				count[outcome]++
			}
		})
	}
	t.Logf("corpus: %d cases, %v", len(file.Cases), count)
	if count["not run"] > 0 {
		t.Errorf("%d cases were not run", count["not run"])
	}
}

// runCase returns how a permitted deviation came about, or "".
func runCase(t *testing.T, base corpusPolicy, c corpusCase) string {
	t.Logf("%s (%s, %s): %s", c.Group, c.Basis, c.Severity, c.Why)
	if c.Policy != nil {
		if err := json.Unmarshal(*c.Policy, &base); err != nil {
			t.Fatal(err)
		}
	}
	policy, err := egress.ParsePolicy(c.AllowHosts, c.options(base))
	if err != nil {
		if c.ConfigErrorOK && (c.Expect == "deny" || slices.Contains(c.AlsoOK, "deny")) {
			return "refused with the list"
		}
		t.Fatal(err)
	}
	run := newCaseRun(t, base, c, policy)
	if len(c.Steps) > 0 {
		run.steps(t)
		return ""
	}
	return run.single(t)
}

// options: tunnels that carry something else than TLS, and do not ask for the name
// check, run without it.
func (c *corpusCase) options(p corpusPolicy) egress.PolicyOptions {
	o := egress.PolicyOptions{ConnectPorts: p.ConnectPorts, HTTPPorts: p.HTTPPorts}
	if c.Tunnel != nil && !slices.Contains(c.Requires, "sni-check") {
		o.SNIExempt = c.AllowHosts
	}
	return o
}

type caseRun struct {
	corpusCase
	rig    *rig
	origin *origin
	wire   *tunnelEnd
	client *net.TCPConn
	reader *bufio.Reader
}

func newCaseRun(t *testing.T, p corpusPolicy, c corpusCase, policy *egress.Policy) *caseRun {
	t.Helper()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	cfg := egress.Config{
		MaxHeaderBytes: p.MaxHeaderBytes, HeaderTimeout: ms(p.HeaderTimeoutMs), IdleTimeout: ms(p.IdleTimeoutMs),
		DNSTimeout: ms(p.DNSTimeoutMs), ResponseTimeout: ms(p.ResponseTimeoutMs),
	}
	for _, a := range p.DenyExtraIPs {
		cfg.DeniedPrefixes = append(cfg.DeniedPrefixes, netip.PrefixFrom(a, a.BitLen()))
	}
	dns := newFakeDNS(nil)
	for name, d := range c.DNS {
		entry := &fakeName{answers: d.Sequence, failure: d.Error}
		if entry.answers == nil {
			entry.answers = [][]string{d.IPs}
		}
		dns.names[name] = entry
	}
	r := newRigWith(t, cfg, policy, dns)
	r.dialer.refuse = map[string]bool{}
	for _, a := range c.DialFail {
		r.dialer.refuse[a] = true
	}
	run := &caseRun{corpusCase: c, rig: r, origin: newOrigin(t, r)}
	run.origin.hang = c.UpstreamHang
	if c.UpstreamResponse != "" {
		run.origin.respond(c.UpstreamResponse)
	}
	if c.UpstreamResponseGen != nil {
		run.origin.respond(c.UpstreamResponseGen.String())
	}
	if c.Method == http.MethodConnect {
		run.wire = newTunnelEnd(c.Tunnel)
		run.origin.takeOver(run.wire.serve)
	}
	run.reconnect(t)
	return run
}

func (r *caseRun) reconnect(t *testing.T) {
	t.Helper()
	r.client = r.rig.connect(t)
	r.reader = bufio.NewReader(r.client)
}

// bytes are those of one request, exactly as the case gives them.
func (s *corpusStep) bytes() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\r\n", s.Method, s.Target, s.Proto)
	for _, h := range s.Headers {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	b.WriteString("\r\n" + s.Body)
	return b.String()
}

// send writes the case's bytes without waiting for them to be read: what is too
// long is refused half-way.
func (r *caseRun) send(t *testing.T) {
	t.Helper()
	parts := r.Send
	if parts == nil {
		parts = []sendPart{{Raw: r.wireBytes(t)}}
	}
	r.rig.serving.Go(func() {
		for _, p := range parts {
			if _, err := io.WriteString(r.client, p.Raw); err != nil {
				return
			}
			time.Sleep(time.Duration(p.DelayMsAfter) * time.Millisecond)
		}
	})
}

func (r *caseRun) wireBytes(t *testing.T) string {
	t.Helper()
	switch {
	case r.RawGen != nil:
		return r.RawGen.String()
	case r.Raw != "":
		return r.Raw
	case r.RawBase64 != "":
		b, err := base64.StdEncoding.DecodeString(r.RawBase64)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	text := r.bytes()
	if r.Tunnel != nil && r.Tunnel.SameSegment {
		text += r.Tunnel.bytes()
	}
	return text
}

// reply is what the client got; status 0 means that the connection was closed.
type reply struct {
	status int
	text   string // body
}

// read reads one answer. Neither an answer nor a close in time is a failure.
func (r *caseRun) read(t *testing.T, method string) reply {
	t.Helper()
	within := 6 * time.Second
	if r.CloseWithinMs > 0 {
		within = time.Duration(r.CloseWithinMs) * time.Millisecond
	}
	_ = r.client.SetReadDeadline(time.Now().Add(within))
	resp, err := http.ReadResponse(r.reader, &http.Request{Method: method})
	if err != nil {
		if os.IsTimeout(err) {
			t.Fatalf("neither answered nor closed within %s", within)
		}
		return reply{}
	}
	if method == http.MethodConnect && resp.StatusCode == http.StatusOK {
		return reply{status: resp.StatusCode}
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil && os.IsTimeout(err) {
		t.Fatalf("body not complete within %s", within)
	}
	return reply{status: resp.StatusCode, text: string(body)}
}

// rest returns what else the client receives until silence or a close.
func (r *caseRun) rest() string {
	_ = r.client.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	b, _ := io.ReadAll(r.reader)
	return string(b)
}

func (r *caseRun) single(t *testing.T) string {
	t.Helper()
	r.send(t)
	got := r.read(t, r.Method)
	if r.VerdictAt == "tunnel" {
		r.judgeTunnel(t, got)
		return ""
	}
	dialed := r.rig.dialer.all()
	verdict := "deny"
	if len(dialed) > 0 || r.Local && got.status == http.StatusOK {
		verdict = "allow"
	}
	if verdict != r.Expect {
		if !slices.Contains(r.AlsoOK, verdict) {
			t.Fatalf("verdict %s, want %s (status %d, dialled %v)", verdict, r.Expect, got.status, dialed)
		}
		if verdict == "allow" && r.DialIfAllowed != nil && !slices.Equal(dialed, r.DialIfAllowed) {
			t.Fatalf("dialled %v, want %v", dialed, r.DialIfAllowed)
		}
		return "alsoOk " + verdict
	}
	r.checkAnswer(t, r.corpusStep, got, dialed)
	r.checkLookups(t)
	if verdict == "allow" && !r.Local && !r.allRefused() {
		r.checkCarried(t, got)
	}
	return ""
}

func (r *caseRun) allRefused() bool {
	return !slices.ContainsFunc(r.ExpectDial, func(a string) bool { return !slices.Contains(r.DialFail, a) })
}

// checkAnswer checks status and dialled addresses of one request.
func (r *caseRun) checkAnswer(t *testing.T, s corpusStep, got reply, dialed []string) {
	t.Helper()
	for _, a := range dialed {
		if !slices.Contains(s.ExpectDial, a) && !(s.Expect == "allow" && slices.Contains(r.DialFail, a)) {
			t.Errorf("dialled %s, want only %v", a, s.ExpectDial)
		}
	}
	if s.Expect == "deny" {
		if got.status != 0 && got.status < 400 {
			t.Errorf("status %d for a refusal", got.status)
		}
		if got.status == 0 && !r.mayClose() && !s.ClosedOK {
			t.Errorf("closed without an answer")
		}
	} else if got.status == 0 || r.Status == nil && got.status >= 400 && !r.refusedAnswer(s, got) {
		t.Errorf("status %d for an allowed request: %s", got.status, got.text)
	}
	if got.status != 0 && r.Status != nil && !slices.Contains(r.Status, got.status) {
		t.Errorf("status %d, want one of %v: %s", got.status, r.Status, got.text)
	}
	if s.ClientMustNotReceive != "" && strings.Contains(got.text+r.rest(), s.ClientMustNotReceive) {
		t.Errorf("the client received %q", s.ClientMustNotReceive)
	}
}

// refusedAnswer: an answer of the origin that holds what the client must not get
// may be refused whole.
func (r *caseRun) refusedAnswer(s corpusStep, got reply) bool {
	return s.ClientMustNotReceive != "" && got.status == http.StatusBadGateway
}

// mayClose: what is no HTTP, too long or too slow may be closed without a word.
func (r *caseRun) mayClose() bool {
	return r.Raw != "" || r.RawBase64 != "" || r.RawGen != nil || r.Send != nil
}

func (r *caseRun) checkLookups(t *testing.T) {
	t.Helper()
	if r.Lookups == 0 {
		return
	}
	host, _, _ := net.SplitHostPort(r.Target)
	if n := r.rig.dns.count(strings.ToLower(host)); n > r.Lookups {
		t.Errorf("%d lookups of %s, want at most %d", n, host, r.Lookups)
	}
}

// checkCarried checks what the origin got, and what passed through a tunnel.
func (r *caseRun) checkCarried(t *testing.T, got reply) {
	t.Helper()
	if r.Method == http.MethodConnect {
		if r.Tunnel != nil {
			r.checkTunnel(t)
		}
		return
	}
	requests := r.origin.got()
	if len(requests) != 1 {
		t.Fatalf("the origin got %d requests, want 1", len(requests))
	}
	if r.Upstream != nil {
		r.Upstream.check(t, requests[0])
	}
	if r.TunnelForbidden {
		_, _ = io.WriteString(r.client, "RAW BYTES AFTER 101")
		if rest := r.rest(); rest != "" || len(r.origin.got()) != 1 {
			t.Errorf("after status %d the connection was a tunnel: %q", got.status, rest)
		}
	}
}

func (u *upstreamExpectation) check(t *testing.T, got seen) {
	t.Helper()
	if u.RequestLine != "" && got.requestLine() != u.RequestLine {
		t.Errorf("request line %q, want %q", got.requestLine(), u.RequestLine)
	}
	if hosts := got.header("Host"); u.Host != "" && !slices.Equal(hosts, []string{u.Host}) {
		t.Errorf("Host %q, want %q", hosts, u.Host)
	}
	if u.Body != nil && got.body != *u.Body {
		t.Errorf("body %q, want %q", got.body, *u.Body)
	}
	for _, h := range u.AbsentHeaders {
		if v := got.header(h); v != nil {
			t.Errorf("header %s reached the origin: %q", h, v)
		}
	}
	for h, want := range u.PresentHeaders {
		if v := got.header(h); !slices.Equal(v, []string{want}) {
			t.Errorf("header %s is %q, want %q", h, v, want)
		}
	}
	for _, s := range u.NotContains {
		if strings.Contains(got.head+got.body, s) {
			t.Errorf("the origin got %q", s)
		}
	}
	if framings := len(got.header("Content-Length")) + len(got.header("Transfer-Encoding")); u.SingleFraming && framings != 1 {
		t.Errorf("%d framings, want 1:\n%s", framings, got.head)
	}
}

// steps runs several requests on one connection, or on fresh ones where asked.
func (r *caseRun) steps(t *testing.T) {
	t.Helper()
	if r.Pipelined {
		var all strings.Builder
		for _, s := range r.Steps {
			all.WriteString(s.bytes())
		}
		if _, err := io.WriteString(r.client, all.String()); err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range r.Steps {
		if s.NewConnection {
			r.reconnect(t)
		}
		if s.UpstreamResponse != "" {
			r.origin.respond(s.UpstreamResponse)
		}
		dials, requests := len(r.rig.dialer.all()), len(r.origin.got())
		if !r.Pipelined {
			if _, err := io.WriteString(r.client, s.bytes()); err != nil {
				t.Fatal(err)
			}
		}
		got := r.read(t, s.Method)
		if r.Pipelined {
			dials, requests = r.before(i)
		}
		t.Logf("step %d: status %d", i+1, got.status)
		r.checkAnswer(t, s, got, r.newDials(s, dials))
		if carried := len(r.origin.got()) - requests; s.Expect == "allow" && carried < 1 {
			t.Errorf("step %d: the request did not reach the origin", i+1)
		}
	}
}

// before counts what the steps before the i-th were allowed to do.
func (r *caseRun) before(i int) (dials, requests int) {
	for _, s := range r.Steps[:i] {
		if s.Expect == "allow" {
			dials++
			requests++
		}
	}
	return dials, requests
}

// newDials returns the dials after the first n; of pipelined steps that are
// followed by others only their own can be told.
func (r *caseRun) newDials(s corpusStep, n int) []string {
	dialed := r.rig.dialer.all()
	dialed = dialed[min(n, len(dialed)):]
	if r.Pipelined && s.Expect == "allow" {
		dialed = dialed[:min(1, len(dialed))]
	}
	return dialed
}

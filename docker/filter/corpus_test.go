package filter_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"shoal/docker/filter"
)

const (
	corpusExec = "e3f10a1b2c3d4e5f60710a1b2c3d4e5f60710a1b2c3d4e5f607182930a1b2c3d"
	corpusID   = "11aab1c2d3e4f5061728b1c2d3e4f5061728b1c2d3e4f50617289a0b1c2d3e4f"
)

// corpusNames maps the names of the corpus to ours.
var corpusNames = ourNames{{"cap-", "shoal-"}}

// TestCorpusReference drives every case of the corpus against the reference
// policy: raw bytes over a real connection, a recording engine behind.
func TestCorpusReference(t *testing.T) {
	t.Parallel()
	name := "testdata/dockerproxy-cases.json"
	if s := os.Getenv("DOCKERFILTER_CORPUS"); s != "" {
		name = s
	}
	file := readCases(t, name)
	for i := range file.Cases {
		c := &file.Cases[i]
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			policy := referencePolicy(t)
			if d := c.Policy["volumeDriver"]; d != nil {
				for _, role := range policy.Roles {
					if role.Volume != nil {
						role.Volume.Driver = *d
					}
				}
			}
			runCase(t, c, policy, corpusNames, referenceOwners(corpusNames))
		})
	}
}

func referencePolicy(t testing.TB) *filter.Policy {
	t.Helper()
	policy, err := filter.LoadPolicy("testdata/reference-policy.json")
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// referenceOwners is what the engine knows of the containers in the corpus:
// those of the sandbox are ours, "victim" is not, and one exec belongs to us.
func referenceOwners(names ourNames) map[string]string {
	container := func(name, role, more string) string {
		return names.in(fmt.Sprintf(`{"Id":%q,"Name":"/%s","Config":{"Labels":{"dev.capybara.sandbox":"1",`+
			`"dev.capybara.sandbox.name":"cap-c1","dev.capybara.sandbox.role":%q%s}}}`, corpusID, name, role, more))
	}
	sandbox := container("cap-c1", "sandbox", `,"dev.capybara.sandbox.egress":"none","dev.capybara.sandbox.allow-hosts":"[]"`)
	return map[string]string{
		names.in("containers/cap-c1/json"):        sandbox,
		"containers/" + corpusID + "/json":        sandbox,
		names.in("containers/cap-c1-egress/json"): container("cap-c1-egress", "egress", ""),
		"containers/victim/json":                  `{"Id":"4f9a","Name":"/victim","Config":{"Labels":{}}}`,
		"exec/" + corpusExec + "/json":            fmt.Sprintf(`{"ID":%q,"ContainerID":%q,"ProcessConfig":{"privileged":false}}`, corpusExec, corpusID),
	}
}

// startFilter serves a filter over TCP until the test ends.
func startFilter(t testing.TB, policy *filter.Policy, dial func(context.Context) (net.Conn, error), log *slog.Logger) string {
	t.Helper()
	f, err := filter.New(filter.Config{Policy: policy, Dial: dial, Log: log, Hosts: []string{"docker", "d"}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String()
}

// A client is one connection to the filter.
type client struct {
	net.Conn
	br *bufio.Reader
}

func runCase(t *testing.T, c *verdictCase, policy *filter.Policy, names ourNames, owners map[string]string) {
	t.Helper()
	steps := c.steps()
	var answers []string
	for _, s := range steps {
		if s.Expect == "allow" || slices.Contains(s.AlsoOk, "allow") {
			answers = append(answers, s.UpstreamResponse)
		}
	}
	engine := newFakeEngine(t, owners, answers...)
	if c.Hijack != nil {
		engine.hijack = *c.Hijack
	}
	addr := startFilter(t, policy, engine.dial, slog.New(slog.DiscardHandler))
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	cl := &client{conn, bufio.NewReader(conn)}

	if c.Pipelined {
		var all []byte
		for i := range steps {
			all = append(all, steps[i].bytes(t, names)...)
		}
		cl.send(all)
	}
	for i := range steps {
		s := &steps[i]
		before := len(engine.recordings())
		if !c.Pipelined {
			cl.send(c.request(t, s, names))
		}
		status := cl.status(s.Method)
		passed := len(engine.recordings()) > before
		if c.Pipelined {
			passed = reached(engine, i, steps)
		}
		judgeVerdict(t, c, s, status, passed)
		if passed && s.ExpectUpstream != nil {
			judgeUpstream(t, s.ExpectUpstream, engine.recordings()[before], names)
		}
	}
	if c.Hijack != nil && !t.Failed() {
		judgeStream(t, c.Hijack, cl, engine)
	}
	if n := len(engine.recordings()); n > len(answers) {
		t.Errorf("%d requests reached the engine, at most %d may", n, len(answers))
	}
}

func (c *verdictCase) request(t *testing.T, s *step, names ourNames) []byte {
	t.Helper()
	if c.Raw != "" {
		return []byte(c.Raw)
	}
	out := s.bytes(t, names)
	if c.Hijack != nil && c.Hijack.SameSegment {
		out = append(out, c.Hijack.ClientSends...)
	}
	return out
}

// reached reports whether the i-th of several pipelined steps reached the
// engine: it saw as many requests as there are steps to be allowed up to it.
func reached(engine *fakeEngine, i int, steps []step) bool {
	seen := engine.recordings()
	if i >= len(seen) {
		return false
	}
	path, _, _ := strings.Cut(steps[i].Path, "?")
	return strings.HasPrefix(seen[i].target, path)
}

// send writes from a goroutine of its own: a refused body may never be read.
func (c *client) send(data []byte) {
	go func() { _, _ = c.Write(data) }()
}

// status reads one answer; 0 means that the connection was closed.
func (c *client) status(method string) int {
	resp, err := http.ReadResponse(c.br, &http.Request{Method: method})
	for err == nil && resp.StatusCode == http.StatusContinue {
		resp, err = http.ReadResponse(c.br, &http.Request{Method: method})
	}
	if err != nil {
		return 0
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	return resp.StatusCode
}

func judgeVerdict(t *testing.T, c *verdictCase, s *step, status int, passed bool) {
	t.Helper()
	verdict := "deny"
	if passed {
		verdict = "allow"
	}
	if verdict != s.Expect && !slices.Contains(s.AlsoOk, verdict) {
		t.Errorf("%s %s: %s (status %d), want %s\n%s", s.Method, s.Path, verdict, status, s.Expect, c.Why)
		return
	}
	if !passed && status != 0 && status < 400 {
		t.Errorf("refused with status %d", status)
	}
	if len(s.Status) > 0 && verdict == s.Expect && status != 0 && !slices.Contains(s.Status, status) {
		t.Errorf("status %d, want one of %v", status, s.Status)
	}
	if passed && s.Expect == "allow" && (status < 100 || status >= 500) {
		t.Errorf("admitted, but answered with status %d", status)
	}
}

func judgeUpstream(t *testing.T, want *upstreamCase, got recording, names ourNames) {
	t.Helper()
	line, _, _ := strings.Cut(string(got.raw), "\r\n")
	if want.RequestLine != "" && line != names.in(want.RequestLine) {
		t.Errorf("the engine saw %q, want %q", line, names.in(want.RequestLine))
	}
	for _, name := range want.AbsentHeaders {
		if len(got.header.Values(name)) > 0 {
			t.Errorf("the engine saw the header %s", name)
		}
	}
	for _, name := range want.PresentHeaders {
		if len(got.header.Values(name)) == 0 {
			t.Errorf("the engine did not see the header %s", name)
		}
	}
	if want.SingleFraming && got.framing != 1 {
		t.Errorf("the engine saw %d of Content-Length and Transfer-Encoding", got.framing)
	}
	for _, s := range want.NotContains {
		if strings.Contains(string(got.raw), s) {
			t.Errorf("the engine saw %q", s)
		}
	}
}

func judgeStream(t *testing.T, h *hijackCase, cl *client, engine *fakeEngine) {
	t.Helper()
	if !h.SameSegment {
		_, _ = io.WriteString(cl, h.ClientSends)
	}
	if h.ClientHalfClose {
		_ = cl.Conn.(*net.TCPConn).CloseWrite()
	}
	got, err := io.ReadAll(cl.br) // the stream's end closes the connection
	if err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("the stream did not end: %v", err)
	}
	<-engine.streamed
	if string(got) != h.ExpectClientReceives {
		t.Errorf("the client received %q, want %q", got, h.ExpectClientReceives)
	}
	if s := engine.received.String(); s != h.ExpectUpstreamReceive {
		t.Errorf("the engine received %q, want %q", s, h.ExpectUpstreamReceive)
	}
	if h.ClientSendsAfter != "" {
		_, _ = io.WriteString(cl, h.ClientSendsAfter)
		if status := cl.status("GET"); status != 0 {
			t.Errorf("a request after the stream was answered with %d", status)
		}
	}
	if n := len(engine.recordings()); n != 1 {
		t.Errorf("%d requests reached the engine, want 1", n)
	}
}

// Package filtertest puts a filter in front of the engine of a test, and tells
// what it let through.
package filtertest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"shoal/docker/dockertest"
	"shoal/docker/filter"
)

// A Front is a filter that is served on a socket of its own until the test ends,
// in front of the engine that package dockertest uses.
type Front struct {
	policy *filter.Policy
	socket string
	log    LogBuffer
	dial   func(context.Context) (net.Conn, error)

	mu    sync.Mutex
	conns []*tapConn // guarded by mu
}

// New serves a filter with this policy.
func New(tb testing.TB, policy *filter.Policy) *Front {
	tb.Helper()
	dial, err := filter.Dialer(dockertest.Endpoint())
	if err != nil {
		tb.Fatal(err)
	}
	f := &Front{policy: policy, socket: filepath.Join(tb.TempDir(), "filter.sock"), dial: dial}
	served, err := filter.New(filter.Config{Policy: policy, Dial: f.tap, Log: slog.New(slog.NewJSONHandler(&f.log, nil))})
	if err != nil {
		tb.Fatal(err)
	}
	l, err := filter.ListenUnix(tb.Context(), f.socket, "")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- served.Serve(ctx, l) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("serve: %v", err)
		}
	})
	return f
}

// Endpoint is where the filter listens, as a provider's configuration takes it.
func (f *Front) Endpoint() string { return "unix://" + f.socket }

// Refused returns the rules by which calls were refused, in order.
func (f *Front) Refused(tb testing.TB) (rules []string) {
	tb.Helper()
	for line := range strings.Lines(f.log.String()) {
		var entry struct{ Msg, Rule string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			tb.Fatal(err)
		}
		if entry.Msg == "docker call refused" {
			rules = append(rules, entry.Rule)
		}
	}
	return rules
}

// Calls returns the calls that reached the engine, the filter's own look-ups
// apart, judged again for their rules.
func (f *Front) Calls(tb testing.TB) (out []*filter.Call) {
	tb.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		br := bufio.NewReader(bytes.NewReader(c.written()))
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				break
			}
			if r.Header.Get("User-Agent") != "" {
				continue
			}
			call, refusal := f.policy.Judge(r)
			if refusal != nil {
				tb.Fatalf("what reached the engine is refused when judged again: %v", refusal)
			}
			out = append(out, call)
			if call.Hijack {
				break // what follows is a stream
			}
		}
	}
	return out
}

// SentIsAdmitted compares what a policy admits with what was sent: no call and
// no query key may be on one side only.
func SentIsAdmitted(tb testing.TB, policy *filter.Policy, calls []*filter.Call) {
	tb.Helper()
	sent := map[string]bool{}
	for _, call := range calls {
		sent[call.Rule] = true
		_, query, _ := strings.Cut(call.Target, "?")
		for pair := range strings.SplitSeq(query, "&") {
			if key, _, ok := strings.Cut(pair, "="); ok {
				sent[call.Rule+"?"+key] = true
			}
		}
	}
	admitted := map[string]bool{}
	for rule, keys := range policy.Calls {
		admitted[rule] = true
		for _, key := range keys {
			admitted[rule+"?"+key] = true
		}
	}
	if diff := cmp.Diff(admitted, sent); diff != "" {
		tb.Errorf("admitted (-) and sent (+) differ:\n%s", diff)
	}
}

func (f *Front) tap(ctx context.Context) (net.Conn, error) {
	c, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	tc := &tapConn{Conn: c}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = append(f.conns, tc)
	return tc, nil
}

// A tapConn keeps the first bytes that are written to the engine.
type tapConn struct {
	net.Conn
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

// tapped bounds what is kept of one connection: requests are short, and what
// follows a stream's start is not looked at.
const tapped = 4 << 20

func (c *tapConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.buf.Len() < tapped {
		c.buf.Write(p)
	}
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *tapConn) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite() //nolint:forcetypeassert // both kinds of endpoint can
}

func (c *tapConn) written() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.buf.Bytes())
}

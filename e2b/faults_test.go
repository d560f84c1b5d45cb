package e2b

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/e2b/e2btest"
	"shoal/sandbox"
)

// operations are all that a provider asks the control plane for, with the
// request that decides.
var operations = []struct {
	name, match string
	do          func(context.Context, *Provider, sandbox.Handle) error
}{
	{"create", "POST /sandboxes", func(ctx context.Context, p *Provider, _ sandbox.Handle) error {
		_, err := p.Create(ctx, spec("new"), nil)
		return err
	}},
	{"list", "GET /v2/sandboxes", func(ctx context.Context, p *Provider, _ sandbox.Handle) error { return second(p.List(ctx)) }},
	{"inspect", "GET /sandboxes/*", func(ctx context.Context, p *Provider, h sandbox.Handle) error { return second(p.Inspect(ctx, h)) }},
	{"resume", "POST /sandboxes/*/connect", func(ctx context.Context, p *Provider, h sandbox.Handle) error { return p.Resume(ctx, h) }},
	{"suspend", "POST /sandboxes/*/pause", func(ctx context.Context, p *Provider, h sandbox.Handle) error {
		return p.Suspend(ctx, h, sandbox.SuspendMemory)
	}},
	{"reset", "POST /sandboxes/*/pause", func(ctx context.Context, p *Provider, h sandbox.Handle) error { return p.Reset(ctx, h) }},
	{"attach and wake", "POST /sandboxes/*/connect", func(ctx context.Context, p *Provider, h sandbox.Handle) error { return attachOnce(ctx, p, h, true) }},
	{"attach", "GET /sandboxes/*", func(ctx context.Context, p *Provider, h sandbox.Handle) error { return attachOnce(ctx, p, h, false) }},
	{"set egress", "PUT /sandboxes/*/network", func(ctx context.Context, p *Provider, h sandbox.Handle) error {
		return p.SetEgress(ctx, h, sandbox.Egress{Mode: sandbox.EgressNone})
	}},
	{"destroy", "DELETE /sandboxes/*", func(ctx context.Context, p *Provider, h sandbox.Handle) error { return p.Destroy(ctx, h) }},
}

func attachOnce(ctx context.Context, p *Provider, h sandbox.Handle, wake bool) error {
	s, err := p.Attach(ctx, h, wake)
	if err == nil {
		_ = s.Close()
	}
	return err
}

// failures are the ways in which a control plane fails, with the code that the
// caller gets unless exceptions names another ("-" is none).
var failures = []struct {
	name       string
	fault      e2btest.Fault
	code       sandbox.Code
	exceptions map[string]sandbox.Code
}{
	{
		"404 gone",
		e2btest.Fault{Status: 404, Body: fmt.Sprintf(e2btest.BodyGone, "x")},
		sandbox.Gone,
		map[string]sandbox.Code{"create": sandbox.NotFound, "inspect": "-", "destroy": "-"},
	},
	{"404 no route", e2btest.Fault{Status: 404, Body: e2btest.BodyNoRoute}, sandbox.Engine, nil},
	{"404 no method", e2btest.Fault{Status: 404, Body: e2btest.BodyNoMethod}, sandbox.Engine, nil},
	{"404 of a proxy", e2btest.Fault{Status: 404, Body: e2btest.BodyProxy}, sandbox.Engine, nil},
	{"404 bare", e2btest.Fault{Status: 404, Body: `{"code":404,"message":"not found"}`}, sandbox.Engine, map[string]sandbox.Code{"create": sandbox.NotFound}},
	{"409", e2btest.Fault{Status: 409, Body: e2btest.BodyKilled}, sandbox.Busy, map[string]sandbox.Code{"set egress": sandbox.Unavailable}},
	{"429 with a long Retry-After", e2btest.Fault{Status: 429, Body: e2btest.BodyRate, Header: map[string]string{"Retry-After": "600"}}, sandbox.Busy, nil},
	{"429 without Retry-After", e2btest.Fault{Status: 429, Body: e2btest.BodyConcurrency}, sandbox.Busy, nil},
	{"500", e2btest.Fault{Status: 500, Body: e2btest.BodyInternal}, sandbox.Engine, nil},
	{"503", e2btest.Fault{Status: 503, Body: `{"code":503,"message":"no capacity","error_code":"sandbox_capacity_unavailable"}`}, sandbox.Engine, nil},
	{"502 of a proxy", e2btest.Fault{Status: 502, Body: "<html>bad gateway</html>"}, sandbox.Engine, nil},
	{"401", e2btest.Fault{Status: 401, Body: `{"code":401,"message":"Invalid API key ` + e2btest.Key + `"}`}, sandbox.Denied, nil},
	{"dropped", e2btest.Fault{Drop: true}, sandbox.Engine, nil},
	{"stalled", e2btest.Fault{Delay: 2 * time.Second}, sandbox.Timeout, nil},
}

// TestFaults drives every operation into every failure: each ends in time with
// the right code, says nothing secret, leaves nothing behind, and succeeds when
// the failure is over.
func TestFaults(t *testing.T) {
	t.Parallel()
	slots := make(chan struct{}, 16) // each has two servers
	for _, f := range failures {
		for _, op := range operations {
			t.Run(f.name+" at "+op.name, func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				want := f.code
				if other, ok := f.exceptions[op.name]; ok {
					want = other
				}
				fault := f.fault
				fault.Match, fault.Times = op.match, 1000
				tryFault(t, fault, op.do, want)
			})
		}
	}
}

func tryFault(t *testing.T, fault e2btest.Fault, do func(context.Context, *Provider, sandbox.Handle) error, want sandbox.Code) {
	t.Helper()
	fake := e2btest.New(t, e2btest.Config{})
	var log lockedBuffer
	p := newProvider(t, fake, func(c *Config) {
		c.Egress, c.Log = EgressNative, slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	h := create(t, p, "a")
	token := p.reach[h.Ref].token.Reveal()
	fake.Inject(fault)
	wait := 10 * time.Second
	if fault.Delay > 0 {
		wait = 200 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	err := do(ctx, p, h)
	if got := sandbox.CodeOf(err); got != want && !(want == "-" && err == nil) {
		t.Errorf("%v (%s), want %s", err, got, want)
	}
	for _, secret := range []string{e2btest.Key, token} {
		if strings.Contains(fmt.Sprintf("%v %+v", err, err), secret) || strings.Contains(log.String(), secret) {
			t.Errorf("a secret shows in %v or in the log %s", err, log.String())
		}
	}
	if n := len(fake.Sandboxes()); n > 1 {
		t.Errorf("%d sandboxes are left", n)
	}
	if fault.Delay > 0 {
		return // what is on its way still strikes
	}
	fake.ClearFaults()
	if err := do(t.Context(), p, h); err != nil {
		t.Errorf("after the failure: %v", err)
	}
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

package e2b

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"shoal/e2b/e2btest"
	"shoal/sandbox"
)

func testCreateSaysEverything(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a.b_c-1")
	box, ok := fake.Sandbox(h.Ref)
	if !ok || !box.AutoPause || !box.Secure || box.PublicTraffic || box.Internet {
		t.Errorf("%+v", box)
	}
	if until := time.Until(box.End); until < 59*time.Minute {
		t.Errorf("ends in %s", until)
	}
	if h.Provider != Kind || h.Limits.CPU != 2 || h.Limits.MemoryMB != 1024 || len(h.Notes) == 0 {
		t.Errorf("%+v", h)
	}
	for _, r := range fake.Requests() {
		if strings.Contains(string(r.Body), "secret") {
			t.Errorf("%s %s carries what is the agent's: %s", r.Method, r.Path, r.Body)
		}
		if strings.Contains(fmt.Sprint(r.Query, string(r.Body)), e2btest.Key) {
			t.Error("the key is outside its header")
		}
	}
	o, err := p.Inspect(t.Context(), h)
	if err != nil || o.State != sandbox.Running || o.Name != h.Name || o.Generation != h.Generation || o.Bucket != "bucket1" || !o.Complete {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestCreateRemovesLeftoversOfItsGenerationOnly(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{PageSize: 1})
	p := newProvider(t, fake)
	older := create(t, p, "a")
	s := spec("a")
	first, err := p.Create(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	lost := fake.Clone(first.Ref)
	if err := p.Suspend(t.Context(), first, sandbox.SuspendMemory); err != nil { // both states, several pages
		t.Fatal(err)
	}
	second, err := p.Create(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{older.Ref: true, first.Ref: false, lost: false, second.Ref: true} {
		if _, there := fake.Sandbox(id); there != want {
			t.Errorf("%s is there: %t", id, there)
		}
	}
}

func TestFailedCreateLeavesNothing(t *testing.T) { // LC-11
	t.Parallel()
	const post = "POST /sandboxes"
	for name, c := range map[string]struct {
		fault e2btest.Fault
		code  sandbox.Code
	}{
		"500 before the work":        {e2btest.Fault{Match: post, Status: 500, Body: e2btest.BodyInternal}, sandbox.Engine},
		"500 after the work":         {e2btest.Fault{Match: post, Status: 500, Body: e2btest.BodyInternal, AfterWork: true}, sandbox.Engine},
		"answer lost after the work": {e2btest.Fault{Match: post, Drop: true, AfterWork: true}, sandbox.Engine},
		"answer cut off":             {e2btest.Fault{Match: post, Status: 201, Body: `{"sandboxID":"i`, AfterWork: true}, sandbox.Engine},
		"proxy's 502 after the work": {e2btest.Fault{Match: post, Status: 502, Body: "bad gateway", AfterWork: true}, sandbox.Engine},
		"no token":                   {e2btest.Fault{Match: post, Status: 201, Body: `{"sandboxID":"iabc"}`, AfterWork: true}, sandbox.Engine},
		"cannot be read back":        {e2btest.Fault{Match: "GET /sandboxes/*", Status: 400, Body: `{"code":400,"message":"no"}`}, sandbox.Unsupported},
		"template missing":           {e2btest.Fault{Match: post, Status: 404, Body: `{"code":404,"message":"template 'shoal' not found"}`}, sandbox.NotFound},
		"route unknown":              {e2btest.Fault{Match: post, Status: 404, Body: e2btest.BodyNoRoute}, sandbox.Engine},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := e2btest.New(t, e2btest.Config{})
			p := newProvider(t, fake)
			fake.Inject(c.fault)
			_, err := p.Create(t.Context(), spec("a"), nil)
			if sandbox.CodeOf(err) != c.code {
				t.Errorf("%v (%s), want %s", err, sandbox.CodeOf(err), c.code)
			}
			if left := fake.Sandboxes(); len(left) != 0 {
				t.Errorf("left behind: %+v", left)
			}
			create(t, p, "a")
		})
	}
}

func testSandboxThatWouldBeKilledIsRefused(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{ForgetAutoPause: true})
	_, err := newProvider(t, fake).Create(t.Context(), spec("a"), nil)
	wantCode(t, err, sandbox.Engine, "")
	if len(fake.Sandboxes()) != 0 {
		t.Error("a sandbox is left")
	}
}

func TestInterruptedCreateLeavesNothing(t *testing.T) { // LC-11
	t.Parallel()
	for name, f := range map[string]e2btest.Fault{
		"at the listing":        {Match: "GET /v2/sandboxes", Delay: time.Second},
		"before the work":       {Match: "POST /sandboxes", Delay: time.Second},
		"after the work":        {Match: "GET /sandboxes/*", Delay: time.Second},
		"at the template check": {Match: "POST /process.Process/Start", Delay: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := e2btest.New(t, e2btest.Config{})
			p := newProvider(t, fake)
			p.checked = false
			fake.Inject(f)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if _, err := p.Create(ctx, spec("a"), nil); sandbox.CodeOf(err) != sandbox.Timeout {
				t.Errorf("%v", err)
			}
			if left := fake.Sandboxes(); len(left) != 0 {
				t.Errorf("left behind: %+v", left)
			}
		})
	}
}

func testCreateIsNotDoubled(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	fake.Inject(e2btest.Fault{Match: "POST /sandboxes", Status: 429, Body: e2btest.BodyRate, Header: map[string]string{"Retry-After": "1"}})
	fake.Inject(e2btest.Fault{Match: "POST /sandboxes", Status: 429, Body: e2btest.BodyConcurrency})
	create(t, p, "a")
	if n := len(fake.Sandboxes()); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
}

func TestFullAccountIsBusy(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{MaxRunning: 1})
	p := newProvider(t, fake)
	create(t, p, "a")
	_, err := p.Create(t.Context(), spec("b"), nil)
	wantCode(t, err, sandbox.Busy, "concurrency")
	if !sandbox.AsError(err).Retryable() || sandbox.AsError(err).RetryAfter == 0 {
		t.Error("nobody is told when to try again")
	}
}

func TestWrongKeyIsDenied(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake, func(c *Config) { c.APIKey = NewSecret("e2b_wrong") })
	_, err := p.List(t.Context())
	wantCode(t, err, sandbox.Denied, "")
}

func TestOtherImageIsUnsupported(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	s := spec("a")
	s.Image = "debian:trixie"
	_, err := newProvider(t, fake).Create(t.Context(), s, nil)
	wantCode(t, err, sandbox.Unsupported, "")
	if len(fake.Requests()) != 0 {
		t.Error("E2B was asked all the same")
	}
}

func TestTemplateWithoutAgentIsInvalid(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	p.checked = false // this machine has no agent
	_, err := p.Create(t.Context(), spec("a"), nil)
	wantCode(t, err, sandbox.Invalid, "")
	if len(fake.Sandboxes()) != 0 {
		t.Error("a sandbox is left")
	}
}

package e2b

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/e2b/e2btest"
	"shoal/sandbox"
)

// newProvider is a provider on fake whose attach program is cat: what is
// written comes back. The template counts as checked.
func newProvider(t *testing.T, fake *e2btest.Server, change ...func(*Config)) *Provider {
	t.Helper()
	cfg := Config{
		APIKey: NewSecret(e2btest.Key), Template: "shoal", APIURL: fake.APIURL(), Domain: fake.Domain(),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, f := range change {
		f(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.attach = process{Cmd: "/bin/cat", Cwd: "/"}
	p.checked = true
	p.api.backoff = 10 * time.Millisecond
	return p
}

func spec(name string) sandbox.Spec {
	return sandbox.Spec{
		Tenant: "main", Name: sandbox.Name(name), Generation: sandbox.NewID(), Bucket: "bucket1",
		Limits: sandbox.DefaultLimits(), Egress: sandbox.Egress{Mode: sandbox.EgressNone},
		Env: map[string]string{"TOKEN": "environment-secret"}, Metadata: map[string]string{"owner": "kernel-secret"},
	}
}

func create(t *testing.T, p *Provider, name string) sandbox.Handle {
	t.Helper()
	h, err := p.Create(t.Context(), spec(name), nil)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func wantCode(t *testing.T, err error, code sandbox.Code, reason string) {
	t.Helper()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Code != code || e.Reason != reason {
		t.Errorf("%v (%s), want code %s and reason %q", err, sandbox.CodeOf(err), code, reason)
	}
	if err != nil && strings.Contains(err.Error(), e2btest.Key) {
		t.Error("the error holds the key")
	}
}

func count(fake *e2btest.Server, method, path string) int {
	n := 0
	for _, r := range fake.Requests() {
		if r.Method == method && r.Path == path {
			n++
		}
	}
	return n
}

func TestCreateSaysEverything(t *testing.T) { // E2-02, E2-07
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

func TestSandboxThatWouldBeKilledIsRefused(t *testing.T) { // E2-02
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
		"before the work": {Match: "POST /sandboxes", Delay: time.Second},
		"after the work":  {Match: "GET /sandboxes/*", Delay: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := e2btest.New(t, e2btest.Config{})
			p := newProvider(t, fake)
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

func TestCreateIsNotDoubled(t *testing.T) { // E2-06
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

func TestLifeIsNeverShortened(t *testing.T) { // E2-01
	fake := e2btest.New(t, e2btest.Config{})
	long := newProvider(t, fake, func(c *Config) { c.TimeoutSeconds = 7200 })
	short := newProvider(t, fake, func(c *Config) { c.TimeoutSeconds = 60 })
	h := create(t, long, "a")
	before, _ := fake.Sandbox(h.Ref)
	if err := short.Resume(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	s, err := short.Attach(t.Context(), h, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for count(fake, "POST", "/sandboxes/"+h.Ref+"/refreshes") == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if after, _ := fake.Sandbox(h.Ref); after.End.Before(before.End) {
		t.Errorf("the end moved from %s to %s", before.End, after.End)
	}
	for _, r := range fake.Requests() {
		if strings.HasSuffix(r.Path, "/timeout") || (strings.HasSuffix(r.Path, "/connect") && !strings.Contains(string(r.Body), `"timeout":`)) {
			t.Errorf("%s %s %s", r.Method, r.Path, r.Body)
		}
	}
}

func TestLifeIsPushedBackWhileAttached(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	p.cfg.TimeoutSeconds = 1 // below what the settings take, to see it within the test
	h := create(t, p, "a")
	s, err := p.Attach(t.Context(), h, true)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(1800 * time.Millisecond)
	box, _ := fake.Sandbox(h.Ref)
	refreshes := count(fake, "POST", "/sandboxes/"+h.Ref+"/refreshes")
	if box.State != "running" || refreshes < 2 || refreshes > 4 {
		t.Errorf("%s after %d refreshes", box.State, refreshes)
	}
	s.Close()
	fake.Forget()
	time.Sleep(700 * time.Millisecond)
	if n := count(fake, "POST", "/sandboxes/"+h.Ref+"/refreshes"); n != 0 {
		t.Errorf("%d refreshes after the end of the stream", n)
	}
}

func TestEndOfTimePausesAndResumeBringsBack(t *testing.T) { // E2-02, LC-05
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	for range 3 {
		fake.Expire(h.Ref)
		o, err := p.Inspect(t.Context(), h)
		if err != nil || o.State != sandbox.Paused {
			t.Fatalf("%+v, %v", o, err)
		}
		fake.Forget()
		_, err = p.Attach(t.Context(), h, false)
		wantCode(t, err, sandbox.Unavailable, "suspended")
		if n := len(fake.Requests()); n != 1 {
			t.Errorf("%d requests to learn that it is suspended", n)
		}
		if err := p.Resume(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	fake.Expire(h.Ref)
	if box, _ := fake.Sandbox(h.Ref); box.State != "paused" {
		t.Errorf("after a resume the end is %s", box.State)
	}
}

func TestResumeIsOneForAll(t *testing.T) { // E2-13
	fake := e2btest.New(t, e2btest.Config{})
	p, other := newProvider(t, fake), newProvider(t, fake)
	h := create(t, p, "a")
	if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		fake.Inject(e2btest.Fault{
			Match: "POST /sandboxes/*/connect", Status: 409,
			Body: `{"code":409,"message":"start in flight","error_code":"sandbox_start_in_flight"}`,
		})
	}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			if err := []*Provider{p, other}[i%2].Resume(t.Context(), h); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if box, _ := fake.Sandbox(h.Ref); box.State != "running" || box.Boots != 1 {
		t.Errorf("%+v", box)
	}
	if n := count(fake, "POST", "/sandboxes/"+h.Ref+"/connect"); n > 5 {
		t.Errorf("%d connects for two workers and three conflicts", n)
	}
}

func TestResumeSendsABody(t *testing.T) { // E2-03
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	fake.Inject(e2btest.Fault{Match: "POST /sandboxes/*/connect", Status: 400, Body: `{"code":400,"message":"bad body"}`})
	err := p.Resume(t.Context(), h)
	wantCode(t, err, sandbox.Unsupported, "") // a 400 is not gone
	fake.Forget()
	if err := p.Resume(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if r := fake.Requests()[0]; string(r.Body) != `{"timeout":3600}` || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s %v", r.Body, r.Header)
	}
}

func TestGoneIsOnlyWhatE2BDenies(t *testing.T) { // E2-05
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	for name, body := range map[string]string{
		"no route": e2btest.BodyNoRoute, "no method": e2btest.BodyNoMethod, "a proxy": e2btest.BodyProxy,
		"a bare code": `{"code":404,"message":"not found"}`,
	} {
		for _, route := range []string{"POST /sandboxes/*/connect", "POST /v2/sandboxes/*/connect"} {
			fake.Inject(e2btest.Fault{Match: route, Status: 404, Body: body})
		}
		if err := p.Resume(t.Context(), h); sandbox.CodeOf(err) != sandbox.Engine {
			t.Errorf("resume, %s: %v", name, err)
		}
		fake.Inject(e2btest.Fault{Match: "GET /sandboxes/*", Status: 404, Body: body})
		if o, err := p.Inspect(t.Context(), h); sandbox.CodeOf(err) != sandbox.Engine {
			t.Errorf("inspect, %s: %+v, %v", name, o, err)
		}
		fake.Inject(e2btest.Fault{Match: "POST /sandboxes/*/pause", Status: 404, Body: body})
		if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); sandbox.CodeOf(err) != sandbox.Engine {
			t.Errorf("suspend, %s: %v", name, err)
		}
		fake.ClearFaults()
	}
	if err := p.Destroy(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"resume":  p.Resume(t.Context(), h),
		"suspend": p.Suspend(t.Context(), h, sandbox.SuspendDisk),
		"reset":   p.Reset(t.Context(), h),
		"attach":  second(p.Attach(t.Context(), h, true)),
		"look":    second(p.Attach(t.Context(), h, false)),
	} {
		if sandbox.CodeOf(err) != sandbox.Gone {
			t.Errorf("%s of what is gone: %v", name, err)
		}
	}
	if o, err := p.Inspect(t.Context(), h); err != nil || o.State != sandbox.Absent {
		t.Errorf("%+v, %v", o, err)
	}
	if err := p.Destroy(t.Context(), h); err != nil {
		t.Errorf("destroy again: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestNoTokenNoRequest(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	fake.RemoveToken(h.Ref)
	fake.Forget()
	for _, wake := range []bool{true, false} {
		_, err := p.Attach(t.Context(), h, wake)
		wantCode(t, err, sandbox.Gone, "no_token")
	}
	for _, r := range fake.Requests() {
		if r.Plane == "envd" {
			t.Errorf("%s %s without a token", r.Method, r.Path)
		}
	}
}

func TestSuspendAndDestroyAreIdempotent(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	for _, mode := range []sandbox.SuspendMode{sandbox.SuspendMemory, sandbox.SuspendMemory, sandbox.SuspendDisk, sandbox.SuspendDisk} {
		if err := p.Suspend(t.Context(), h, mode); err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		box, _ := fake.Sandbox(h.Ref)
		if box.State != "paused" || box.MemoryKept != (mode == sandbox.SuspendMemory) {
			t.Errorf("%s: %+v", mode, box)
		}
	}
}

func TestSlowPauseIsWaitedFor(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	fake.SlowPause(h.Ref, time.Second)
	done := make(chan error, 1)
	go func() { done <- p.Suspend(t.Context(), h, sandbox.SuspendMemory) }()
	time.Sleep(200 * time.Millisecond)
	if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil { // joins
		t.Errorf("second pause: %v", err)
	}
	if err := p.Resume(t.Context(), h); err != nil {
		t.Errorf("resume: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	fake.Inject(e2btest.Fault{Match: "POST /sandboxes/*/pause", Status: 409, Body: `{"code":409,"message":"Sandbox 'x' cannot be paused while in 'snapshotting' state"}`})
	if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
		t.Errorf("pause while in another transition: %v", err)
	}
	if box, _ := fake.Sandbox(h.Ref); box.State != "paused" {
		t.Errorf("%+v", box)
	}
}

func TestResetNeedsABoot(t *testing.T) {
	t.Run("boots", func(t *testing.T) {
		fake := e2btest.New(t, e2btest.Config{})
		p := newProvider(t, fake)
		h := create(t, p, "a")
		if err := p.Reset(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		if box, _ := fake.Sandbox(h.Ref); box.Boots != 2 || box.State != "running" {
			t.Errorf("%+v", box)
		}
	})
	t.Run("resumed by somebody else", func(t *testing.T) {
		fake := e2btest.New(t, e2btest.Config{})
		p := newProvider(t, fake)
		h := create(t, p, "a")
		fake.ResumeAfterPause(h.Ref, 3)
		err := p.Reset(t.Context(), h)
		wantCode(t, err, sandbox.Engine, "")
		if err == nil || !strings.Contains(err.Error(), "did not happen") {
			t.Error(err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		fake := e2btest.New(t, e2btest.Config{})
		p := newProvider(t, fake)
		h := create(t, p, "a")
		for range 2 {
			fake.Inject(e2btest.Fault{Match: "POST /sandboxes/*/connect", Status: 503, Body: `{"code":503,"message":"too old","error_code":"sandbox_filesystem_boot_unconfirmed"}`, Times: 5})
		}
		err := p.Reset(t.Context(), h)
		if err == nil || !strings.Contains(err.Error(), "did not happen") {
			t.Error(err)
		}
	})
	t.Run("pause cannot drop the memory", func(t *testing.T) {
		fake := e2btest.New(t, e2btest.Config{NoColdBoot: true})
		p := newProvider(t, fake)
		h := create(t, p, "a")
		fake.Inject(e2btest.Fault{Match: "POST /sandboxes/*/pause", Status: 400, Body: `{"code":400,"message":"memory is not supported"}`})
		err := p.Reset(t.Context(), h)
		wantCode(t, err, sandbox.Unsupported, "")
		if box, _ := fake.Sandbox(h.Ref); box.State != "running" || box.Boots != 1 {
			t.Errorf("not brought back: %+v", box)
		}
	})
}

func TestDuplicatesAreReportedNotPicked(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	var log bytes.Buffer
	p := newProvider(t, fake, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	h := create(t, p, "a")
	fake.Clone(h.Ref)
	h.Ref = ""
	wantCode(t, p.Resume(t.Context(), h), sandbox.Conflict, "duplicate")
	_, err := p.Inspect(t.Context(), h)
	wantCode(t, err, sandbox.Conflict, "duplicate")
	all, err := p.List(t.Context())
	if err != nil || len(all) != 2 || !strings.Contains(log.String(), "two sandboxes of one generation") {
		t.Errorf("%+v, %v, %s", all, err, log.String())
	}
	if err := p.Destroy(t.Context(), h); err != nil || len(fake.Sandboxes()) != 0 {
		t.Errorf("%v, %+v", err, fake.Sandboxes())
	}
}

func TestDestroyByNameAndListSeeTheFleetOnly(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{PageSize: 2})
	p := newProvider(t, fake)
	other := newProvider(t, fake, func(c *Config) { c.Fleet = "other" })
	for range 2 {
		create(t, p, "a")
	}
	kept := []sandbox.Handle{create(t, p, "b"), create(t, other, "a")}
	all, err := p.List(t.Context())
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	if err := p.DestroyByName(t.Context(), "main", "a"); err != nil {
		t.Fatal(err)
	}
	if n := len(fake.Sandboxes()); n != len(kept) {
		t.Errorf("%d left", n)
	}
	if err := p.DestroyByName(t.Context(), "main", "never"); err != nil {
		t.Error(err)
	}
}

func TestForeignIdIsRefused(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	bad := h
	bad.Ref = "../../health"
	if err := p.Resume(t.Context(), bad); sandbox.CodeOf(err) != sandbox.Invalid {
		t.Error(err)
	}
	wrong := h
	wrong.Generation = "other"
	if _, err := p.Inspect(t.Context(), wrong); sandbox.CodeOf(err) != sandbox.Conflict {
		t.Error(err)
	}
}

func TestEgressRules(t *testing.T) {
	native := func(c *Config) { c.Egress = EgressNative }
	domains := func(c *Config) { c.Egress, c.DomainAllowlist = EgressNative, true }
	open := func(c *Config) { c.Egress, c.AllowOpenEgress = EgressNative, true }
	list := sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"example.com", "*.example.org:443", "*.example.org:80"}}
	for name, c := range map[string]struct {
		change   func(*Config)
		egress   sandbox.Egress
		code     sandbox.Code
		internet bool
		allow    string
		note     string
	}{
		"tunnel none":            {func(*Config) {}, sandbox.Egress{Mode: "none"}, "", false, "[]", ""},
		"tunnel allowlist":       {func(*Config) {}, list, "", false, "[]", ""},
		"tunnel open":            {func(*Config) {}, sandbox.Egress{Mode: "open"}, sandbox.Denied, false, "", ""},
		"native none":            {domains, sandbox.Egress{Mode: "none"}, "", false, "[]", ""},
		"native empty list":      {domains, sandbox.Egress{Mode: "allowlist"}, "", false, "[]", ""},
		"native allowlist":       {domains, list, "", true, "[example.com *.example.org]", "8.8.8.8"},
		"native list degrades":   {native, list, "", false, "[]", "domainAllowlist"},
		"native other port":      {domains, sandbox.Egress{Mode: "allowlist", Hosts: []string{"example.com:22"}}, sandbox.Unsupported, false, "", ""},
		"open where allowed":     {open, sandbox.Egress{Mode: "open"}, "", true, "[]", ""},
		"open where not":         {native, sandbox.Egress{Mode: "open"}, sandbox.Denied, false, "", ""},
		"mode of the deployment": {native, sandbox.Egress{}, "", false, "[]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fake := e2btest.New(t, e2btest.Config{})
			p := newProvider(t, fake, c.change)
			s := spec("a")
			s.Egress = c.egress
			h, err := p.Create(t.Context(), s, nil)
			if sandbox.CodeOf(err) != c.code {
				t.Fatalf("%v, want %q", err, c.code)
			}
			if err != nil {
				return
			}
			box, _ := fake.Sandbox(h.Ref)
			if box.Internet != c.internet || fmt.Sprint(box.AllowOut) != c.allow || box.PublicTraffic {
				t.Errorf("%+v", box)
			}
			if !strings.Contains(fmt.Sprint(h.Notes), c.note) {
				t.Errorf("notes %q", h.Notes)
			}
		})
	}
}

func TestSetEgressReplaces(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake, func(c *Config) { c.Egress, c.DomainAllowlist = EgressNative, true })
	h := create(t, p, "a")
	set := func(e sandbox.Egress) string {
		t.Helper()
		if err := p.SetEgress(t.Context(), h, e); err != nil {
			t.Fatal(err)
		}
		box, _ := fake.Sandbox(h.Ref)
		return fmt.Sprint(box.Internet, box.AllowOut, box.DenyOut)
	}
	if got := set(sandbox.Egress{Mode: "allowlist", Hosts: []string{"example.com"}}); got != "true [example.com] [0.0.0.0/0]" {
		t.Error(got)
	}
	if got := set(sandbox.Egress{Mode: "none"}); got != "false [] [0.0.0.0/0]" {
		t.Error(got)
	}
	if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
		t.Fatal(err)
	}
	wantCode(t, p.SetEgress(t.Context(), h, sandbox.Egress{Mode: "none"}), sandbox.Unavailable, "suspended")
	tunnel := newProvider(t, fake)
	wantCode(t, tunnel.SetEgress(t.Context(), h, sandbox.Egress{Mode: "none"}), sandbox.Unsupported, "")
}

func TestAttachEchoes(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
		t.Fatal(err)
	}
	s, err := p.Attach(t.Context(), h, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
	go func() { _, _ = s.Write(data) }()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%v, equal %t", err, bytes.Equal(got, data))
	}
	for _, r := range fake.Requests() {
		if r.Plane == "envd" && (r.Header.Get("Connect-Timeout-Ms") != "" || r.Header.Get("Keepalive-Ping-Interval") == "0") {
			t.Errorf("%s %v", r.Path, r.Header)
		}
	}
}

func TestAttachHasABoundedStart(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	fake.Inject(e2btest.Fault{Match: "POST /process.Process/Start", Delay: 5 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := p.Attach(ctx, h, true)
	if sandbox.CodeOf(err) != sandbox.Timeout || time.Since(began) > 2*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

func TestAttachFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault e2btest.Fault
		code  sandbox.Code
	}{
		"plain text 404": {e2btest.Fault{Status: 404, Body: "404 page not found\n"}, sandbox.Engine},
		"port not open":  {e2btest.Fault{Status: 502, Body: `{"sandboxId":"x","message":"The sandbox is running but port is not open","code":502}`}, sandbox.Engine},
		"not running":    {e2btest.Fault{Status: 502, Body: `{"sandboxId":"x","message":"The sandbox was not found","code":502}`, Times: 9}, sandbox.Unavailable},
		"once paused":    {e2btest.Fault{Status: 502, Body: `{"sandboxId":"x","message":"The sandbox was not found","code":502}`}, ""},
		"wrong token":    {e2btest.Fault{Status: 401, Body: `{"code":401,"message":"unauthorized access"}`}, sandbox.Gone},
		"dropped":        {e2btest.Fault{Drop: true}, sandbox.Engine},
		"rate":           {e2btest.Fault{Status: 429, Body: `{"sandboxId":"x","message":"too many connections","code":429}`}, sandbox.Engine},
	} {
		t.Run(name, func(t *testing.T) {
			fake := e2btest.New(t, e2btest.Config{})
			p := newProvider(t, fake)
			h := create(t, p, "a")
			c.fault.Match = "POST /process.Process/Start"
			fake.Inject(c.fault)
			s, err := p.Attach(t.Context(), h, true)
			if sandbox.CodeOf(err) != c.code {
				t.Errorf("%v, want %q", err, c.code)
			}
			if s != nil {
				s.Close()
			}
		})
	}
}

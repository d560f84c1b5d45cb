package e2b

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
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

func testGoneIsOnlyWhatE2BDenies(t *testing.T) {
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

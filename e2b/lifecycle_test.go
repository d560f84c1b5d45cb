package e2b

import (
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/e2b/e2btest"
	"shoal/sandbox"
)

func testLifeIsNeverShortened(t *testing.T) {
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
	t.Parallel()
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	p.cfg.TimeoutSeconds = 3 // below what the settings take, to see it within the test
	h := create(t, p, "a")
	began := time.Now()
	s, err := p.Attach(t.Context(), h, true)
	if err != nil {
		t.Fatal(err)
	}
	refreshes := func() int { return count(fake, "POST", "/sandboxes/"+h.Ref+"/refreshes") }
	for refreshes() < 3 {
		if time.Since(began) > time.Minute {
			t.Fatalf("%d refreshes in a minute", refreshes())
		}
		time.Sleep(50 * time.Millisecond)
	}
	box, _ := fake.Sandbox(h.Ref)
	if took := time.Since(began); box.State != "running" || took < 4*time.Second {
		t.Errorf("%s, three refreshes in %s", box.State, took)
	}
	_ = s.Close()
	fake.Forget()
	time.Sleep(2 * time.Second)
	if n := refreshes(); n != 0 {
		t.Errorf("%d refreshes after the end of the stream", n)
	}
}

func testEndOfTimePausesAndResumeBringsBack(t *testing.T) {
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

func testResumeIsOneForAll(t *testing.T) {
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

func testResumeSendsABody(t *testing.T) {
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
	t.Parallel()
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

package sandboxtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"shoal/agent"
	"shoal/sandbox"
)

var lifeCases = []Case{
	{Promise: "a created sandbox runs and its agent answers", run: created},
	{Promise: "create refuses what is not valid", run: createInvalid},
	{ID: "LC-11", Promise: "a create that fails or is given up leaves nothing", run: createFails},
	{ID: "LC-05", Promise: "files survive every suspend", run: filesSurvive},
	{ID: "EX-23", Promise: "a suspend with memory keeps commands and their ids", run: commandsSurvive},
	{Promise: "a suspend without memory ends commands as suspended", run: commandsSuspended},
	{ID: "EX-34", Promise: "the time of waking is not the command's", run: slowWake},
	{Promise: "suspend and resume may be repeated", run: repeated},
	{Promise: "only an attach that may wake starts a sandbox, once for all", run: wakesOnce},
	{Promise: "a reset brings a new boot with the old files", run: resets},
	{Promise: "what is destroyed is gone, and destroying it again is success", run: destroyed},
	{Promise: "a suspended sandbox can be destroyed at once", run: destroySuspended},
	{ID: "KL-10", Promise: "a destroy ends the streams that are followed", run: destroyWhileStreaming},
	{Promise: "destroy by name takes all generations of that name alone", run: destroyByName},
	{Promise: "a handle reaches its own generation only", run: oldGeneration},
	{Promise: "list shows what is there with its bucket", run: lists},
}

func created(t *testing.T, x *suite) {
	b := x.box(t)
	spec, h := b.spec, b.h
	engine, err := x.Provider.EngineID(t.Context())
	if err != nil {
		t.Fatal(explain(err))
	}
	if h.Provider != x.Provider.Kind() || h.Engine != engine || h.Tenant != spec.Tenant || h.Name != spec.Name ||
		h.Generation != spec.Generation || h.Ref == "" {
		t.Errorf("handle %+v does not name what was asked for", h)
	}
	o, err := x.Provider.Inspect(t.Context(), h)
	if err != nil || o.State != sandbox.Running || !o.Complete || o.Bucket != spec.Bucket {
		t.Errorf("inspect: %+v, %v; want running and complete", o, err)
	}
	if got := b.output(t, "echo hello"); got != "hello" {
		t.Errorf("output %q, want hello", got)
	}
}

func createInvalid(t *testing.T, x *suite) {
	for field, change := range map[string]func(*sandbox.Spec){
		"tenant":     func(s *sandbox.Spec) { s.Tenant = "_fleet" },
		"name":       func(s *sandbox.Spec) { s.Name = "../etc" },
		"generation": func(s *sandbox.Spec) { s.Generation = "a.b" },
		"image":      func(s *sandbox.Spec) { s.Image = "bild ä" },
		"env":        func(s *sandbox.Spec) { s.Env = map[string]string{"1X": ""} },
	} {
		spec := x.spec("invalid")
		change(&spec)
		_, err := x.Provider.Create(t.Context(), spec, nil)
		if e := wantError(t, err, sandbox.Invalid); e.Field != field {
			t.Errorf("field %q, want %q", e.Field, field)
		}
	}
}

func createFails(t *testing.T, x *suite) {
	absent := func(spec sandbox.Spec) {
		t.Helper()
		list, err := x.Provider.List(t.Context())
		if err != nil {
			t.Fatal(explain(err))
		}
		if slices.ContainsFunc(list, func(o sandbox.Object) bool { return o.Generation == spec.Generation }) {
			t.Errorf("the failed create of %s left something", spec.Name)
		}
	}
	fails := func(ref string, code sandbox.Code) {
		t.Helper()
		if ref == "" {
			return
		}
		spec := x.spec("fails")
		spec.Image = ref
		_, err := x.Provider.Create(t.Context(), spec, nil)
		wantError(t, err, code)
		absent(spec)
	}
	fails(x.MissingImage, sandbox.NotFound)
	fails(x.ForeignImage, sandbox.Invalid)
	for _, after := range []int{0, 3, 10, 40} {
		spec := x.spec("givenup")
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(after)*time.Millisecond)
		h, err := x.Provider.Create(ctx, spec, nil)
		cancel()
		if err == nil {
			if err := x.Provider.Destroy(t.Context(), h); err != nil {
				t.Fatal(explain(err))
			}
		} else {
			wantError(t, err, sandbox.Timeout)
		}
		absent(spec)
	}
}

// modes are the suspend modes that the provider has.
func (x *suite) modes() []sandbox.SuspendMode { return x.Provider.Capabilities().Suspend }

func filesSurvive(t *testing.T, x *suite) {
	b := x.nap(t)
	const cycles = 4
	for k := range cycles {
		b.output(t, fmt.Sprintf("head -c 20000 /dev/urandom > f%d && sha256sum f%d >> sums", k, k))
		mode := x.modes()[k%len(x.modes())]
		if err := x.Provider.Suspend(t.Context(), b.h, mode); err != nil {
			t.Fatalf("suspend with %s: %v", mode, explain(err))
		}
		if err := x.Provider.Resume(t.Context(), b.h); err != nil {
			t.Fatalf("resume: %v", explain(err))
		}
		b.attach(t)
		b.output(t, "sha256sum -c sums")
	}
	if n := b.output(t, "wc -l < sums"); n != fmt.Sprint(cycles) {
		t.Errorf("%s files are recorded, want %d", n, cycles)
	}
}

func (x *suite) has(mode sandbox.SuspendMode) bool { return slices.Contains(x.modes(), mode) }

func commandsSurvive(t *testing.T, x *suite) {
	if !x.has(sandbox.SuspendMemory) {
		t.Skip("the provider does not keep memory")
	}
	b := x.nap(t)
	st := b.start(t, sandbox.Command{ID: "kept", Shell: "read x; echo got $x", Stdin: sandbox.StdinStream})
	started := st.Started().Info.Started
	boot := b.s.Hello().Boot
	if err := x.Provider.Suspend(t.Context(), b.h, sandbox.SuspendMemory); err != nil {
		t.Fatal(explain(err))
	}
	if o, err := x.Provider.Inspect(t.Context(), b.h); err != nil || o.State != sandbox.Paused {
		t.Errorf("inspect: %s, %v; want paused", o.State, err)
	}
	b.attach(t) // wakes
	if b.s.Hello().Boot != boot {
		t.Fatal("another boot after a suspend with memory")
	}
	list, err := b.s.List(t.Context())
	list = slices.DeleteFunc(list, func(i sandbox.CommandInfo) bool { return i.State != sandbox.CommandRunning })
	if err != nil || len(list) != 1 || list[0].ID != "kept" || !list[0].Started.Equal(started) {
		t.Fatalf("running %+v, %v; want the one that ran", list, err)
	}
	again, err := b.s.Follow(t.Context(), agent.FollowRequest{ID: "kept"})
	if err != nil {
		t.Fatal(explain(err))
	}
	defer again.Close()
	if err := again.Stdin(t.Context(), 0, []byte("it\n")); err != nil {
		t.Fatal(explain(err))
	}
	r := drain(t, again)
	if r.wantCode(t, 0); r.out.String() != "got it\n" {
		t.Errorf("output %q", r.out.String())
	}
}

func commandsSuspended(t *testing.T, x *suite) {
	if !x.has(sandbox.SuspendDisk) {
		t.Skip("the provider always keeps memory")
	}
	b := x.nap(t)
	st := b.start(t, sandbox.Command{Shell: "trap 'echo bye > last; exit 0' TERM; echo up; sleep 60 & wait"})
	if e, err := st.Recv(t.Context()); err != nil || string(e.Data) != "up\n" {
		t.Fatalf("first output: %q, %v", e.Data, err)
	}
	ended := make(chan result, 1)
	go func() { ended <- follow(st) }()
	if err := b.s.Suspend(t.Context()); err != nil {
		t.Fatal(explain(err))
	}
	if err := x.Provider.Suspend(t.Context(), b.h, sandbox.SuspendDisk); err != nil {
		t.Fatal(explain(err))
	}
	r := <-ended
	r.wantReason(t, sandbox.Suspended)
	if o, err := x.Provider.Inspect(t.Context(), b.h); err != nil || o.State != sandbox.Stopped {
		t.Errorf("inspect: %s, %v; want stopped", o.State, err)
	}
	boot := b.s.Hello().Boot
	b.attach(t)
	if b.s.Hello().Boot == boot {
		t.Error("the same boot after a suspend without memory")
	}
	if got := b.output(t, "cat last"); got != "bye" {
		t.Errorf("what the command wrote at SIGTERM: %q, want bye", got)
	}
}

// slowWake gives a command less time than its sandbox takes to wake on most
// engines, and lets it end by itself.
func slowWake(t *testing.T, x *suite) {
	b := x.nap(t)
	if err := x.Provider.Suspend(t.Context(), b.h, x.modes()[len(x.modes())-1]); err != nil {
		t.Fatal(explain(err))
	}
	time.Sleep(lasting(300*time.Millisecond, 5*time.Second))
	b.attach(t) // wakes
	st := b.start(t, sandbox.Command{Shell: "sleep 0.1; kill -9 $$; sleep 60", Timeout: 4000})
	if r := drain(t, st); r.end.Reason != sandbox.Signaled || r.end.Signal != 9 {
		t.Errorf("end %s, want signal 9", show(r.end))
	}
}

// follow drains a stream without judging how it breaks.
func follow(st *agent.Stream) result {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var r result
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			return r
		}
		switch e.Kind {
		case agent.EventOutput:
			r.take(e)
			_ = st.Ack(ctx, e.Offset+int64(len(e.Data))) // a break shows at Recv
		case agent.EventEnd:
			r.end = *e.End
			_ = st.AckEnd(ctx, e.Offset)
			return r
		}
	}
}

func repeated(t *testing.T, x *suite) {
	h := x.nap(t).h
	p := x.Provider
	for _, mode := range append(x.modes(), x.modes()...) {
		for range 2 {
			if err := p.Suspend(t.Context(), h, mode); err != nil {
				t.Fatalf("suspend with %s: %v", mode, explain(err))
			}
		}
		for range 2 {
			if err := p.Resume(t.Context(), h); err != nil {
				t.Fatalf("resume: %v", explain(err))
			}
		}
	}
	if x.has(sandbox.SuspendMemory) && x.has(sandbox.SuspendDisk) { // stopped is suspended further than paused
		for _, mode := range []sandbox.SuspendMode{sandbox.SuspendMemory, sandbox.SuspendDisk, sandbox.SuspendMemory} {
			if err := p.Suspend(t.Context(), h, mode); err != nil {
				t.Fatalf("suspend with %s: %v", mode, explain(err))
			}
		}
		if o, err := p.Inspect(t.Context(), h); err != nil || o.State != sandbox.Stopped {
			t.Errorf("inspect: %s, %v; want stopped", o.State, err)
		}
	}
}

func wakesOnce(t *testing.T, x *suite) {
	for _, mode := range x.modes() {
		b := x.nap(t)
		_ = b.s.Close()
		if err := x.Provider.Suspend(t.Context(), b.h, mode); err != nil {
			t.Fatal(explain(err))
		}
		_, err := x.Provider.Attach(t.Context(), b.h, false)
		if e := wantError(t, err, sandbox.Unavailable); e.Reason != "suspended" {
			t.Errorf("reason %q, want suspended", e.Reason)
		}
		boots := make(chan string, 4)
		var wg sync.WaitGroup
		for range cap(boots) {
			wg.Go(func() {
				stream, err := x.Provider.Attach(t.Context(), b.h, true)
				if err != nil {
					t.Errorf("attach: %v", explain(err))
					return
				}
				s, err := agent.Connect(t.Context(), stream, agent.ClientConfig{HelloTimeout: limit})
				if err != nil {
					t.Errorf("connect: %v", explain(err))
					return
				}
				defer s.Close()
				boots <- s.Hello().Boot
			})
		}
		wg.Wait()
		close(boots)
		first := <-boots
		for boot := range boots {
			if boot != first {
				t.Errorf("two boots, %s and %s: the sandbox was started twice", first, boot)
			}
		}
	}
}

func resets(t *testing.T, x *suite) {
	b := x.nap(t)
	b.output(t, "echo kept > file; rm -f twice")
	st := b.start(t, sandbox.Command{Shell: "sleep 60"})
	boot := b.s.Hello().Boot
	if err := x.Provider.Reset(t.Context(), b.h); err != nil {
		t.Fatal(explain(err))
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if e, err := st.Recv(ctx); err == nil && e.Kind == agent.EventEnd && e.End.Code != nil {
		t.Errorf("the reset made up an exit code: %s", show(*e.End))
	}
	b.attach(t)
	if b.s.Hello().Boot == boot {
		t.Error("the same boot after a reset")
	}
	_, err := b.s.Start(ctx, agent.StartRequest{Boot: boot, Command: command(sandbox.Command{Shell: "touch twice"})})
	if e := wantError(t, err, sandbox.Restarted); e.Boot != b.s.Hello().Boot {
		t.Errorf("boot %q in the answer, want %q", e.Boot, b.s.Hello().Boot)
	}
	if list, err := b.s.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("commands after a reset: %v, %v", list, err)
	}
	if got := b.output(t, "cat file; [ ! -e twice ] || echo twice"); got != "kept" {
		t.Errorf("files after a reset: %q", got)
	}
}

func destroyed(t *testing.T, x *suite) {
	p := x.Provider
	h := x.create(t, x.spec("destroyed"))
	for range 2 {
		if err := p.Destroy(t.Context(), h); err != nil {
			t.Fatal(explain(err))
		}
	}
	if o, err := p.Inspect(t.Context(), h); err != nil || o.State != sandbox.Absent {
		t.Errorf("inspect: %s, %v; want absent", o.State, err)
	}
	_, err := p.Attach(t.Context(), h, true)
	wantError(t, err, sandbox.Gone)
	wantError(t, p.Resume(t.Context(), h), sandbox.Gone)
	wantError(t, p.Reset(t.Context(), h), sandbox.Gone)
	for _, mode := range x.modes() {
		wantError(t, p.Suspend(t.Context(), h, mode), sandbox.Gone)
	}
}

func destroySuspended(t *testing.T, x *suite) {
	for _, mode := range x.modes() {
		h := x.create(t, x.spec("asleep"))
		if err := x.Provider.Suspend(t.Context(), h, mode); err != nil {
			t.Fatal(explain(err))
		}
		begun := time.Now()
		if err := x.Provider.Destroy(t.Context(), h); err != nil {
			t.Fatal(explain(err))
		}
		if took := time.Since(begun); took > 8*time.Second {
			t.Errorf("the destroy of a sandbox suspended with %s took %s", mode, took)
		}
	}
}

func destroyWhileStreaming(t *testing.T, x *suite) {
	b := x.fresh(t)
	st := b.start(t, sandbox.Command{Shell: "while :; do echo line; done"})
	if _, err := st.Recv(t.Context()); err != nil {
		t.Fatal(explain(err))
	}
	ended := make(chan result, 1)
	go func() { ended <- follow(st) }()
	if err := x.Provider.Destroy(t.Context(), b.h); err != nil {
		t.Fatal(explain(err))
	}
	select {
	case r := <-ended:
		if r.end.Code != nil {
			t.Errorf("the destroy made up an exit code: %s", show(r.end))
		}
	case <-time.After(limit):
		t.Fatal("the stream of a destroyed sandbox hangs")
	}
}

func destroyByName(t *testing.T, x *suite) {
	p := x.Provider
	one, two, other := x.create(t, x.spec("share")), x.create(t, x.spec("share")), x.box(t).h // its name begins with theirs
	for range 2 {                                                                             // missing is success
		if err := p.DestroyByName(t.Context(), one.Tenant, one.Name); err != nil {
			t.Fatal(explain(err))
		}
	}
	for h, want := range map[string]sandbox.RunState{one.Generation: sandbox.Absent, two.Generation: sandbox.Absent, other.Generation: sandbox.Running} {
		for _, o := range []sandbox.Handle{one, two, other} {
			if o.Generation != h {
				continue
			}
			if got, err := p.Inspect(t.Context(), o); err != nil || got.State != want {
				t.Errorf("%s: %s, %v; want %s", o.Name, got.State, err, want)
			}
		}
	}
}

func oldGeneration(t *testing.T, x *suite) {
	p := x.Provider
	old := x.create(t, x.spec("again"))
	if err := p.Destroy(t.Context(), old); err != nil {
		t.Fatal(explain(err))
	}
	now := x.create(t, x.spec("again"))
	_, err := p.Attach(t.Context(), old, true)
	wantError(t, err, sandbox.Gone)
	if err := p.Destroy(t.Context(), old); err != nil {
		t.Fatal(explain(err))
	}
	if o, err := p.Inspect(t.Context(), now); err != nil || o.State != sandbox.Running {
		t.Errorf("after a late destroy of the old generation the new one is %s, %v", o.State, err)
	}
}

func lists(t *testing.T, x *suite) {
	b := x.box(t)
	spec, h := b.spec, b.h
	list, err := x.Provider.List(t.Context())
	if err != nil {
		t.Fatal(explain(err))
	}
	i := slices.IndexFunc(list, func(o sandbox.Object) bool { return o.Generation == spec.Generation })
	if i < 0 {
		t.Fatalf("%s is not in the list", h.Name)
	}
	o := list[i]
	if o.Provider != h.Provider || o.Engine != h.Engine || o.Tenant != h.Tenant || o.Name != h.Name || o.Ref != h.Ref ||
		o.State != sandbox.Running || !o.Complete || o.Bucket != spec.Bucket || time.Since(o.Created) > time.Hour {
		t.Errorf("listed as %+v, want %+v", o, h)
	}
}

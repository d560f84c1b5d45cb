package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"shoal/sandbox"
)

// LC-02: the version is what both ends speak.
func TestVersionIsNegotiated(t *testing.T) {
	for theirs, want := range map[string]string{"1.41": "/v1.41/", "1.43": "/v1.43/", "1.44": "/v1.44/", "1.51": "/v1.44/", "2.0": "/v1.44/"} {
		f := newFakeEngine(t)
		f.version = theirs
		if _, err := f.provider(t).Inspect(t.Context(), handle); err != nil {
			t.Errorf("engine of %s: %v", theirs, err)
		}
		if calls := f.did(); len(calls) != 2 || !strings.HasPrefix(calls[1], "GET "+want) {
			t.Errorf("engine of %s: calls %v, want %s", theirs, calls, want)
		}
	}
	for _, theirs := range []string{"1.40", "1.9", "", "x", "1", "-1.41"} {
		f := newFakeEngine(t)
		f.version = theirs
		_, err := f.provider(t).Inspect(t.Context(), handle)
		if sandbox.CodeOf(err) != sandbox.Engine || !strings.Contains(err.Error(), "1.41") {
			t.Errorf("engine of %q: %v, want a word about the version", theirs, err)
		}
	}
}

func TestVersionIsAskedAgainWhenTheEngineWasReplaced(t *testing.T) {
	f := newFakeEngine(t)
	f.version = "1.43"
	p := f.provider(t)
	if _, err := p.Inspect(t.Context(), handle); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.version = "1.41"
	f.mu.Unlock()
	f.on("GET /containers/"+object+"/json", says(http.StatusBadRequest, "client version 1.43 is too new. Maximum supported API version is 1.41"))
	_, err := p.Inspect(t.Context(), handle)
	if sandbox.CodeOf(err) != sandbox.Engine || !strings.Contains(err.Error(), "again") {
		t.Errorf("the first call after the change: %v", err)
	}
	f.on("GET /containers/"+object+"/json", nil)
	if _, err := p.Inspect(t.Context(), handle); err != nil {
		t.Errorf("the second: %v", err)
	}
	if calls := f.did(); !strings.HasPrefix(calls[len(calls)-1], "GET /v1.41/") {
		t.Errorf("calls %v", calls)
	}
}

// The first failures come in plain words.
func TestUnreachableEngines(t *testing.T) {
	dir := t.TempDir()
	forbidden := filepath.Join(dir, "forbidden.sock")
	l, err := net.Listen("unix", forbidden)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dead := filepath.Join(dir, "dead.sock")
	if err := os.WriteFile(dead, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ endpoint, words string }{
		"no socket":        {"unix://" + filepath.Join(dir, "none.sock"), "start it"},
		"nobody listens":   {"unix://" + dead, "start it"},
		"nobody on a port": {"tcp://127.0.0.1:1", "start it"},
	} {
		p, err := New(Config{Endpoint: c.endpoint})
		if err != nil {
			t.Fatal(err)
		}
		err = p.Check(t.Context())
		if sandbox.CodeOf(err) != sandbox.Engine || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v, want engine with %q and without the path", what, err, c.words)
		}
		p.Close()
	}
	denied := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)} // root may do everything
	if err := translate("x", denied); !strings.Contains(err.Error(), "group") {
		t.Errorf("no permission: %v, want the remedy", err)
	}
}

func TestEngineThatDoesNotAnswer(t *testing.T) {
	f := newFakeEngine(t)
	release := make(chan struct{})
	defer close(release)
	p := f.provider(t)
	if _, err := p.Inspect(t.Context(), handle); err != nil {
		t.Fatal(err)
	}
	f.on("GET /containers/"+object+"/json", func(http.ResponseWriter, *fakeEngine) { <-release })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := p.Inspect(ctx, handle)
	if sandbox.CodeOf(err) != sandbox.Timeout {
		t.Errorf("the caller's deadline: %v, want timeout", err)
	}
	err = p.engine.call(t.Context(), 50*time.Millisecond, request{method: http.MethodGet, path: "/containers/" + object + "/json"}, nil)
	if !errors.Is(err, errNoAnswer) || sandbox.CodeOf(translate("look", err)) != sandbox.Engine {
		t.Errorf("the call's own deadline: %v, want engine", err)
	}
}

// Absent is said only when the engine itself denies the container.
func TestAbsentNeedsTheEnginesWord(t *testing.T) {
	f := newFakeEngine(t)
	p := f.provider(t)
	call := "GET /containers/" + object + "/json"
	f.on(call, says(http.StatusNotFound, "No such container: "+object))
	if o, err := p.Inspect(t.Context(), handle); err != nil || o.State != sandbox.Absent {
		t.Errorf("the engine's denial: %s, %v; want absent", o.State, err)
	}
	for what, answer := range map[string]func(http.ResponseWriter, *fakeEngine){
		"a proxy's 404": says(http.StatusNotFound, "page not found"),
		"an empty 404":  func(w http.ResponseWriter, _ *fakeEngine) { w.WriteHeader(http.StatusNotFound) },
		"an error":      says(http.StatusInternalServerError, "No such container: "+object),
		"not JSON":      func(w http.ResponseWriter, _ *fakeEngine) { _, _ = w.Write([]byte("<html>")) },
		"another fleet": func(w http.ResponseWriter, _ *fakeEngine) {
			_, _ = w.Write([]byte(`{"Id":"a","Name":"/` + object + `"}`))
		},
		"a cut answer": func(w http.ResponseWriter, _ *fakeEngine) { _, _ = w.Write([]byte(`{"Id":`)) },
		"a redirect off": func(w http.ResponseWriter, _ *fakeEngine) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusFound)
		},
	} {
		f.on(call, answer)
		if o, err := p.Inspect(t.Context(), handle); sandbox.CodeOf(err) != sandbox.Engine {
			t.Errorf("%s: %s, %v; want engine", what, o.State, err)
		}
		if err := p.Resume(t.Context(), handle); what != "another fleet" && sandbox.CodeOf(err) != sandbox.Engine {
			t.Errorf("resume after %s: %v, want engine, not gone", what, err)
		}
	}
}

// LC-04: a pause that fails half-way leaves a sandbox that runs or is paused,
// never one that says running and stands still.
func TestPauseThatFails(t *testing.T) {
	pause, unpause := "POST /containers/"+object+"/pause", "POST /v1.41/containers/"+object+"/unpause"
	f := newFakeEngine(t)
	p := f.provider(t)
	f.on(pause, func(w http.ResponseWriter, f *fakeEngine) {
		f.state = "paused"
		says(http.StatusInternalServerError, "cannot pause")(w, f)
	})
	if err := p.Suspend(t.Context(), handle, sandbox.SuspendMemory); err != nil || slices.Contains(f.did(), unpause) {
		t.Errorf("paused after all: %v, calls %v", err, f.did())
	}
	f.set("running")
	f.on(pause, says(http.StatusInternalServerError, "cannot pause"))
	err := p.Suspend(t.Context(), handle, sandbox.SuspendMemory)
	if sandbox.CodeOf(err) != sandbox.Engine || !slices.Contains(f.did(), unpause) {
		t.Errorf("still running: %v, calls %v; want an error after an unpause", err, f.did())
	}
}

func TestLateEventOfAPause(t *testing.T) {
	f := newFakeEngine(t)
	p := f.provider(t)
	f.set("paused")
	f.on("POST /containers/"+object+"/unpause", func(w http.ResponseWriter, f *fakeEngine) {
		f.state = "running" // the event of the unpause comes now
		says(http.StatusInternalServerError, "Container abc is not paused")(w, f)
	})
	if err := p.Resume(t.Context(), handle); err != nil {
		t.Errorf("resume: %v", err)
	}
}

func TestResetWhoseAnswerIsLost(t *testing.T) {
	f := newFakeEngine(t)
	p := f.provider(t)
	started := "2026-01-01T00:00:00Z"
	f.on("GET /containers/"+object+"/json", func(w http.ResponseWriter, _ *fakeEngine) {
		_, _ = w.Write([]byte(`{"State":{"Status":"running","StartedAt":"` + started + `"}}`))
	})
	f.on("POST /containers/"+object+"/restart", func(w http.ResponseWriter, _ *fakeEngine) {
		started = "2026-01-01T00:00:05Z"
		w.WriteHeader(http.StatusBadGateway)
	})
	if err := p.Reset(t.Context(), handle); err != nil {
		t.Errorf("it did happen: %v", err)
	}
	f.on("POST /containers/"+object+"/restart", says(http.StatusInternalServerError, "cannot restart"))
	if err := p.Reset(t.Context(), handle); sandbox.CodeOf(err) != sandbox.Engine {
		t.Errorf("it did not happen: %v, want engine", err)
	}
}

func TestRemovalInProgressIsWaitedFor(t *testing.T) {
	f := newFakeEngine(t)
	p := f.provider(t)
	removals := 0
	f.on("DELETE /containers/"+object, func(w http.ResponseWriter, f *fakeEngine) {
		if removals++; removals == 7 {
			f.answers["GET /containers/"+object+"/json"] = says(http.StatusNotFound, "No such container: x")
		}
		says(http.StatusConflict, "removal of container abc is already in progress")(w, f)
	})
	if err := p.Destroy(t.Context(), handle); err != nil || removals != 7 {
		t.Errorf("destroy: %v after %d removals, want success after 7", err, removals)
	}
	calls := f.did()
	if !slices.Contains(calls, "DELETE /v1.41/volumes/"+object+"-workspace") || !slices.Contains(calls, "DELETE /v1.41/volumes/"+object+"-skills") {
		t.Errorf("the volumes were not removed: %v", calls)
	}
	f.on("DELETE /volumes/"+object+"-skills", says(http.StatusInternalServerError, "disk trouble at /var/lib/docker"))
	err := p.Destroy(t.Context(), handle)
	if sandbox.CodeOf(err) != sandbox.Engine || strings.Contains(err.Error(), "/var/lib") {
		t.Errorf("a volume that stays: %v, want engine without the host's path", err)
	}
}

func TestRefusalsInPlainWords(t *testing.T) {
	for message, words := range map[string]string{
		"unknown or invalid runtime name: runsc":                     "--runtime",
		"write /var/lib/docker/x: no space left on device":           "disk is full",
		`error looking up volume plugin quota: plugin "q" not found`: "--volume-driver",
		"something else at /var/run/x":                               "status 500",
	} {
		err := translate("do it", &engineError{op: "POST /x", status: 500, message: message})
		if sandbox.CodeOf(err) != sandbox.Engine || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "/var/") {
			t.Errorf("%s: %v, want %q and no path", message, err, words)
		}
		if !strings.Contains(errors.Unwrap(err).Error(), message) {
			t.Errorf("%s: the cause is lost", message)
		}
	}
}

// LC-11: where the answer to a create is lost the container may come later, so
// the clean-up looks more than once.
func TestCreateWhoseAnswerIsLost(t *testing.T) {
	f := newFakeEngine(t)
	p := f.provider(t)
	f.on("GET /images/shoal-sandbox:dev/json", func(w http.ResponseWriter, _ *fakeEngine) {
		_, _ = w.Write([]byte(`{"Config":{"Labels":{"shoal.agent":"1"}}}`))
	})
	f.on("GET /volumes/shoal-engine", func(w http.ResponseWriter, _ *fakeEngine) {
		_, _ = w.Write([]byte(`{"Labels":{"shoal.role":"engine","shoal.engine":"e"}}`))
	})
	f.on("GET /containers/"+object+"/json", says(http.StatusNotFound, "No such container: x"))
	f.on("POST /containers/create", func(_ http.ResponseWriter, f *fakeEngine) {
		late := time.AfterFunc(1500*time.Millisecond, func() { f.on("GET /containers/"+object+"/json", nil) }) // it appears after all
		t.Cleanup(func() { late.Stop() })
		f.answers["DELETE /containers/"+object] = func(w http.ResponseWriter, f *fakeEngine) {
			f.answers["GET /containers/"+object+"/json"] = says(http.StatusNotFound, "No such container: x")
			w.WriteHeader(http.StatusNoContent)
		}
		panic(http.ErrAbortHandler)
	})
	_, err := p.Create(t.Context(), sandbox.Spec{
		Tenant: "t", Name: "n", Generation: "g", Limits: sandbox.DefaultLimits(), Egress: sandbox.Egress{Mode: sandbox.EgressNone},
	}, nil)
	if sandbox.CodeOf(err) != sandbox.Engine {
		t.Errorf("create: %v, want engine", err)
	}
	if !slices.Contains(f.did(), "DELETE /v1.41/containers/"+object) {
		t.Errorf("the late container was not removed: %v", f.did())
	}
}

func TestCreateWhoseCallerLeavesAtTheEnd(t *testing.T) {
	f := newFakeEngine(t)
	p := f.provider(t)
	ctx, cancel := context.WithCancel(t.Context())
	f.on("GET /images/shoal-sandbox:dev/json", func(w http.ResponseWriter, _ *fakeEngine) {
		_, _ = w.Write([]byte(`{"Config":{"Labels":{"shoal.agent":"1"}}}`))
	})
	f.on("GET /volumes/shoal-engine", func(w http.ResponseWriter, _ *fakeEngine) {
		_, _ = w.Write([]byte(`{"Labels":{"shoal.role":"engine","shoal.engine":"e"}}`))
	})
	f.on("POST /containers/create", func(w http.ResponseWriter, _ *fakeEngine) { _, _ = w.Write([]byte(`{"Id":"abc"}`)) })
	f.on("POST /containers/"+object+"/start", func(w http.ResponseWriter, _ *fakeEngine) {
		cancel()
		w.WriteHeader(http.StatusNoContent)
	})
	_, err := p.Create(ctx, sandbox.Spec{
		Tenant: "t", Name: "n", Generation: "g", Limits: sandbox.DefaultLimits(), Egress: sandbox.Egress{Mode: sandbox.EgressNone},
	}, nil)
	if sandbox.CodeOf(err) != sandbox.Canceled {
		t.Errorf("create: %v, want canceled", err)
	}
	if calls := f.did(); !strings.HasPrefix(calls[len(calls)-1], "DELETE /v1.41/volumes/") {
		t.Errorf("nothing was cleaned up: %v", calls)
	}
}

// What ends while the engine enters it is refused by whatever the engine stumbles
// over then; the caller may try again.
func TestAttachThatTheEngineFailsAt(t *testing.T) {
	for call, words := range map[string]string{
		"POST /containers/" + object + "/exec": "Container abc is in a strange state",
		"POST /exec/e1/start":                  "OCI runtime exec failed: exec failed: cannot exec in a stopped container: unknown",
	} {
		f := newFakeEngine(t)
		p := f.provider(t)
		f.on("POST /containers/"+object+"/exec", func(w http.ResponseWriter, _ *fakeEngine) {
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"Id":"e1"}`)
		})
		f.on(call, says(http.StatusInternalServerError, words))
		_, err := p.Attach(t.Context(), handle, true)
		if e := sandbox.AsError(err); e == nil || e.Code != sandbox.Engine || e.Reason != "attach" {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestSandboxThatStopsAfterEachStart(t *testing.T) {
	f := newFakeEngine(t)
	p := f.provider(t)
	f.set("exited")
	f.on("POST /containers/"+object+"/exec", says(http.StatusConflict, "Container abc is not running"))
	_, err := p.Attach(t.Context(), handle, true)
	if sandbox.CodeOf(err) != sandbox.StartFailed || !strings.Contains(err.Error(), "look at its image") {
		t.Errorf("attach: %v, want start_failed with the advice", err)
	}
	starts := 0
	for _, call := range f.did() {
		if call == "POST /v1.41/containers/"+object+"/start" {
			starts++
		}
	}
	if starts != attachTries {
		t.Errorf("%d starts, want %d", starts, attachTries)
	}
}

package fleet_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/kv"
	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

// A create whose answer was lost is sent again with its request id, and any
// worker may get the copy, also when the one that made the sandbox has ended:
// there is one sandbox, and both are told of it.
func TestLostCreateAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, nil)
	_, stop := r.worker()
	nc := messagingtest.Conn(t, r.srv)
	ask := func(worker messaging.WorkerID, id string) (generation, code string) {
		t.Helper()
		return askCreate(t, nc, worker, id, `{"name":"lost"}`)
	}
	first, code := ask(r.sees(1)[0].ID, "req-1")
	if first == "" {
		t.Fatal(code)
	}
	r.worker()
	r.worker()
	for _, n := range []int{3, 2} {
		for _, w := range r.sees(n) {
			if again, code := ask(w.ID, "req-1"); again != first {
				t.Errorf("the copy was answered with %q %s, want %q", again, code, first)
			}
			if other, code := ask(w.ID, sandbox.NewID()); code != "exists" {
				t.Errorf("another request was answered with %q %s", other, code)
			}
		}
		if n == 3 {
			stop() // and with it what it remembers of its answers
		}
	}
	before := r.sees(2)
	r.worker() // one that remembers no answer
	fresh := slices.DeleteFunc(r.sees(3), func(w messaging.WorkerInfo) bool {
		return slices.ContainsFunc(before, func(b messaging.WorkerInfo) bool { return b.ID == w.ID })
	})
	r.orphanAs(r.records(), "lost", kv.Creating) // its creator died half-way
	again, code := ask(fresh[0].ID, "req-1")
	for deadline := time.Now().Add(30 * time.Second); code == "busy" && time.Now().Before(deadline); { // the sweep removes it, too
		time.Sleep(200 * time.Millisecond)
		again, code = ask(fresh[0].ID, "req-1")
	}
	if again == first || again == "" {
		t.Errorf("the copy of a create that was never finished was answered with %q %s", again, code)
	}
	if objects, err := r.engine.List(t.Context()); err != nil || len(objects) != 1 {
		t.Fatalf("%d sandboxes in the engine, %v", len(objects), err)
	}
}

// A create that failed for good is not done by a copy of its request that comes
// late, to a worker that knows nothing of it: nobody waits for the sandbox.
func TestLateCopyOfFailedCreate(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, nil)
	nc := messagingtest.Conn(t, r.srv)
	marker := filepath.Join(t.TempDir(), "second")
	body := `{"name":"late","setup":[{"shell":"test -e ` + marker + `"}]}`
	workers := r.sees(2)
	if _, code := askCreate(t, nc, workers[0].ID, "req-1", body); code != "start_failed" {
		t.Fatalf("the create was answered with %q", code)
	}
	if err := os.WriteFile(marker, nil, 0o600); err != nil { // it would succeed now
		t.Fatal(err)
	}
	if generation, code := askCreate(t, nc, workers[1].ID, "req-1", body); code != "gone" {
		t.Errorf("the late copy was answered with %q %s", generation, code)
	}
	if objects, err := r.engine.List(t.Context()); err != nil || len(objects) != 0 {
		t.Errorf("%d sandboxes in the engine, %v", len(objects), err)
	}
	if generation, code := askCreate(t, nc, workers[1].ID, "req-2", body); generation == "" {
		t.Errorf("another request was answered with %s", code)
	}
}

// sees waits until the fleet has n workers and lists them.
func (r *rig) sees(n int) (workers []messaging.WorkerInfo) {
	r.t.Helper()
	soon(r.t, 30*time.Second, fmt.Sprintf("%d workers show themselves", n), func() bool {
		var err error
		workers, err = r.client.Workers(r.t.Context())
		return err == nil && len(workers) == n
	})
	return workers
}

// askCreate sends one copy of a create to one worker.
func askCreate(t *testing.T, nc *nats.Conn, worker messaging.WorkerID, id, body string) (generation, code string) {
	t.Helper()
	m := nats.NewMsg(messaging.WorkerSubject("main", worker, messaging.OpCreate))
	m.Header.Set(messaging.HeaderContent, "application/json")
	m.Header.Set(messaging.HeaderRequest, id)
	m.Data = []byte(body)
	for {
		got, err := nc.RequestMsg(m, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got.Header.Get(messaging.HeaderWord) != "" {
			continue // that it was accepted
		}
		var info messaging.SandboxInfo
		a := messaging.Answer{Result: &info}
		if err := json.Unmarshal(got.Data, &a); err != nil {
			t.Fatal(err)
		}
		if a.Error != nil {
			return "", string(a.Error.Code)
		}
		return info.Generation, ""
	}
}

package fleet_test

import (
	"encoding/json"
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
		m := nats.NewMsg(messaging.WorkerSubject("main", worker, messaging.OpCreate))
		m.Header.Set(messaging.HeaderContent, "application/json")
		m.Header.Set(messaging.HeaderRequest, id)
		m.Data = []byte(`{"name":"lost"}`)
		for {
			got, err := nc.RequestMsg(m, 30*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if got.Header.Get(messaging.HeaderWord) != "" {
				continue // that it was accepted
			}
			var a messaging.Answer
			info := messaging.SandboxInfo{}
			a.Result = &info
			if err := json.Unmarshal(got.Data, &a); err != nil {
				t.Fatal(err)
			}
			if a.Error != nil {
				return "", string(a.Error.Code)
			}
			return info.Generation, ""
		}
	}
	workers := func(n int) []messaging.WorkerInfo {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			list, err := r.client.Workers(t.Context())
			if err == nil && len(list) == n {
				return list
			}
			if time.Now().After(deadline) {
				t.Fatalf("workers: %v, %v; want %d", list, err, n)
			}
		}
	}
	first, code := ask(workers(1)[0].ID, "req-1")
	if first == "" {
		t.Fatal(code)
	}
	r.worker()
	r.worker()
	for _, n := range []int{3, 2} {
		for _, w := range workers(n) {
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
	before := workers(2)
	r.worker() // one that remembers no answer
	fresh := slices.DeleteFunc(workers(3), func(w messaging.WorkerInfo) bool {
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

package fleet_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/messaging"
	"shoal/messaging/messagingtest"
)

// A create whose answer was lost is sent again with its request id, and any
// worker may get the copy: there is one sandbox, and both are told of it.
func TestLostCreateAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, nil)
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
	workers, err := r.client.Workers(t.Context())
	if err != nil || len(workers) != 3 {
		t.Fatalf("workers: %v, %v", workers, err)
	}
	first, code := ask(workers[0].ID, "req-1")
	if first == "" {
		t.Fatal(code)
	}
	for _, w := range workers {
		if again, code := ask(w.ID, "req-1"); again != first {
			t.Errorf("the copy was answered with %q %s, want %q", again, code, first)
		}
		if other, code := ask(w.ID, "req-2"); code != "exists" {
			t.Errorf("another request was answered with %q %s", other, code)
		}
	}
	if objects, err := r.engine.List(t.Context()); err != nil || len(objects) != 1 {
		t.Fatalf("%d sandboxes in the engine, %v", len(objects), err)
	}
}

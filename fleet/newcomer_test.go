package fleet_test

import (
	"errors"
	"testing"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// The first requests of a worker wait until it has looked at its engine. When
// that fails they are told so, and do not wait for the next look.
func TestFirstRequestsWaitForTheLook(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"engine answers late": nil, "engine is down": errors.New("down")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0, nil)
			looked := make(chan struct{})
			r.fake().SetHook(func(op string, _ sandbox.Handle) error {
				if op == "List" {
					<-looked
					return failure
				}
				return nil
			})
			time.AfterFunc(time.Second, func() { close(looked) })
			w, _ := r.newcomer()
			if w.Sound() {
				t.Fatal("the worker has looked already")
			}
			_, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "early"})
			if failure == nil && err != nil {
				t.Errorf("create: %v", err)
			}
			if failure != nil && sandbox.AsError(err).Reason != "engine_down" {
				t.Errorf("create while the engine is down: %v", err)
			}
		})
	}
}

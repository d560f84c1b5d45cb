package fleet_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// LC-19: every worker is replaced in turn under load (2 → 3 → 2); no command
// and no request fails.
func TestRollingRestartFailsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, nil)
	_, stopA := r.worker()
	_, stopB := r.worker()
	var boxes []messaging.Target
	for i := range 3 {
		boxes = append(boxes, r.create(sandbox.Name(fmt.Sprintf("s%d", i))))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ran atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		c := r.kernel("main")
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				want := fmt.Sprintf("%d-%d\n", i, n)
				res, err := c.Run(t.Context(), boxes[n%len(boxes)], sandbox.Command{Shell: "echo " + want}, messaging.RunOptions{})
				if err != nil || string(res.Stdout) != want {
					t.Errorf("command %s: %+v, %v", want, res, err)
					return
				}
				ran.Add(1)
			}
		})
	}
	began := time.Now()
	for _, stop := range []func(){stopA, stopB} {
		r.worker()
		time.Sleep(300 * time.Millisecond)
		stop()
	}
	time.Sleep(300 * time.Millisecond)
	cancel()
	wg.Wait()
	t.Logf("%d commands, %.0f a second", ran.Load(), float64(ran.Load())/time.Since(began).Seconds())
}

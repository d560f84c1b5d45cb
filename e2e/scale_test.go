package e2e_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// load runs commands and other requests until it is stopped.
type load struct {
	wg     sync.WaitGroup
	stop   chan struct{}
	ran    atomic.Int64
	failed atomic.Int64
}

func startLoad(f *fleet, boxes []messaging.Target, kernels int) *load {
	l := &load{stop: make(chan struct{})}
	for i := range kernels {
		c, err := messaging.Connect(f.bus.url, messaging.Options{})
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { _ = c.Close() })
		l.wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-l.stop:
					return
				default:
					l.one(f, c, boxes[n%len(boxes)], fmt.Sprintf("%d-%d", i, n))
				}
			}
		})
	}
	return l
}

func (l *load) one(f *fleet, c *messaging.Client, box messaging.Target, id string) {
	r, err := c.Run(f.t.Context(), box, sandbox.Command{Shell: "echo " + id}, messaging.RunOptions{})
	if err == nil && string(r.Stdout) != id+"\n" {
		err = fmt.Errorf("output %q", r.Stdout)
	}
	if err == nil {
		_, err = c.Get(f.t.Context(), box)
	}
	if err != nil {
		l.failed.Add(1)
		f.t.Errorf("command %s: %v", id, err)
		return
	}
	l.ran.Add(1)
}

// during measures the load while something happens, for d at least.
func (l *load) during(t *testing.T, what string, d time.Duration, fn func()) {
	t.Helper()
	began, before, failed := time.Now(), l.ran.Load(), l.failed.Load()
	fn()
	time.Sleep(time.Until(began.Add(d)))
	n := l.ran.Load() - before
	t.Logf("%-40s %5d commands, %5.0f a second, %d errors", what, n, float64(n)/time.Since(began).Seconds(), l.failed.Load()-failed)
}

// 2 → 4 → 2 workers under load, by which every worker is replaced: no command
// and no request fails.
func TestScaleAndRollingRestart(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	var boxes []messaging.Target
	for i := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		info, err := f.client.Create(ctx, messaging.CreateRequest{Name: sandbox.Name(fmt.Sprint("s", i)), Limits: sandbox.Limits{MemoryMB: 256, Pids: 256}})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, info.Target())
	}
	l := startLoad(f, boxes, 4)
	l.during(t, "2 workers", 2*time.Second, func() {})
	l.during(t, "2 more join", 2*time.Second, func() {
		f.add()
		f.add()
		f.settle()
	})
	l.during(t, "4 workers", 2*time.Second, func() {})
	for i := range 2 {
		old := f.workers[0]
		f.workers = f.workers[1:]
		l.during(t, fmt.Sprintf("old worker %d drains", i+1), 2*time.Second, func() {
			old.signal(syscall.SIGTERM)
			<-old.done
		})
	}
	l.during(t, "2 new workers", 2*time.Second, func() {})
	close(l.stop)
	l.wg.Wait()
	if l.ran.Load() == 0 {
		t.Error("nothing ran")
	}
	for _, box := range boxes { // while there are workers: the last ones started end first
		if _, err := f.client.Destroy(t.Context(), box); err != nil {
			t.Errorf("destroy: %v", err)
		}
	}
}

// NK-17: two fleets on one engine: the sweep of one leaves the other's alone,
// though its records know nothing of it.
func TestNK17TwoFleetsOnOneEngine(t *testing.T) {
	t.Parallel()
	one := newFleet(t, 1)
	box := one.create(messaging.CreateRequest{})
	one.run(box, "echo mine > f")
	two := newFleet(t, 1)
	other := two.create(messaging.CreateRequest{Name: box.Sandbox}) // by the same name, too
	time.Sleep(5 * time.Second)                                     // sweeps of both, past their grace of 2 s
	if r := one.run(box, "cat f"); string(r.Stdout) != "mine\n" {
		t.Errorf("the first fleet's sandbox: %+v", r)
	}
	if r := two.run(other, "ls"); string(r.Stdout) != "" {
		t.Errorf("the second fleet's sandbox holds %q", r.Stdout)
	}
	for _, f := range []*fleet{one, two} {
		list, err := f.client.List(t.Context(), messaging.ListRequest{})
		if err != nil || len(list.Sandboxes) != 1 {
			t.Errorf("%s: %d sandboxes, %v", f.name, len(list.Sandboxes), err)
		}
	}
}

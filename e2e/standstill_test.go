package e2e_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// A create that waited at a worker that was stopped is not done once its caller has
// given up: nobody would know of the sandbox. Who still waits gets his.
func TestStoppedWorkerDropsWhatWaited(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	f.workers[0].signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	if _, err := f.client.Create(ctx, messaging.CreateRequest{Name: "given-up"}); sandbox.CodeOf(err) != sandbox.Timeout {
		t.Fatalf("create at a stopped worker: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		_, err := f.client.Create(ctx, messaging.CreateRequest{Name: "patient"})
		got <- err
	}()
	time.Sleep(time.Second)
	f.workers[0].signal(syscall.SIGCONT)
	if err := <-got; err != nil {
		t.Fatalf("create by a caller that still waits: %v", err)
	}
	time.Sleep(2 * time.Second)
	if _, err := f.client.Get(t.Context(), messaging.Target{Sandbox: "given-up"}); sandbox.CodeOf(err) != sandbox.NotFound {
		t.Errorf("the sandbox that nobody waits for: %v", err)
	}
}

// A request that a worker has accepted is another's when that worker is stopped:
// its caller need not wait until it goes on.
func TestAcceptedRequestOfStoppedWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	box := f.create(messaging.CreateRequest{})
	first, err := f.client.Lock(t.Context(), box, "job", messaging.LockOptions{Holder: "first"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	granted := make(chan error, 1)
	go func() {
		second, err := f.client.Lock(ctx, box, "job", messaging.LockOptions{Holder: "second", Wait: 30 * time.Second})
		if err == nil {
			err = second.Release(ctx, false)
		}
		granted <- err
	}()
	time.Sleep(time.Second) // accepted, and waiting
	victim, _ := f.owner(box)
	victim.signal(syscall.SIGSTOP)
	defer victim.signal(syscall.SIGCONT)
	if err := first.Release(ctx, false); err != nil {
		t.Fatalf("release: %v", err)
	}
	if err := <-granted; err != nil {
		t.Errorf("the waiter, whose request the stopped worker has accepted: %v", err)
	}
}

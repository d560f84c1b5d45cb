package e2b

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"shoal/e2b/e2btest"
	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

// served starts a worker for provider and returns a client of it. Both end with
// the test.
func served(t *testing.T, provider *Provider, ceiling sandbox.EgressMode) *messaging.Client {
	t.Helper()
	nc := messagingtest.Conn(t, messagingtest.Server(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Create(t.Context(), js, kv.Config{}); err != nil {
		t.Fatal(err)
	}
	store, err := kv.Open(t.Context(), js, kv.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := fleet.New(fleet.Config{Conn: nc, Store: store, Provider: provider, Ceiling: ceiling, DrainFor: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	for deadline := time.Now().Add(time.Minute); !w.Sound(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the worker is not ready")
		}
	}
	client, err := messaging.NewClient(nc, messaging.Options{Tenant: "main"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// TestNativeEgressChangesWhileAsleep: a list that changes while the sandbox is
// paused, when E2B's firewall takes no change, is in force when it has woken.
func TestNativeEgressChangesWhileAsleep(t *testing.T) {
	fake, provider := contained(t, e2btest.Config{}, func(c *Config) { c.Egress, c.DomainAllowlist = EgressNative, true })
	client := served(t, provider, sandbox.EgressAllowlist)
	info, err := client.Create(t.Context(), messaging.CreateRequest{Name: "a", Egress: sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"example.com"}}})
	if err != nil {
		t.Fatal(err)
	}
	box := info.Target()
	inForce := func() string {
		b := fake.Sandboxes()[0]
		return fmt.Sprintf("%s %s %s", b.State, b.AllowOut, b.DenyOut)
	}
	set := func(hosts ...string) {
		t.Helper()
		if _, err := client.SetEgress(t.Context(), box, sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: hosts}); err != nil {
			t.Fatal(err)
		}
	}
	if got := inForce(); got != "running [example.com] [0.0.0.0/0]" {
		t.Errorf("created with %s", got)
	}
	set("example.org")
	if got := inForce(); got != "running [example.org] [0.0.0.0/0]" {
		t.Errorf("changed while running: %s", got)
	}
	for name, sleep := range map[string]func() error{
		"suspended by the worker": func() error {
			_, err := client.Suspend(t.Context(), messaging.SuspendRequest{Target: box, Mode: sandbox.SuspendMemory})
			return err
		},
		"at the end of its time": func() error { fake.Expire(fake.Sandboxes()[0].ID); return nil },
	} {
		set("example.org")
		if err := sleep(); err != nil {
			t.Fatal(err)
		}
		set("example.net")
		if got := inForce(); got != "paused [example.org] [0.0.0.0/0]" {
			t.Errorf("%s: changed while asleep: %s", name, got)
		}
		r, err := client.Run(t.Context(), box, sandbox.Command{Shell: "echo awake"}, messaging.RunOptions{})
		if err != nil || string(r.Stdout) != "awake\n" {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		if got := inForce(); got != "running [example.net] [0.0.0.0/0]" {
			t.Errorf("%s: awake with %s", name, got)
		}
	}
}

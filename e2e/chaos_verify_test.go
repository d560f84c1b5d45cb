package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/docker/dockertest"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// verify looks at what the run has left: effects, records, the engine, and the
// workers themselves.
func (c *chaos) verify() {
	c.settle()
	for _, box := range c.boxes {
		c.effects(box)
	}
	for _, box := range slices.Concat(c.boxes, c.doubtful) {
		ctx, cancel := context.WithTimeout(c.t.Context(), patience)
		_, err := c.client.Destroy(ctx, box)
		cancel()
		if err != nil {
			c.violated("destroy %s: %v", box.Sandbox, err)
		}
	}
	eventually(c.t, time.Minute, "the records are at base", c.recordsAtBase)
	dockertest.NothingLeft(c.t, c.name)
	c.join() // what a worker is made of that has done nothing
	c.settle()
	time.Sleep(time.Second)
	base := c.goroutines(c.workers[len(c.workers)-1])
	for _, p := range c.workers[:len(c.workers)-1] {
		rss := p.rss() / 1024
		if n := c.goroutines(p); n > base+10 || rss > 150 {
			c.violated("a worker has %d goroutines (%d in one that did nothing) and %d MiB after the run", n, base, rss)
		} else {
			c.t.Logf("a worker at the end: %d goroutines (base %d), %d MiB", n, base, rss)
		}
	}
}

// effects compares what the commands of a sandbox have done with how they ended.
func (c *chaos) effects(box messaging.Target) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	data, err := c.client.Run(ctx, box, sandbox.Command{Shell: "cat effects"}, messaging.RunOptions{})
	if err != nil {
		c.violated("read the effects of %s: %v", box.Sandbox, err)
		return
	}
	times := map[string]int{}
	for line := range strings.Lines(string(data.Stdout)) {
		times[strings.TrimSpace(line)]++
	}
	for id, n := range times {
		if n > 1 {
			c.violated("command %s ran %d times", id, n)
		}
	}
	for id := range c.fine[box.Sandbox] {
		if times[id] == 0 {
			c.violated("command %s ended well and did nothing", id)
		}
	}
	c.t.Logf("%s: %d effects, %d commands known to have ended well", box.Sandbox, len(times), len(c.fine[box.Sandbox]))
}

func (c *chaos) recordsAtBase() error {
	nc, err := nats.Connect(c.bus.url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	store, err := kv.Open(c.t.Context(), js, kv.Config{})
	if err != nil {
		return err
	}
	handles, err := store.Handles.List(c.t.Context(), "")
	if err != nil {
		return err
	}
	for _, e := range handles {
		if e.Value.State != kv.Gone {
			return fmt.Errorf("%s is %s", e.Key, e.Value.State)
		}
	}
	locks, err := store.Locks.List(c.t.Context(), "")
	if err != nil {
		return err
	}
	if len(locks) > 0 {
		return fmt.Errorf("%d locks", len(locks))
	}
	quotas, err := store.Quotas.List(c.t.Context(), "_quota")
	if err != nil {
		return err
	}
	for _, q := range quotas {
		if len(q.Value.Reserved) > 0 {
			return fmt.Errorf("%s reserves %v", q.Key, q.Value.Reserved)
		}
	}
	workers, err := store.Workers.List(c.t.Context(), "")
	if err != nil {
		return err
	}
	if len(workers) != len(c.workers) {
		return fmt.Errorf("%d workers of %d", len(workers), len(c.workers))
	}
	return nil
}

// goroutines ends a worker by SIGQUIT, upon which the runtime shows them all.
func (c *chaos) goroutines(p *process) int {
	before, _ := os.ReadFile(p.log)
	p.signal(syscall.SIGQUIT)
	<-p.done
	after, _ := os.ReadFile(p.log)
	return bytes.Count(after[len(before):], []byte("\ngoroutine "))
}

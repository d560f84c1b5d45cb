package e2e_test

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"shoal/docker/dockertest"
	"shoal/messaging"
	"shoal/sandbox"
)

// deck is what one round of the run does, in a random order: so every kind
// comes, also in a short run.
func (c *chaos) deck() []func() {
	all := []func(){
		c.kill, c.kill, c.stop, c.stopInDestroy, c.restartServer,
		c.cutLink, c.dropReplies, c.dropReplies, c.restartSandbox,
	}
	c.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// hurtAll hurts the fleet until the time is over; what was begun is mended.
func (c *chaos) hurtAll() {
	var deck []func()
	for time.Now().Before(c.until) {
		if len(deck) == 0 {
			deck = c.deck()
		}
		deck[0]()
		deck = deck[1:]
		c.rest(500, 3500)
	}
}

// rest waits for a random time of so many milliseconds.
func (c *chaos) rest(least, most int) {
	time.Sleep(time.Duration(least+c.rng.IntN(most-least)) * time.Millisecond)
}

func (c *chaos) someWorker() *process { return c.workers[c.rng.IntN(len(c.workers))] }

func (c *chaos) kill() {
	c.count("hurt: worker killed with -9")
	victim := c.someWorker()
	victim.kill()
	c.workers = slices.DeleteFunc(c.workers, func(p *process) bool { return p == victim })
	c.join()
}

func (c *chaos) stop() {
	c.count("hurt: worker stopped")
	victim := c.someWorker()
	victim.signal(syscall.SIGSTOP)
	c.rest(1000, 20000)
	victim.signal(syscall.SIGCONT)
}

func (c *chaos) restartServer() {
	c.count("hurt: NATS server restarted")
	c.bus.stop()
	c.bus.start(c.t)
}

func (c *chaos) cutLink() {
	c.count("hurt: link cut")
	k := c.links[c.someWorker()]
	k.set(true, false)
	c.rest(1000, 8000)
	k.set(false, false)
}

func (c *chaos) dropReplies() {
	c.count("hurt: replies dropped")
	k := c.links[c.someWorker()]
	k.set(false, true)
	c.rest(500, 3000)
	k.set(false, false)
}

// restartSandbox restarts the container of a sandbox behind the fleet's back.
func (c *chaos) restartSandbox() {
	box := c.boxes[c.rng.IntN(len(c.boxes))]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cli := dockertest.Client(c.t)
	list, err := cli.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("name", string(box.Sandbox)+"."+box.Generation))})
	if err != nil || len(list) != 1 {
		c.violated("find the container of %s: %d, %v", box.Sandbox, len(list), err)
		return
	}
	if err := cli.ContainerRestart(ctx, list[0].ID, container.StopOptions{Timeout: new(0)}); err != nil {
		c.t.Logf("restart: %v", err)
		return
	}
	c.count("hurt: sandbox restarted")
}

// stopInDestroy stops a worker between two engine calls of a destroy and gives
// the name to a new generation meanwhile: when the worker goes on with what it
// had begun, it must not touch that one.
func (c *chaos) stopInDestroy() {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	name := sandbox.Name("doomed-" + sandbox.NewID()[:8])
	limits := sandbox.Limits{MemoryMB: 128, Pids: 128}
	old, err := c.client.Create(ctx, messaging.CreateRequest{Name: name, Limits: limits})
	if err != nil {
		c.unsure("doomed: create", name, err)
		return
	}
	victim := c.processOf(old.Owner)
	if victim == nil {
		c.violated("no process for the owner %q of %s", old.Owner, name)
		return
	}
	stopped := make(chan struct{})
	c.engines[victim].arm(func() {
		victim.signal(syscall.SIGSTOP)
		close(stopped)
	})
	destroyed := make(chan struct{})
	go func() {
		defer close(destroyed)
		_, _ = c.client.Destroy(ctx, old.Target()) // whatever the client is told, the name is used anew
	}()
	select {
	case <-stopped:
		c.count("hurt: worker stopped in a destroy")
	case <-destroyed:
		if c.engines[victim].arm(nil) {
			c.count("doomed: destroyed by another worker")
		}
	}
	c.successor(ctx, messaging.CreateRequest{Name: name, Limits: limits, Replace: true}, victim)
	<-destroyed
}

// successor makes the next generation while victim is stopped, lets victim go
// on, and looks whether the new one is as it was.
func (c *chaos) successor(ctx context.Context, r messaging.CreateRequest, victim *process) {
	defer victim.signal(syscall.SIGCONT)
	began := time.Now()
	info, err := c.client.Create(ctx, r)
	c.since("doomed: replace", began)
	if err != nil {
		c.unsure("doomed: replace", r.Name, err)
		return
	}
	box := info.Target()
	run := func(shell string) string {
		res, err := c.client.Run(ctx, box, sandbox.Command{Shell: shell}, messaging.RunOptions{})
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(res.Stdout))
	}
	if got := run("echo kept > mark; cat mark"); got != "kept" {
		c.violated("the successor of %s does not work: %s", r.Name, got)
	}
	c.rest(0, 4000)
	victim.signal(syscall.SIGCONT)
	c.rest(1000, 2000)
	if got := run("cat mark"); got != "kept" {
		c.violated("stale generation: the destroy of the former %s touched its successor: %s", r.Name, got)
	} else {
		c.count("doomed: successor untouched")
	}
	if _, err := c.client.Destroy(ctx, box); err != nil {
		c.unsure("doomed: destroy", r.Name, err)
	}
}

// unsure notes an error of what makes or destroys a sandbox. Where the caller gave
// up, only the name says what has become of it; a worker that answered that
// it failed has left nothing.
func (c *chaos) unsure(what string, name sandbox.Name, err error) {
	c.ended(what, string(name), err)
	if sandbox.AsError(err).Origin == sandbox.FromClient {
		c.doubtful = append(c.doubtful, messaging.Target{Sandbox: name})
	}
}

// processOf returns the process of a worker, nil when it is not among them.
func (c *chaos) processOf(id messaging.WorkerID) *process {
	for _, p := range c.workers {
		if strings.Contains(p.output(), `"worker":"`+string(id)+`"`) {
			return p
		}
	}
	return nil
}

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/docker/dockertest"
	"shoal/messaging"
	"shoal/sandbox"
)

const (
	chaosWorkers   = 3
	chaosKernels   = 8
	chaosHolders   = 3 // of the kernels
	chaosSandboxes = 4
)

// chaos is one run: a fleet, its kernels, and what is done to it.
type chaos struct {
	*fleet
	rng   *rand.Rand
	links map[*process]*link
	// engines are the workers' ways to the engine.
	engines map[*process]*engineLink
	boxes   []messaging.Target
	// doubtful are the names that may have a sandbox or not: who asked gave up.
	doubtful []messaging.Target
	until    time.Time

	mu     sync.Mutex                       // guards what follows
	done   map[string]int                   // what was done, and how it ended
	fine   map[sandbox.Name]map[string]bool // commands that ended well
	epochs map[sandbox.Name]uint64          // the highest seen
	took   map[string][]time.Duration       // from the start of a thing to its end
	broken []string                         // guarantees that did not hold
}

func (c *chaos) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[what]++
}

func (c *chaos) violated(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = append(c.broken, fmt.Sprintf(format, args...))
}

func setting(t *testing.T, name string, def int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s=%q is no number", name, s)
	}
	return n
}

// Whatever happens to workers, links, the server and the sandboxes: streams are
// whole or end with an honest error, what a command does it does once, a tag
// has one holder, and nothing stays behind.
func TestChaos(t *testing.T) {
	t.Parallel()
	seed := setting(t, "CHAOS_SEED", int(time.Now().UnixNano()%1e9))
	seconds := setting(t, "CHAOS_SECONDS", 60)
	t.Logf("CHAOS_SEED=%d CHAOS_SECONDS=%d", seed, seconds)
	c := &chaos{
		rng: rand.New(rand.NewPCG(uint64(seed), 1)), links: map[*process]*link{}, engines: map[*process]*engineLink{},
		done: map[string]int{}, fine: map[sandbox.Name]map[string]bool{}, epochs: map[sandbox.Name]uint64{},
		took: map[string][]time.Duration{},
	}
	useBrokenAgent(t)
	c.fleet = newFleet(t, 0)
	for range chaosWorkers {
		c.join()
	}
	c.settle()
	for range chaosSandboxes {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		info, err := c.client.Create(ctx, messaging.CreateRequest{
			Name: sandbox.Name("chaos-" + sandbox.NewID()[:8]), Limits: sandbox.Limits{MemoryMB: 256, Pids: 256},
		})
		cancel()
		if err != nil {
			t.Fatalf("create: %v", err)
		}
		c.boxes = append(c.boxes, messaging.Target{Sandbox: info.Name, Generation: info.Generation})
		c.fine[info.Name] = map[string]bool{}
	}
	c.until = time.Now().Add(time.Duration(seconds) * time.Second)
	var wg sync.WaitGroup
	for i := range chaosKernels {
		wg.Go(func() { c.kernel(i, rand.New(rand.NewPCG(uint64(seed), uint64(i)+2))) })
	}
	c.hurtAll()
	wg.Wait()
	c.verify()
	c.report()
}

// report prints what was done and how it ended, and fails the test for every
// guarantee that did not hold.
func (c *chaos) report() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(c.done)) {
		c.t.Logf("%-40s %d", what, c.done[what])
	}
	for _, what := range slices.Sorted(maps.Keys(c.took)) {
		all := slices.Sorted(slices.Values(c.took[what]))
		c.t.Logf("%-40s median %s, 95 of 100 within %s, longest %s", what+", time",
			all[len(all)/2].Round(time.Millisecond), all[len(all)*95/100].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
	}
	for _, b := range c.broken {
		c.t.Error(b)
	}
	if c.done["stream: whole"] == 0 || c.done["holder: whole"] == 0 {
		c.t.Error("nothing was done")
	}
}

// join starts a worker behind a link of its own.
func (c *chaos) join() {
	k, e := newLink(c.t, strings.TrimPrefix(c.bus.url, "nats://")), newEngineLink(c.t)
	args := []string{
		"--nats-url", k.url(), "--docker-endpoint", e.endpoint, "--fleet", c.name, "--image", dockertest.Image,
		"--sweep-grace", "2s", "--sweep-every", "1s", "--quota-sandboxes", "100",
	}
	p := start(c.t, "worker", nil, args...)
	c.links[p], c.engines[p] = k, e
	c.workers = append(c.workers, p)
}

// kernelLife is how many commands a kernel runs before it starts anew and knows
// nothing of the workers.
const kernelLife = 6

// kernel runs streams and holders until the time is over.
func (c *chaos) kernel(n int, rng *rand.Rand) {
	var client *messaging.Client
	for i := 0; time.Now().Before(c.until); i++ {
		if i%kernelLife == 0 {
			if client != nil {
				_ = client.Close()
			}
			if client = c.connect(); client == nil {
				return
			}
		}
		id := fmt.Sprintf("k%d-%d", n, i)
		box := c.boxes[rng.IntN(len(c.boxes))]
		ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
		if n < chaosHolders { // for few enough locks that they meet
			c.holder(ctx, client, c.boxes[rng.IntN(2)], id, sandbox.Tag("t"+strconv.Itoa(rng.IntN(2))))
		} else {
			c.stream(ctx, client, box, id, 10+rng.IntN(40))
		}
		cancel()
	}
	_ = client.Close()
}

// connect makes a client, also while the server is being restarted.
func (c *chaos) connect() *messaging.Client {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		client, err := messaging.Connect(c.bus.url, messaging.Options{})
		if err == nil {
			return client
		}
		if time.Now().After(deadline) {
			c.violated("a kernel cannot connect: %v", err)
			return nil
		}
	}
}

// served checks that whoever started a command was not a worker that had been
// superseded before it was asked.
func (c *chaos) served(box messaging.Target, id string, before uint64, m messaging.Meta) {
	c.mu.Lock()
	c.epochs[box.Sandbox] = max(c.epochs[box.Sandbox], m.Epoch)
	c.mu.Unlock()
	if m.Epoch < before || m.Generation != box.Generation {
		c.violated("fence: %s was started by worker %s at epoch %d of generation %s, but epoch %d of %s had been seen before it was asked",
			id, m.Worker, m.Epoch, m.Generation, before, box.Generation)
	}
}

func (c *chaos) epoch(box messaging.Target) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epochs[box.Sandbox]
}

func (c *chaos) since(what string, began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took[what] = append(c.took[what], time.Since(began))
}

// stream runs a command that leaves one line and prints counted ones.
func (c *chaos) stream(ctx context.Context, client *messaging.Client, box messaging.Target, id string, lines int) {
	cmd := sandbox.Command{Shell: fmt.Sprintf(pauses+`echo %s >> effects; for i in $(seq 1 %d); do echo "%s $i"; pause 0.02; done`, id, lines, id)}
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "%s %d\n", id, i+1)
	}
	before, began := c.epoch(box), time.Now()
	defer c.since("stream", began)
	p, err := client.Exec(ctx, box, cmd)
	c.since("stream, start", began)
	if err != nil {
		c.ended("stream", id, err)
		return
	}
	defer p.Close()
	c.served(box, id, before, p.Meta())
	var got strings.Builder
	end, err := p.Copy(ctx, &got, &got)
	switch {
	case p.Lost() == 0 && !strings.HasPrefix(want.String(), got.String()):
		c.violated("stream %s: wrong after %d bytes", id, common(want.String(), got.String()))
	case err != nil:
		c.ended("stream", id, err)
	case end.Code == nil:
		c.count("stream: ended by " + string(end.Reason))
	case got.String() != want.String() || *end.Code != 0:
		c.violated("stream %s: code %d with %d of %d bytes, %d lost", id, *end.Code, got.Len(), want.Len(), p.Lost())
	default:
		c.count("stream: whole")
		c.ran(box, id)
	}
}

func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// holder takes a tag and makes a directory that nobody else may have made.
func (c *chaos) holder(ctx context.Context, client *messaging.Client, box messaging.Target, id string, tag sandbox.Tag) {
	own, abandon := context.WithCancel(ctx)
	defer abandon() // a lock that is not released expires, and the next holder takes over
	defer c.since("holder", time.Now())
	lock, err := client.Lock(own, box, tag, messaging.LockOptions{Holder: id, TTL: 3 * time.Second, Wait: 20 * time.Second})
	if err != nil {
		c.ended("holder", id, err)
		return
	}
	first := ""
	if lock.Lock().TakenOver {
		first = "rmdir held-" + string(tag) + " 2>/dev/null; "
		c.count("holder: took over")
	}
	shell := fmt.Sprintf("%smkdir held-%s || exit 9; echo %s >> effects; sleep 0.5; rmdir held-%s", first, tag, id, tag)
	before := c.epoch(box)
	r, err := client.Run(lock.Context(), box, sandbox.Command{Shell: shell, Tag: tag, Token: lock.Token()}, messaging.RunOptions{})
	if err == nil {
		c.served(box, id, before, r.Meta)
	}
	switch {
	case err != nil:
		c.ended("holder", id, err)
	case r.End.Code == nil:
		c.count("holder: ended by " + string(r.End.Reason))
	case *r.End.Code == 9:
		c.violated("holder %s: tag %s of %s has another holder", id, tag, box.Sandbox)
	case *r.End.Code != 0:
		c.violated("holder %s: code %d: %s", id, *r.End.Code, r.Stderr)
	default:
		c.count("holder: whole")
		c.ran(box, id)
		if err := lock.Release(ctx, false); err != nil {
			c.ended("release", id, err)
		}
	}
}

func (c *chaos) ran(box messaging.Target, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fine[box.Sandbox][id] = true
}

// ended notes an honest error: one with a code that says what is known.
func (c *chaos) ended(what, id string, err error) {
	code := sandbox.CodeOf(err)
	if errors.Is(err, messaging.ErrLockLost) {
		code = "lock_lost"
	}
	if code == sandbox.Internal || code == "" || code == sandbox.NotFound || code == sandbox.Gone || code == sandbox.Stale {
		c.violated("%s %s: %v", what, id, err)
		return
	}
	c.t.Logf("%s %s: %v", what, id, err)
	c.count(what + ": error " + string(code))
}

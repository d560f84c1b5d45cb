package agent

import (
	"sync"
	"time"
)

// clock runs the time limits of commands. It can stand still: pausing a
// sandbox does not stop the kernel's clocks, and a limit of 2 s would be over
// after a pause of 4 s (measured).
type clock struct {
	mu        sync.Mutex
	held      bool
	deadlines map[*deadline]struct{}
}

// deadline is one call in the future.
type deadline struct {
	clock *clock
	fn    func()

	// guarded by clock.mu
	timer *time.Timer
	left  time.Duration // when the clock stands still
	due   time.Time     // when it runs
}

func newClock() *clock { return &clock{deadlines: map[*deadline]struct{}{}} }

// after calls fn on a goroutine of its own when d of running time is over.
func (c *clock) after(d time.Duration, fn func()) *deadline {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &deadline{clock: c, fn: fn, left: d}
	c.deadlines[t] = struct{}{}
	if !c.held {
		t.runLocked()
	}
	return t
}

func (t *deadline) runLocked() {
	t.due = time.Now().Add(t.left)
	t.timer = time.AfterFunc(t.left, t.fire)
}

func (t *deadline) fire() {
	c := t.clock
	c.mu.Lock()
	_, live := c.deadlines[t]
	live = live && !c.held
	if live {
		delete(c.deadlines, t)
	}
	c.mu.Unlock()
	if live {
		t.fn()
	}
}

// stop forgets the deadline. It does not wait for a call that has begun. A nil
// deadline is none.
func (t *deadline) stop() {
	if t == nil {
		return
	}
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	delete(t.clock.deadlines, t)
	if t.timer != nil {
		t.timer.Stop()
	}
}

// hold makes the clock stand still.
func (c *clock) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held {
		return
	}
	c.held = true
	for t := range c.deadlines {
		t.timer.Stop()
		t.left = max(0, time.Until(t.due))
	}
}

// release lets it go on.
func (c *clock) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held {
		return
	}
	c.held = false
	for t := range c.deadlines {
		t.runLocked()
	}
}

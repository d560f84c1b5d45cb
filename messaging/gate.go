package messaging

import (
	"context"
	"sync"
)

// gate counts running handlers. Unlike a WaitGroup it may be waited for while
// others still enter.
type gate struct {
	mu     sync.Mutex // guards the rest
	n      int
	closed bool
	empty  chan struct{} // closed when n falls to 0; nil while nobody waits
}

// enter returns false when the gate is closed.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.n++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	if g.n == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// wait returns when nobody is inside, or with ctx's error.
func (g *gate) wait(ctx context.Context) error {
	for {
		g.mu.Lock()
		if g.n == 0 {
			g.mu.Unlock()
			return nil
		}
		if g.empty == nil {
			g.empty = make(chan struct{})
		}
		empty := g.empty
		g.mu.Unlock()
		select {
		case <-empty:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

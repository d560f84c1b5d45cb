package docker

import "sync"

// claims is a set of names that somebody works on. The zero value is empty.
type claims struct {
	mu    sync.Mutex
	taken map[string]bool
}

// claim takes name, unless it is taken.
func (c *claims) claim(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken[name] {
		return false
	}
	if c.taken == nil {
		c.taken = make(map[string]bool)
	}
	c.taken[name] = true
	return true
}

func (c *claims) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.taken, name)
}

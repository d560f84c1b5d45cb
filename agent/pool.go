package agent

import "sync"

// pool is the memory that the rings of one sandbox share.
type pool struct {
	mu    sync.Mutex
	total int
	used  int
}

const (
	poolMost  = 32 << 20
	poolShare = 8 // of the sandbox's memory
	// maxCommands bounds the commands that run at once.
	maxCommands = 256
)

// newPool makes a pool for a sandbox with this much memory; 0 = unknown.
func newPool(memory int64) *pool {
	total := int64(poolMost)
	if memory > 0 {
		total = min(total, memory/poolShare)
	}
	return &pool{total: int(max(total, 4*ringLeast))}
}

// take reserves n bytes, all or nothing.
func (p *pool) take(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used+n > p.total {
		return false
	}
	p.used += n
	return true
}

// grow reserves n bytes for a ring that has its least already: a quarter of
// the pool stays for commands to come.
func (p *pool) grow(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used+n > p.total-p.total/4 {
		return false
	}
	p.used += n
	return true
}

// force reserves n bytes beyond the bound: the few that end a command.
func (p *pool) force(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used += n
}

func (p *pool) give(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
}

// commands is how many can run at once.
func (p *pool) commands() int { return min(maxCommands, p.total/ringLeast) }

package messaging

import (
	"sync"

	"shoal/sandbox"
)

// streamKey names one stream at a worker. The stream's own id tells the
// readers of one command apart.
type streamKey struct {
	tenant sandbox.Tenant
	area   Area
	name   sandbox.Name
	id     string
	stream string
}

// registry finds the running streams by key.
type registry[T any] struct {
	mu sync.Mutex
	m  map[streamKey]T
}

// add returns false when the key is taken.
func (g *registry[T]) add(k streamKey, v T) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, taken := g.m[k]; taken {
		return false
	}
	if g.m == nil {
		g.m = map[streamKey]T{}
	}
	g.m[k] = v
	return true
}

func (g *registry[T]) get(k streamKey) (T, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v, ok := g.m[k]
	return v, ok
}

func (g *registry[T]) remove(k streamKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.m, k)
}

func (g *registry[T]) all() []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]T, 0, len(g.m))
	for _, v := range g.m {
		list = append(list, v)
	}
	return list
}

package docker

import (
	"maps"
	"slices"
	"sync"
)

// links are the open streams, by container. The engine ends a stream when its
// program has ended, and with runsc does not always notice that it has (seen on
// Engine 20.10): so the streams of a container that was ended are ended here.
// Safe for concurrent use; the zero value is ready.
type links struct {
	mu   sync.Mutex
	open map[string]map[*stream]struct{}
}

// add keeps s until it is closed.
func (l *links) add(container string, s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = make(map[string]map[*stream]struct{})
	}
	if l.open[container] == nil {
		l.open[container] = make(map[*stream]struct{})
	}
	l.open[container][s] = struct{}{}
	s.closed = func() { l.drop(container, s) }
}

func (l *links) drop(container string, s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open[container], s)
	if len(l.open[container]) == 0 {
		delete(l.open, container)
	}
}

// ending returns the function that closes the present streams of a container,
// for when it has been ended; those of a later start are left alone.
func (l *links) ending(container string) func() {
	l.mu.Lock()
	streams := slices.Collect(maps.Keys(l.open[container]))
	l.mu.Unlock()
	return func() {
		for _, s := range streams {
			_ = s.conn.Close() // its owner may have closed it
		}
	}
}

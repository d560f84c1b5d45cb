package docker

import (
	"context"
	"sync"
	"time"

	"shoal/sandbox"
)

// flights does a piece of work once for all who want it at the same time. The
// work runs on a context of its own, bounded in time, so that it goes on when
// the caller who began it leaves.
type flights struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	flying map[string]*flight
	closed bool
}

type flight struct {
	cancel context.CancelFunc
	done   chan struct{} // closed after err is set
	err    error

	mu      sync.Mutex
	latest  report
	changed chan struct{} // closed and replaced when latest changes
}

type report struct {
	step        string
	done, total int64
}

func newFlights() *flights { return &flights{flying: make(map[string]*flight)} }

// do joins the flight named key, or begins it with work, and waits for its end
// or ctx's. progress, unless nil, is called on this goroutine with the latest
// that work reported.
func (f *flights) do(ctx context.Context, key string, limit time.Duration, progress sandbox.Progress,
	work func(context.Context, sandbox.Progress) error,
) error {
	fl, err := f.join(ctx, key, limit, work)
	if err != nil {
		return err
	}
	for {
		latest, changed := fl.look()
		if progress != nil && latest.step != "" {
			progress(latest.step, latest.done, latest.total)
		}
		select {
		case <-fl.done:
			return fl.err
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *flights) join(ctx context.Context, key string, limit time.Duration,
	work func(context.Context, sandbox.Progress) error,
) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, sandbox.Errorf(sandbox.Draining, "the worker is shutting down; ask again")
	}
	if fl := f.flying[key]; fl != nil {
		return fl, nil
	}
	workCtx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, errNoAnswer)
	fl := &flight{cancel: cancel, done: make(chan struct{}), changed: make(chan struct{})}
	f.flying[key] = fl
	f.wg.Go(func() {
		defer cancel()
		fl.err = work(workCtx, fl.report)
		f.mu.Lock()
		delete(f.flying, key)
		f.mu.Unlock()
		close(fl.done)
	})
	return fl, nil
}

func (fl *flight) report(step string, done, total int64) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.latest = report{step, done, total}
	close(fl.changed)
	fl.changed = make(chan struct{})
}

func (fl *flight) look() (report, <-chan struct{}) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.latest, fl.changed
}

// close cancels what flies and waits for it.
func (f *flights) close() {
	f.mu.Lock()
	f.closed = true
	for _, fl := range f.flying {
		fl.cancel()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

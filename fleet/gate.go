package fleet

import (
	"context"

	"golang.org/x/sync/semaphore"

	"shoal/sandbox"
)

// gate orders the operations of one sandbox: life-cycle operations pass it
// alone, starts share it. It is first come, first served, so that starts
// cannot starve a destroy, and every wait ends with its ctx.
type gate struct{ s *semaphore.Weighted }

const gateWidth = 1 << 30

func newGate() gate { return gate{semaphore.NewWeighted(gateWidth)} }

// share waits for a place beside other sharers.
func (g gate) share(ctx context.Context) (release func(), err error) { return g.take(ctx, 1) }

// alone waits until it is the only one inside.
func (g gate) alone(ctx context.Context) (release func(), err error) { return g.take(ctx, gateWidth) }

// idle reports whether nobody is inside just now.
func (g gate) idle() bool {
	if !g.s.TryAcquire(gateWidth) {
		return false
	}
	g.s.Release(gateWidth)
	return true
}

func (g gate) take(ctx context.Context, n int64) (func(), error) {
	if err := g.s.Acquire(ctx, n); err != nil {
		return nil, sandbox.AsError(context.Cause(ctx))
	}
	return func() { g.s.Release(n) }, nil
}

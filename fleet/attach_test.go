package fleet_test

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"shoal/messaging"
	"shoal/sandbox"
	"shoal/sandbox/sandboxtest"
)

// stubborn is an engine whose program that enters a sandbox does not start in
// the next tries.
type stubborn struct {
	sandbox.Provider

	reason atomic.Value // string
	fails  atomic.Int64
	tries  atomic.Int64
}

func (p *stubborn) Attach(ctx context.Context, h sandbox.Handle, wake bool) (io.ReadWriteCloser, error) {
	p.tries.Add(1)
	if p.fails.Add(-1) < 0 {
		return p.Provider.Attach(ctx, h, wake)
	}
	ours, theirs := net.Pipe()
	_ = theirs.Close()
	reason, _ := p.reason.Load().(string)
	return silent{ours, sandbox.Errorf(sandbox.Engine, "it does not start").Because(reason).From(sandbox.FromEngine)}, nil
}

// silent is a stream on which no agent answers.
type silent struct {
	net.Conn
	why error
}

func (s silent) Read([]byte) (int, error)    { return 0, s.why }
func (s silent) Write(p []byte) (int, error) { return len(p), nil }

// Where the processes of a sandbox are used up most tries to enter it fail: the
// worker tries again, and for nothing else.
func TestAttachIsTriedAgain(t *testing.T) {
	t.Parallel()
	fake := sandboxtest.NewFake(t.TempDir())
	t.Cleanup(fake.Close)
	engine := &stubborn{Provider: fake}
	r := newRigOn(t, engine, 1, nil)
	for reason, want := range map[string]int64{"attach": 9, "agent": 1} {
		box := r.create(sandbox.Name("box-" + reason))
		if _, err := r.client.Suspend(t.Context(), messaging.SuspendRequest{Target: box, Mode: sandbox.SuspendMemory}); err != nil {
			t.Fatal(err)
		}
		engine.reason.Store(reason)
		engine.fails.Store(8)
		before := engine.tries.Load()
		_, err := r.client.Stats(t.Context(), box)
		engine.fails.Store(0)
		if tries := engine.tries.Load() - before; tries != want || (err == nil) != (reason == "attach") {
			t.Errorf("reason %s: %d tries, %v; want %d", reason, tries, err, want)
		}
	}
}

// The agent of a new sandbox that is gone before its first word cannot run,
// whether the engine still finds it when it enters or not: the create says so
// soon, and whose fault it is.
func TestNewAgentThatEnds(t *testing.T) {
	t.Parallel()
	fake := sandboxtest.NewFake(t.TempDir())
	t.Cleanup(fake.Close)
	engine := &stubborn{Provider: fake}
	r := newRigOn(t, engine, 1, nil)
	for _, reason := range []string{"attach", "agent", ""} {
		engine.reason.Store(reason)
		engine.fails.Store(1 << 20)
		before := engine.tries.Load()
		want := sandbox.StartFailed
		if reason == "" { // the engine's own trouble
			want = sandbox.Engine
		}
		_, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "box"})
		if e := sandbox.AsError(err); e == nil || e.Code != want || engine.tries.Load()-before > 20 {
			t.Errorf("reason %q: after %d tries: %v", reason, engine.tries.Load()-before, err)
		}
		engine.fails.Store(0)
	}
	r.create("box")
}

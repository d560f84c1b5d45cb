package fleet_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
	"shoal/sandbox/sandboxtest"
)

// deaf is an engine whose streams can be made to say nothing more: what comes,
// their end included, is not passed on.
type deaf struct {
	*sandboxtest.Fake

	mu      sync.Mutex
	streams []*deafStream
}

func (p *deaf) Attach(ctx context.Context, h sandbox.Handle, wake bool) (io.ReadWriteCloser, error) {
	below, err := p.Fake.Attach(ctx, h, wake)
	if err != nil {
		return nil, err
	}
	s := &deafStream{ReadWriteCloser: below, hush: make(chan struct{}), closed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams = append(p.streams, s)
	return s, nil
}

// hush makes the present streams say nothing more.
func (p *deaf) hush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.streams {
		close(s.hush)
	}
	p.streams = nil
}

type deafStream struct {
	io.ReadWriteCloser

	hush, closed chan struct{}
	once         sync.Once
}

func (s *deafStream) Read(p []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(p)
	select {
	case <-s.hush:
		<-s.closed
		return 0, io.ErrClosedPipe
	default:
		return n, err
	}
}

func (s *deafStream) Write(p []byte) (int, error) {
	select {
	case <-s.hush:
		return len(p), nil
	default:
		return s.ReadWriteCloser.Write(p)
	}
}

func (s *deafStream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.ReadWriteCloser.Close()
}

// A stream that says nothing more, though it is open, is noticed. What it was
// waited for goes on, or ends by what the engine says of the sandbox.
func TestSilentSandbox(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hurt   func(*deaf, sandbox.Handle) error
		code   sandbox.Code
		state  kv.State
		reason string
	}{
		"the stream alone": {hurt: func(*deaf, sandbox.Handle) error { return nil }, state: kv.Running},
		"the sandbox stopped": {
			hurt: func(p *deaf, h sandbox.Handle) error {
				return p.Fake.Suspend(context.Background(), h, sandbox.SuspendDisk)
			},
			code: sandbox.OutcomeUnknown, state: kv.Suspended, reason: "stopped",
		},
		"the sandbox was removed": {
			hurt: func(p *deaf, h sandbox.Handle) error { return p.Fake.Destroy(context.Background(), h) },
			code: sandbox.Gone, state: kv.Gone, reason: "gone",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := sandboxtest.NewFake(t.TempDir())
			t.Cleanup(fake.Close)
			engine := &deaf{Fake: fake}
			r := newRigOn(t, engine, 1, func(c *fleet.Config) { c.SilentFor, c.SweepEvery = 500*time.Millisecond, time.Hour })
			box := r.create("x")
			p, err := r.client.Exec(t.Context(), box, sandbox.Command{Shell: "for i in $(seq 1 40); do echo $i; sleep 0.1; done"})
			if err != nil {
				t.Fatal(err)
			}
			store := r.records()
			e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", "x"))
			if err != nil {
				t.Fatal(err)
			}
			engine.hush()
			if err := c.hurt(engine, e.Value.Handle); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var out strings.Builder
			end, err := p.Copy(ctx, &out, &out)
			if sandbox.CodeOf(err) != c.code {
				t.Fatalf("the command: %+v, %v", end, err)
			}
			if n := strings.Count(out.String(), "\n"); c.code == "" && (n != 40 || p.Lost() != 0) {
				t.Errorf("%d lines, %d bytes lost", n, p.Lost())
			}
			if e, err = store.Handles.Get(t.Context(), e.Key); err != nil || e.Value.State != c.state || c.reason != "" && e.Value.Last.Reason != c.reason {
				t.Fatalf("the record: %+v, %v", e.Value, err)
			}
			if c.state != kv.Gone {
				if got := r.run(messaging.Target{Sandbox: "x"}, "echo on"); got != "on\n" {
					t.Errorf("afterwards: %q", got)
				}
			}
		})
	}
}

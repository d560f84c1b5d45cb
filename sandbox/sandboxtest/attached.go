package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"shoal/agent"
	"shoal/sandbox"
)

// box returns the shared sandbox, with a session that works.
func (x *suite) box(t *testing.T) *attached {
	t.Helper()
	b := x.share(t, &x.shared, "shared")
	if b.s == nil || b.s.Err() != nil {
		b.attach(t)
	}
	return b
}

// nap returns the shared sandbox for cases that suspend it, awake, with a new
// session and without a command.
func (x *suite) nap(t *testing.T) *attached {
	t.Helper()
	b := x.share(t, &x.sleeper, "sleeper")
	b.attach(t)
	if _, err := b.s.Kill(t.Context(), sandbox.KillRequest{All: true}); err != nil {
		t.Fatalf("clear the shared sandbox: %v", explain(err))
	}
	return b
}

// share returns the sandbox at place, which it makes at the first call.
func (x *suite) share(t *testing.T, place **attached, name string) *attached {
	t.Helper()
	if *place == nil {
		ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
		defer cancel()
		spec := x.spec(name)
		h, err := x.Provider.Create(ctx, spec, nil)
		if err != nil {
			t.Fatalf("create a shared sandbox: %v", explain(err))
		}
		*place = &attached{x: x, spec: spec, h: h}
	}
	return *place
}

// close destroys the shared sandboxes, after which nothing of the suite's is left.
func (x *suite) close(t *testing.T) {
	t.Helper()
	for _, b := range []*attached{x.shared, x.sleeper} {
		if b == nil {
			continue
		}
		if b.s != nil {
			_ = b.s.Close()
		}
		if err := x.Provider.Destroy(t.Context(), b.h); err != nil {
			t.Errorf("destroy a shared sandbox: %v", explain(err))
		}
	}
}

// connect opens a session that has not claimed.
func (b *attached) connect(t *testing.T) *agent.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	s, err := b.dial(ctx)
	if err != nil {
		t.Fatalf("attach: %v", explain(err))
	}
	return s
}

func (b *attached) dial(ctx context.Context) (*agent.Session, error) {
	stream, err := b.x.Provider.Attach(ctx, b.h, true)
	if err != nil {
		return nil, err
	}
	return agent.Connect(ctx, stream, agent.ClientConfig{HelloTimeout: limit})
}

// attach makes a new session the owner's.
func (b *attached) attach(t *testing.T) {
	t.Helper()
	if b.s != nil {
		_ = b.s.Close()
	}
	b.s = b.connect(t)
	if b != b.x.shared && b != b.x.sleeper {
		s := b.s
		t.Cleanup(func() { _ = s.Close() })
	}
	claim(t, b.s)
}

func claim(t *testing.T, s *agent.Session) {
	t.Helper()
	h := s.Hello()
	if _, err := s.Claim(t.Context(), agent.Claim{Boot: h.Boot, Epoch: h.Epoch + 1}); err != nil {
		t.Fatalf("claim: %v", explain(err))
	}
}

// command completes c: an id, and a time limit well below the test's.
func command(c sandbox.Command) sandbox.Command {
	if c.ID == "" {
		c.ID = sandbox.CommandID(sandbox.NewID())
	}
	if c.Timeout == 0 && !c.Background {
		c.Timeout = sandbox.Millis(limit)
	}
	return c
}

// try starts c.
func (b *attached) try(t *testing.T, c sandbox.Command) (*agent.Stream, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	st, err := b.s.Start(ctx, agent.StartRequest{Boot: b.s.Hello().Boot, Command: command(c)})
	if err == nil {
		t.Cleanup(st.Close)
	}
	return st, err
}

func (b *attached) start(t *testing.T, c sandbox.Command) *agent.Stream {
	t.Helper()
	st, err := b.try(t, c)
	if err != nil {
		t.Fatalf("start %.60q: %v", c.Shell, explain(err))
	}
	return st
}

// run runs a script to its end.
func (b *attached) run(t *testing.T, script string) result {
	t.Helper()
	return drain(t, b.start(t, sandbox.Command{Shell: script}))
}

// output runs a script that must succeed and returns its trimmed stdout.
func (b *attached) output(t *testing.T, script string) string {
	t.Helper()
	r := b.run(t, script)
	r.wantCode(t, 0)
	return strings.TrimSpace(r.out.String())
}

// result is all that a stream said.
type result struct {
	out, err bytes.Buffer
	gaps     int64
	end      sandbox.End
	took     time.Duration
}

// drain follows a command to its end, acknowledging as it reads.
func drain(t *testing.T, st *agent.Stream) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	var r result
	begun := time.Now()
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			t.Fatalf("follow, after %d bytes: %v", r.out.Len()+r.err.Len(), explain(err))
		}
		switch e.Kind {
		case agent.EventOutput:
			r.take(e)
			if err := st.Ack(ctx, e.Offset+int64(len(e.Data))); err != nil {
				t.Fatalf("acknowledge: %v", explain(err))
			}
		case agent.EventGap:
			r.gaps += e.Bytes
		case agent.EventEnd:
			r.end, r.took = *e.End, time.Since(begun)
			if err := st.AckEnd(ctx, e.Offset); err != nil {
				t.Fatalf("acknowledge the end: %v", explain(err))
			}
			if _, err := st.Recv(ctx); !errors.Is(err, io.EOF) {
				t.Errorf("after the end: %v, want nothing more", err)
			}
			return r
		}
	}
}

func (r *result) take(e agent.Event) {
	if e.Stream == sandbox.Stderr {
		r.err.Write(e.Data)
	} else {
		r.out.Write(e.Data)
	}
}

func (r *result) wantCode(t *testing.T, code int) {
	t.Helper()
	if r.end.Reason != sandbox.Exited || r.end.Code == nil || *r.end.Code != code {
		t.Fatalf("end %s, want exit %d; output %.200q, %.200q", show(r.end), code, r.out.String(), r.err.String())
	}
}

func (r *result) wantReason(t *testing.T, reason sandbox.EndReason) {
	t.Helper()
	if r.end.Reason != reason || r.end.Code != nil {
		t.Fatalf("end %s, want %s without a code", show(r.end), reason)
	}
}

func show(e sandbox.End) string {
	if e.Code != nil {
		return fmt.Sprintf("%s %d", e.Reason, *e.Code)
	}
	return fmt.Sprintf("%s by %q signal %d survivors %v", e.Reason, e.By, e.Signal, e.Survivors)
}

// explain shows an error with its causes, which its text leaves out.
func explain(err error) string {
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok || e.Unwrap() == nil {
		return fmt.Sprint(err)
	}
	return fmt.Sprintf("%v [%s]", err, explain(e.Unwrap()))
}

// wantError fails unless err carries code.
func wantError(t *testing.T, err error, code sandbox.Code) *sandbox.Error {
	t.Helper()
	if sandbox.CodeOf(err) != code {
		t.Fatalf("%v, want %s", explain(err), code)
	}
	return sandbox.AsError(err)
}

// eventually waits at most 30 s for ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in 30 s: %s", what)
		}
	}
}

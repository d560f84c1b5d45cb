package sandboxtest_test

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"shoal/agent"
	"shoal/sandbox"
	"shoal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newFake(t *testing.T) *sandboxtest.Fake {
	t.Helper()
	f := sandboxtest.NewFake(t.TempDir())
	t.Cleanup(f.Close)
	return f
}

func spec(name string) sandbox.Spec {
	return sandbox.Spec{
		Tenant: "t", Name: sandbox.Name(name), Generation: sandbox.NewID(), Limits: sandbox.DefaultLimits(),
		Egress: sandbox.Egress{Mode: sandbox.EgressNone},
	}
}

// The fake is a faithful engine: a pause stops the processes and the stream.
func TestFakePauseStopsTime(t *testing.T) {
	f := newFake(t)
	h, err := f.Create(t.Context(), spec("a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := f.Attach(t.Context(), h, false)
	if err != nil {
		t.Fatal(err)
	}
	s, err := agent.Connect(t.Context(), conn, agent.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Claim(t.Context(), agent.Claim{Boot: s.Hello().Boot, Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	st, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: sandbox.Command{
		ID: "c", Shell: "for i in 1 2 3 4; do echo $i; sleep 0.1; done",
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := f.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
		t.Fatal(err)
	}
	time.Sleep(800 * time.Millisecond) // longer than the command takes
	if _, err := f.Attach(t.Context(), h, false); !errors.Is(err, &sandbox.Error{Code: sandbox.Unavailable}) {
		t.Errorf("attach to a paused sandbox: %v, want unavailable", err)
	}
	resumed := time.Now()
	if err := f.Resume(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	for {
		e, err := st.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == agent.EventEnd {
			break
		}
	}
	if took := time.Since(resumed); took < 150*time.Millisecond {
		t.Errorf("the command ended %s after the pause: it went on meanwhile", took)
	}
}

func TestFakeHookFailsACall(t *testing.T) {
	f := newFake(t)
	calls := 0
	f.SetHook(func(op string, _ sandbox.Handle) error {
		calls++
		if op == "Create" {
			return sandbox.Errorf(sandbox.Engine, "the engine is away")
		}
		return nil
	})
	if _, err := f.Create(t.Context(), spec("a"), nil); sandbox.CodeOf(err) != sandbox.Engine {
		t.Errorf("create: %v, want engine", err)
	}
	if list, err := f.List(t.Context()); err != nil || len(list) != 0 || calls != 2 {
		t.Errorf("list %v, %v after %d calls; want nothing after 2", list, err, calls)
	}
}

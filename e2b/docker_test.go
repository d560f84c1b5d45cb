package e2b

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"shoal/agent"
	"shoal/e2b/e2btest"
	"shoal/image"
	"shoal/sandbox"
)

// contained is a provider on a fake whose sandboxes are containers, made by the
// very template that `shoal e2b template` prints.
func contained(t *testing.T, c e2btest.Config) (*e2btest.Server, *Provider) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Docker; run without -short")
	}
	plan, err := Template(TemplateOptions{Image: "registry.example.com/shoal-sandbox:1"})
	if err != nil {
		t.Fatal(err)
	}
	c.Backend = e2btest.NewDocker(t, image.Name(), plan.Build)
	fake := e2btest.New(t, c)
	p, err := New(Config{APIKey: NewSecret(e2btest.Key), Template: "shoal", APIURL: fake.APIURL(), Domain: fake.Domain()})
	if err != nil {
		t.Fatal(err)
	}
	return fake, p
}

// claimed attaches and claims.
func claimed(t *testing.T, p *Provider, h sandbox.Handle, wake bool) *agent.Session {
	t.Helper()
	rwc, err := p.Attach(t.Context(), h, wake)
	if err != nil {
		t.Fatal(err)
	}
	s, err := agent.Connect(t.Context(), rwc, agent.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Claim(t.Context(), agent.Claim{Boot: s.Hello().Boot, Epoch: s.Hello().Epoch + 1}); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a command to its end, acknowledging as a worker does: what came,
// then the end.
func run(t *testing.T, s *agent.Session, script string) (string, sandbox.End) {
	t.Helper()
	c := sandbox.Command{ID: sandbox.CommandID(sandbox.NewID()), Shell: script}.WithDefaults()
	st, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: c})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var out strings.Builder
	var offset int64
	for {
		e, err := st.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out.Write(e.Data)
		offset = e.Offset + int64(len(e.Data))
		if e.End != nil {
			if err := st.AckEnd(t.Context(), offset); err != nil {
				t.Fatal(err)
			}
			return out.String(), *e.End
		}
	}
}

func TestAgentInAContainer(t *testing.T) {
	fake, p := contained(t, e2btest.Config{})
	began := time.Now()
	h, err := p.Create(t.Context(), spec("a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := t // sessions outlive the subtest that opens them
	s := claimed(whole, p, h, true)
	out, end := run(t, s, "id -u; echo hello")
	if out != "1000\nhello\n" || end.Code == nil || *end.Code != 0 {
		t.Fatalf("%q %+v", out, end)
	}
	t.Logf("create to first result: %s", time.Since(began))

	t.Run("at most two requests for a short command", func(t *testing.T) {
		for range 3 {
			run(t, s, "true") // the first ones may carry what was left over
			time.Sleep(20 * time.Millisecond)
		}
		fake.Forget()
		const commands = 20
		for range commands {
			run(t, s, "true")
			time.Sleep(20 * time.Millisecond)
		}
		requests := fake.Requests()
		for _, r := range requests {
			if !strings.HasSuffix(r.Path, "/SendInput") {
				t.Errorf("%s %s", r.Method, r.Path)
			}
		}
		t.Logf("%d requests for %d commands", len(requests), commands)
		if len(requests) > 2*commands {
			t.Errorf("%d requests for %d commands", len(requests), commands)
		}
	})

	t.Run("memory is kept over a pause", func(t *testing.T) {
		boot := s.Hello().Boot
		_ = s.Close()
		if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
			t.Fatal(err)
		}
		s = claimed(whole, p, h, true)
		if s.Hello().Boot != boot {
			t.Error("the agent was started anew")
		}
	})

	t.Run("files are kept over a pause without memory", func(t *testing.T) {
		run(t, s, "echo kept > /workspace/f; sync")
		boot := s.Hello().Boot
		_ = s.Close()
		if err := p.Suspend(t.Context(), h, sandbox.SuspendDisk); err != nil {
			t.Fatal(err)
		}
		s = claimed(whole, p, h, true) // nobody started the agent but this attach
		if s.Hello().Boot == boot {
			t.Error("the agent lived on")
		}
		if out, _ := run(t, s, "cat /workspace/f"); out != "kept\n" {
			t.Errorf("%q", out)
		}
	})

	t.Run("a reset has a new boot", func(t *testing.T) {
		boot := s.Hello().Boot
		if err := p.Reset(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
		s = claimed(whole, p, h, false)
		if s.Hello().Boot == boot {
			t.Error("the same boot")
		}
	})

	t.Run("a second attach takes over", func(t *testing.T) {
		other := claimed(whole, p, h, false)
		select {
		case <-s.Done():
		case <-time.After(5 * time.Second):
			t.Error("the older session lives on")
		}
		if out, _ := run(t, other, "echo mine"); out != "mine\n" {
			t.Errorf("%q", out)
		}
	})
}

func TestTakeoverAfterABreak(t *testing.T) { // E2-09: processes are found by their mark
	fake, p := contained(t, e2btest.Config{})
	h, err := p.Create(t.Context(), spec("a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := claimed(t, p, h, true)
	c := sandbox.Command{ID: "long", Shell: "for i in $(seq 100); do echo $i; sleep 0.05; done", Tag: ""}.WithDefaults()
	st, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: c})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	var offset int64
	for offset < 20 {
		e, err := st.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got.Write(e.Data)
		offset = e.Offset + int64(len(e.Data))
	}
	fake.CutStreams(h.Ref)
	for err == nil {
		_, err = st.Recv(t.Context())
	}
	if errors.Is(err, io.EOF) || sandbox.CodeOf(err) == "" {
		t.Errorf("the break looks like an end: %v", err)
	}
	began, resumed := time.Now(), false
	second := claimed(t, p, h, false)
	again, err := second.Follow(t.Context(), agent.FollowRequest{ID: "long", Offset: offset})
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := again.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.End != nil {
			break
		}
		if e.Offset != offset {
			t.Fatalf("output at %d after %d", e.Offset, offset)
		}
		if !resumed && time.Since(began) > 1500*time.Millisecond {
			t.Errorf("the next byte came after %s", time.Since(began))
		}
		resumed = true
		got.Write(e.Data)
		offset += int64(len(e.Data))
		if err := again.Ack(t.Context(), offset); err != nil {
			t.Fatal(err)
		}
	}
	var want strings.Builder
	for i := range 100 {
		fmt.Fprintln(&want, i+1)
	}
	if got.String() != want.String() {
		t.Errorf("lost or repeated: %q", got.String())
	}
}

func TestKillAllAfterResume(t *testing.T) { // E2-09
	fake, p := contained(t, e2btest.Config{})
	h, err := p.Create(t.Context(), spec("a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := claimed(t, p, h, true)
	c := sandbox.Command{ID: "bg", Shell: "setsid sleep 1234 & sleep 1234", Background: true}.WithDefaults()
	st, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: c})
	if err != nil {
		t.Fatal(err)
	}
	st.Close()
	time.Sleep(100 * time.Millisecond)
	fake.Expire(h.Ref) // the end of its time, with the stream open
	s = claimed(t, p, h, true)
	killed, err := s.Kill(t.Context(), sandbox.KillRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := run(t, s, "pgrep -fc 'sleep 123[4]'"); strings.TrimSpace(out) != "0" {
		t.Errorf("%s left after %+v", out, killed)
	}
}

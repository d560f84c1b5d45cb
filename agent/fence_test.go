package agent_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"shoal/agent"
	"shoal/agent/host"
	"shoal/sandbox"
)

func TestOnlyTheClaimedSessionActs(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	s := b.connect(agent.ClientConfig{})
	_, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: shell("true")})
	if !isCode(err, sandbox.Fenced) {
		t.Errorf("start before a claim: %v", err)
	}
	if _, err := s.List(t.Context()); !isCode(err, sandbox.Fenced) {
		t.Errorf("list before a claim: %v", err)
	}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	first := b.attach()
	boot := first.Hello().Boot
	c := shell("sleep 20")
	st := start(t, first, c)
	second := b.connect(agent.ClientConfig{})
	if h := second.Hello(); h.Boot != boot || h.Epoch != 1 || h.Protocol != agent.Protocol {
		t.Errorf("hello %+v", h)
	}
	for name, tt := range map[string]struct {
		claim agent.Claim
		code  sandbox.Code
	}{
		"another boot":  {agent.Claim{Boot: "x", Epoch: 2}, sandbox.Restarted},
		"same epoch":    {agent.Claim{Boot: boot, Epoch: 1}, sandbox.Fenced},
		"epoch 0":       {agent.Claim{Boot: boot, Epoch: 0}, sandbox.Fenced},
		"a jump":        {agent.Claim{Boot: boot, Epoch: 2 + agent.MaxEpochJump}, sandbox.Invalid},
		"beyond bounds": {agent.Claim{Boot: boot, Epoch: 1<<63 + 1}, sandbox.Invalid},
		"a bad lock":    {agent.Claim{Boot: boot, Epoch: 2, Locks: map[sandbox.Tag]string{"a b": "t"}}, sandbox.Invalid},
	} {
		if _, err := second.Claim(t.Context(), tt.claim); !isCode(err, tt.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := first.List(t.Context()); err != nil {
		t.Errorf("a refused claim disturbed the owner: %v", err)
	}
	claimed, err := second.Claim(t.Context(), agent.Claim{Boot: boot, Epoch: 1 + agent.MaxEpochJump})
	if err != nil || claimed.Running != 1 {
		t.Fatalf("claim %+v, %v", claimed, err)
	}
	// The claim was answered, so the first session is closed already.
	_, err = first.Start(t.Context(), agent.StartRequest{Boot: boot, Command: shell("true")})
	if err == nil {
		t.Error("the first session still starts commands")
	}
	_, err = st.Recv(t.Context())
	if sandbox.CodeOf(err) != sandbox.OutcomeUnknown || errors.Is(err, io.EOF) {
		t.Errorf("the first session's stream: %v", err)
	}
	select {
	case <-first.Done():
	case <-time.After(10 * time.Second):
		t.Error("the first session does not end")
	}
	list, err := second.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != c.ID || list[0].State != sandbox.CommandRunning {
		t.Errorf("list %+v, %v", list, err)
	}
}

// What changes of a spec is kept with the rest of it, by the served session only.
func TestKeep(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	first := b.connect(agent.ClientConfig{})
	spec := sandbox.Spec{Tenant: "t", Name: "n", Generation: "g", Env: map[string]string{"SECRET": "s3"}, TTL: 5000}
	if _, err := first.Claim(t.Context(), agent.Claim{Boot: first.Hello().Boot, Epoch: 1, Spec: &spec}); err != nil {
		t.Fatal(err)
	}
	want := agent.Kept{Egress: sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"a.example"}}, Pin: true, TTL: 7000}
	if err := first.Keep(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := first.Keep(t.Context(), agent.Kept{Egress: sandbox.Egress{Mode: "what"}}); sandbox.CodeOf(err) != sandbox.Invalid {
		t.Errorf("a mode that does not exist: %v", err)
	}
	second := b.connect(agent.ClientConfig{})
	claimed, err := second.Claim(t.Context(), agent.Claim{Boot: second.Hello().Boot, Epoch: 2})
	if err != nil || claimed.Spec == nil || !agent.KeptOf(claimed.Spec).Equal(want) || claimed.Spec.Env["SECRET"] != "s3" {
		t.Fatalf("claimed %+v, %v", claimed.Spec, err)
	}
	if err := first.Keep(t.Context(), agent.Kept{}); err == nil {
		t.Error("a superseded session changes the spec")
	}
}

// A read that a newer session ends in its middle is cut off, not over: its error
// must not pass for the end of the file.
func TestSupersededReadIsNoEnd(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	first := b.attach()
	file := filepath.Join(b.dir, "big")
	if err := os.WriteFile(file, make([]byte, 16<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := first.ReadFile(t.Context(), file, sandbox.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 1<<10)); err != nil {
		t.Fatal(err)
	}
	second := b.connect(agent.ClientConfig{})
	if _, err := second.Claim(t.Context(), agent.Claim{Boot: second.Hello().Boot, Epoch: second.Hello().Epoch + 1}); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, r)
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("after %d more bytes of 16 MiB the read ended with %v", n, err)
	}
}

// TestSpecIsKept checks that the environment reaches commands and outlives the
// agent, and that its file is closed to others.
func TestSpecIsKept(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	spec := sandbox.Spec{Tenant: "t", Name: "n", Generation: "g", Env: map[string]string{"SECRET": "s3", "HTTP_PROXY": "x"}}
	s := b.connect(agent.ClientConfig{})
	h := s.Hello()
	if _, err := s.Claim(t.Context(), agent.Claim{Boot: h.Boot, Epoch: 7, Spec: &spec}); err != nil {
		t.Fatal(err)
	}
	c := shell(`echo $SECRET $MORE $HTTP_PROXY`)
	c.Env = map[string]string{"MORE": "m"}
	if got := drain(t, start(t, s, c)); got.out != "s3 m http://127.0.0.1:3128\n" {
		t.Errorf("environment %q", got.out)
	}
	file := filepath.Join(b.dir, "spec")
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the spec's file: %v, %v", info, err)
	}
	m, err := host.NewUnhardened(b.dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := agent.NewServer(agent.ServerConfig{Host: m, SpecFile: file})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	b.server.Close()
	b.server = again
	s = b.connect(agent.ClientConfig{})
	if s.Hello().Boot == h.Boot {
		t.Error("another agent has the same boot")
	}
	claimed, err := s.Claim(t.Context(), agent.Claim{Boot: s.Hello().Boot, Epoch: 8})
	if err != nil || claimed.Spec == nil || claimed.Spec.Env["SECRET"] != "s3" {
		t.Errorf("claimed %+v, %v", claimed, err)
	}
	if err := os.WriteFile(file, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.NewServer(agent.ServerConfig{Host: m, SpecFile: file}); err == nil {
		t.Error("a broken spec is taken for none")
	}
}

func TestTagLocks(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	s := b.connect(agent.ClientConfig{})
	h := s.Hello()
	claim := agent.Claim{Boot: h.Boot, Epoch: 1, Locks: map[sandbox.Tag]string{"a": "tok1"}}
	if _, err := s.Claim(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	try := func(tag sandbox.Tag, token string) error {
		c := shell("true")
		c.Tag, c.Token = tag, token
		st, err := s.Start(t.Context(), agent.StartRequest{Boot: h.Boot, Command: c})
		if err == nil {
			drain(t, st)
			st.Close()
		}
		return err
	}
	expect := func(step string, tag sandbox.Tag, token string, code sandbox.Code) {
		t.Helper()
		if err := try(tag, token); sandbox.CodeOf(err) != code {
			t.Errorf("%s: tag %q token %q: %v, want %q", step, tag, token, err, code)
		}
	}
	expect("claimed", "a", "tok1", "")
	expect("claimed", "a", "", sandbox.Locked)
	expect("claimed", "a", "tok0", sandbox.Fenced)
	expect("claimed", "b", "", "")
	expect("claimed", "b", "tok1", sandbox.Fenced)
	expect("claimed", "", "", "")

	// A takeover ends what the old holder runs, everything of it.
	c := shell("setsid sleep 300 & echo up; sleep 300")
	c.Tag, c.Token = "a", "tok1"
	old := start(t, s, c)
	recvUntil(t, old, func(e agent.Event) bool { return e.Kind == agent.EventOutput })
	other := start(t, s, shell("sleep 300"))
	r, err := s.Tag(t.Context(), agent.TagRequest{Tag: "a", Token: "tok2", Kill: true})
	if err != nil || len(r.Commands) != 1 || r.Commands[0] != c.ID || r.Processes < 2 || len(r.Survivors) != 0 {
		t.Errorf("takeover %+v, %v", r, err)
	}
	if e := recvUntil(t, old, func(e agent.Event) bool { return e.Kind == agent.EventEnd }); e.End.Reason != sandbox.Killed || e.End.By != "takeover" {
		t.Errorf("end %+v", e.End)
	}
	expect("taken over", "a", "tok1", sandbox.Fenced)
	expect("taken over", "a", "tok2", "")

	if _, err := s.Expire(t.Context(), "a", "tok1", false); err != nil { // not the live one
		t.Error(err)
	}
	expect("a former token expired", "a", "tok2", "")
	if _, err := s.Expire(t.Context(), "a", "tok2", false); err != nil {
		t.Error(err)
	}
	expect("expired", "a", "tok2", sandbox.Fenced)
	expect("expired", "a", "", "")

	if r, err := s.Tag(t.Context(), agent.TagRequest{Tag: agent.AllTags, Token: "all1", Kill: true}); err != nil || len(r.Commands) != 1 {
		t.Errorf("all tags: %+v, %v", r, err)
	}
	recvUntil(t, other, func(e agent.Event) bool { return e.Kind == agent.EventEnd })
	expect("all locked", "b", "", sandbox.Locked)
	expect("all locked", "", "", sandbox.Locked)
	expect("all locked", "b", "all1", "")
}

func TestKill(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	s := b.attach()
	bad := []sandbox.KillRequest{{}, {All: true, Tags: []sandbox.Tag{"a"}}}
	for _, k := range bad {
		if _, err := s.Kill(t.Context(), k); !isCode(err, sandbox.Invalid) {
			t.Errorf("%+v: %v", k, err)
		}
	}
	if r, err := s.Kill(t.Context(), sandbox.KillRequest{Tags: []sandbox.Tag{"a"}}); err != nil || len(r.Commands) != 0 {
		t.Errorf("nothing runs: %+v, %v", r, err)
	}
	tagged := func(tag sandbox.Tag, background bool, script string) *agent.Stream {
		c := shell(script)
		c.Tag, c.Background = tag, background
		return start(t, s, c)
	}
	a1 := tagged("a", false, "sleep 300")
	a2 := tagged("a", true, "sleep 300 & sleep 300 & echo gone")
	b1 := tagged("b", false, "sleep 300")
	end := recvUntil(t, a2, func(e agent.Event) bool { return e.Kind == agent.EventEnd })
	if end.End.Code == nil || !end.End.Held {
		t.Errorf("the background command's end: %+v", end.End)
	}
	r, err := s.Kill(t.Context(), sandbox.KillRequest{Tags: []sandbox.Tag{"a", "c"}})
	if err != nil || len(r.Commands) != 1 || r.Processes != 3 {
		t.Errorf("kill by tag: %+v, %v", r, err)
	}
	if e := recvUntil(t, a1, func(e agent.Event) bool { return e.Kind == agent.EventEnd }); e.End.By != "tag" || e.End.Signal != 9 || e.End.Code != nil {
		t.Errorf("end %+v", e.End)
	}
	if r, err := s.Kill(t.Context(), sandbox.KillRequest{All: true, By: "me"}); err != nil || len(r.Commands) != 1 {
		t.Errorf("kill all: %+v, %v", r, err)
	}
	if e := recvUntil(t, b1, func(e agent.Event) bool { return e.Kind == agent.EventEnd }); e.End.By != "me" {
		t.Errorf("end %+v", e.End)
	}
}

// TestClientGone checks the grace: counted without a reader only, with an owner
// only.
func TestClientGone(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	s := b.attach()
	sleeper := func(mode sandbox.OnDisconnect) sandbox.Command {
		c := shell("sleep 300")
		c.OnDisconnect, c.Grace = mode, 300
		return c
	}
	left, kept, read := sleeper(sandbox.DisconnectKill), sleeper(sandbox.DisconnectKeep), sleeper(sandbox.DisconnectKill)
	start(t, s, left).Close()
	start(t, s, kept).Close()
	start(t, s, read)
	end, err := s.Wait(t.Context(), left.ID)
	if err != nil || end.Reason != sandbox.Disconnected {
		t.Errorf("end %+v, %v", end, err)
	}
	_ = s.Close() // no owner: nothing is counted
	time.Sleep(600 * time.Millisecond)
	s = b.attach()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	list, err := s.List(ctx)
	if err != nil || len(list) != 3 || list[1].End != nil || list[2].End != nil {
		t.Errorf("without an owner: %+v, %v", list, err)
	}
	if end, err := s.Wait(ctx, read.ID); err != nil || end.Reason != sandbox.Disconnected {
		t.Errorf("the adopter did not count anew: %+v, %v", end, err)
	}
	if list, err := s.List(ctx); err != nil || list[1].End != nil {
		t.Errorf("kept: %+v, %v", list, err)
	}
}

func TestHoldStopsTheClocks(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	s := b.attach()
	c := shell("sleep 300")
	c.Timeout = 1000
	start(t, s, c)
	if err := s.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: shell("true")}); !isCode(err, sandbox.Unavailable) {
		t.Errorf("a start meanwhile: %v", err)
	}
	time.Sleep(1500 * time.Millisecond)
	if list, err := s.List(t.Context()); err != nil || list[0].End != nil {
		t.Errorf("the limit ran on: %+v, %v", list, err)
	}
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if end, err := s.Wait(t.Context(), c.ID); err != nil || end.Reason != sandbox.TimedOut || end.Duration < 2000 {
		t.Errorf("end %+v, %v", end, err)
	}
	if err := s.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = b.attach() // a claim ends the hold
	drain(t, start(t, s, shell("true")))
}

func TestSuspend(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	polite := start(t, s, shell("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
	stubborn := start(t, s, shell("trap '' TERM; echo up; while :; do sleep 0.05; done"))
	for _, st := range []*agent.Stream{polite, stubborn} {
		recvUntil(t, st, func(e agent.Event) bool { return e.Kind == agent.EventOutput })
	}
	if err := s.Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := drain(t, polite)
	if c.out != "bye\n" || c.end.Reason != sandbox.Suspended || c.end.Code != nil {
		t.Errorf("polite: %+v, %+v", c, c.end)
	}
	if c := drain(t, stubborn); c.end.Reason != sandbox.Suspended || c.end.Signal != 9 {
		t.Errorf("stubborn: %+v", c.end)
	}
	_, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: shell("true")})
	if !isCode(err, sandbox.Unavailable) || !strings.Contains(err.Error(), "suspended") {
		t.Errorf("a start afterwards: %v", err)
	}
}

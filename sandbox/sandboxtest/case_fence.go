package sandboxtest

import (
	"context"
	"testing"

	"shoal/agent"
	"shoal/sandbox"
)

var fenceCases = []Case{
	{Promise: "a newer owner ends the older one's session", run: fenceCloses},
	{Promise: "an epoch that is not above the highest is fenced", run: fenceRefuses},
	{Promise: "a claim for another boot is refused", run: fenceBoot},
	{Promise: "a session that has not claimed can do nothing", run: fenceUnclaimed},
	{Promise: "tag locks admit the live token alone", run: fenceTags},
}

func fenceCloses(t *testing.T, x *suite) {
	b := x.box(t)
	old := b.s
	st := b.start(t, sandbox.Command{ID: "owned", Shell: "echo one; sleep 0.5; echo two"})
	fresh := b.connect(t)
	claim(t, fresh)
	if _, err := old.Start(t.Context(), agent.StartRequest{Boot: old.Hello().Boot, Command: command(sandbox.Command{Shell: "touch stale"})}); err == nil {
		t.Error("the older session still starts commands")
	}
	select {
	case <-old.Done():
	case <-t.Context().Done():
	}
	st.Close()
	_ = old.Close()
	b.s = fresh
	again, err := fresh.Follow(t.Context(), agent.FollowRequest{ID: "owned"})
	if err != nil {
		t.Fatal(explain(err))
	}
	defer again.Close()
	r := drain(t, again)
	if r.wantCode(t, 0); r.out.String() != "one\ntwo\n" {
		t.Errorf("output through the new owner: %q", r.out.String())
	}
	if got := b.output(t, "[ -e stale ] || echo none"); got != "none" {
		t.Error("the stale owner's command ran")
	}
}

func fenceRefuses(t *testing.T, x *suite) {
	b := x.box(t)
	s := b.connect(t)
	defer s.Close()
	h := s.Hello()
	for _, epoch := range []uint64{0, h.Epoch - 1, h.Epoch} {
		_, err := s.Claim(t.Context(), agent.Claim{Boot: h.Boot, Epoch: epoch})
		wantError(t, err, sandbox.Fenced)
	}
	if b.s.Err() != nil {
		t.Error("a refused claim ended the owner's session")
	}
}

func fenceBoot(t *testing.T, x *suite) {
	s := x.box(t).connect(t)
	defer s.Close()
	_, err := s.Claim(t.Context(), agent.Claim{Boot: sandbox.NewID(), Epoch: s.Hello().Epoch + 1})
	if e := wantError(t, err, sandbox.Restarted); e.Boot != s.Hello().Boot {
		t.Errorf("boot %q in the answer, want %q", e.Boot, s.Hello().Boot)
	}
}

func fenceUnclaimed(t *testing.T, x *suite) {
	s := x.box(t).connect(t)
	defer s.Close()
	_, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: command(sandbox.Command{Shell: "true"})})
	wantError(t, err, sandbox.Fenced)
	_, err = s.Kill(t.Context(), sandbox.KillRequest{All: true})
	wantError(t, err, sandbox.Fenced)
	_, err = s.List(t.Context())
	wantError(t, err, sandbox.Fenced)
}

func fenceTags(t *testing.T, x *suite) {
	b := x.box(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	st := b.start(t, sandbox.Command{Shell: "sleep 60", Tag: "job"})
	if _, err := b.s.Tag(ctx, agent.TagRequest{Tag: "job", Token: "token1", Kill: true}); err != nil {
		t.Fatal(explain(err))
	}
	r := drain(t, st)
	r.wantReason(t, sandbox.Killed)
	for token, code := range map[string]sandbox.Code{"": sandbox.Locked, "token0": sandbox.Fenced, "token1": ""} {
		st, err := b.try(t, sandbox.Command{Shell: "true", Tag: "job", Token: token})
		wantError(t, err, code)
		if err == nil {
			drain(t, st)
		}
	}
	if _, err := b.s.Expire(ctx, "job", "token1", true); err != nil {
		t.Fatal(explain(err))
	}
	_, err := b.try(t, sandbox.Command{Shell: "true", Tag: "job", Token: "token1"})
	wantError(t, err, sandbox.Fenced)
	r = drain(t, b.start(t, sandbox.Command{Shell: "true", Tag: "job"}))
	r.wantCode(t, 0)
}

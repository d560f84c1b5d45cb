package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/agent"
	"shoal/sandbox"
)

func isCode(err error, code sandbox.Code) bool { return errors.Is(err, &sandbox.Error{Code: code}) }

func TestRunsACommand(t *testing.T) {
	b := newBox(t)
	s := b.attach()
	c := drain(t, start(t, s, shell("echo out; echo err >&2; pwd; exit 7")))
	if c.out != "out\n"+b.dir+"\n" || c.err != "err\n" {
		t.Errorf("output %q, %q", c.out, c.err)
	}
	if c.end.Reason != sandbox.Exited || c.end.Code == nil || *c.end.Code != 7 {
		t.Errorf("end %+v", c.end)
	}
	if c.end.Bytes != int64(len(c.out)+len(c.err)) || c.end.Held || c.end.Truncated {
		t.Errorf("end %+v", c.end)
	}
}

// TestEnds checks what each kind of end says.
func TestEnds(t *testing.T) {
	t.Parallel()
	code := func(n int) *int { return &n }
	tests := map[string]struct {
		command sandbox.Command
		want    sandbox.End // reason, code, signal, held, truncated
		out     string
		within  time.Duration
	}{
		"exit code":                {sandbox.Command{Shell: "exit 255"}, sandbox.End{Reason: sandbox.Exited, Code: code(255)}, "", 10 * time.Second},
		"argv":                     {sandbox.Command{Argv: []string{"printf", "%s|", "a b", ""}}, sandbox.End{Reason: sandbox.Exited, Code: code(0)}, "a b||", 10 * time.Second},
		"own signal":               {sandbox.Command{Shell: "kill -9 $$"}, sandbox.End{Reason: sandbox.Signaled, Signal: 9}, "", 10 * time.Second},
		"time limit":               {sandbox.Command{Shell: "sleep 60", Timeout: 200}, sandbox.End{Reason: sandbox.TimedOut, Signal: 9}, "", 10 * time.Second},
		"time limit, TERM ignored": {sandbox.Command{Shell: "trap '' TERM INT; while :; do sleep 1; done", Timeout: 200}, sandbox.End{Reason: sandbox.TimedOut, Signal: 9}, "", 10 * time.Second},
		"background child holds stdout": {
			sandbox.Command{Shell: "(sleep 30; echo late) & echo hi; exit 3"},
			sandbox.End{Reason: sandbox.Exited, Code: code(3), Held: true},
			"hi\n", 10 * time.Second,
		},
		"output cap":       {sandbox.Command{Shell: "printf 1234567890", MaxOutput: 4}, sandbox.End{Reason: sandbox.Exited, Code: code(0), Truncated: true}, "1234", 10 * time.Second},
		"output at cap":    {sandbox.Command{Shell: "printf 1234", MaxOutput: 4}, sandbox.End{Reason: sandbox.Exited, Code: code(0)}, "1234", 10 * time.Second},
		"no stdin":         {sandbox.Command{Shell: "cat; echo done"}, sandbox.End{Reason: sandbox.Exited, Code: code(0)}, "done\n", 10 * time.Second},
		"input whole":      {sandbox.Command{Shell: "wc -c", Input: make([]byte, sandbox.MaxInput)}, sandbox.End{Reason: sandbox.Exited, Code: code(0)}, "524288\n", 10 * time.Second},
		"input not read":   {sandbox.Command{Shell: "exit 1", Input: make([]byte, sandbox.MaxInput)}, sandbox.End{Reason: sandbox.Exited, Code: code(1)}, "", 10 * time.Second},
		"terminal no keys": {sandbox.Command{Shell: "cat; tty >/dev/null && echo yes", TTY: &sandbox.TTY{Rows: 5, Cols: 9}}, sandbox.End{Reason: sandbox.Exited, Code: code(0)}, "yes\r\n", 10 * time.Second},
		"no terminal":      {sandbox.Command{Shell: "tty || echo none"}, sandbox.End{Reason: sandbox.Exited, Code: code(0)}, "not a tty\nnone\n", 10 * time.Second},
	}
	s := newBox(t).attach()
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.command.ID = sandbox.CommandID(sandbox.NewID())
			began := time.Now()
			c := drain(t, start(t, s, tt.command))
			if took := time.Since(began); took > tt.within {
				t.Errorf("took %v", took)
			}
			got := sandbox.End{Reason: c.end.Reason, Signal: c.end.Signal, Held: c.end.Held, Truncated: c.end.Truncated}
			if fmt.Sprint(got) != fmt.Sprint(sandbox.End{Reason: tt.want.Reason, Signal: tt.want.Signal, Held: tt.want.Held, Truncated: tt.want.Truncated}) {
				t.Errorf("end %+v, want %+v", c.end, tt.want)
			}
			if (c.end.Code == nil) != (tt.want.Code == nil) || c.end.Code != nil && *c.end.Code != *tt.want.Code {
				t.Errorf("code %v, want %v", c.end.Code, tt.want.Code)
			}
			if c.out != tt.out {
				t.Errorf("output %q, want %q", c.out, tt.out)
			}
		})
	}
}

// TestStartFails checks that a failed start is an error, not an exit, and that
// nothing stays of it.
func TestStartFails(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	s := b.attach()
	file := filepath.Join(b.dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		command sandbox.Command
		reason  string
	}{
		"missing cwd":     {sandbox.Command{Shell: "echo hi", Cwd: "/nowhere"}, "cwd"},
		"cwd is a file":   {sandbox.Command{Shell: "echo hi", Cwd: file}, "cwd"},
		"missing program": {sandbox.Command{Argv: []string{"no-such-program"}}, "program"},
		"not executable":  {sandbox.Command{Argv: []string{file}}, "program"},
	} {
		tt.command.ID = "again"
		for range 2 { // the id is free again
			_, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: tt.command})
			e, _ := errors.AsType[*sandbox.Error](err)
			if e == nil || e.Code != sandbox.StartFailed || e.Reason != tt.reason || e.Origin != sandbox.FromSandbox {
				t.Errorf("%s: %+v", name, e)
			}
		}
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 0 {
		t.Errorf("list %v, %v", list, err)
	}
}

// TestStartIsIdempotent repeats starts in every order that a lost answer makes.
func TestStartIsIdempotent(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	s := b.attach()
	boot := s.Hello().Boot
	effects := filepath.Join(b.dir, "effects")
	c := shell("echo x >> " + effects + "; sleep 0.3; echo done")

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			st, err := s.Start(t.Context(), agent.StartRequest{Boot: boot, Command: c})
			if err != nil {
				t.Error(err)
				return
			}
			defer st.Close()
			for {
				e, err := st.Recv(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if e.Kind == agent.EventEnd {
					return
				}
			}
		})
	}
	wg.Wait()
	again := start(t, s, c) // ended, not acknowledged: the stored end
	if again.Started().Fresh || again.Started().Info.State != sandbox.CommandEnded {
		t.Errorf("started %+v", again.Started())
	}
	if got := drain(t, again); got.out != "done\n" {
		t.Errorf("output %q", got.out)
	}
	other := c
	other.Shell += " "
	_, err := s.Start(t.Context(), agent.StartRequest{Boot: boot, Command: other})
	if !isCode(err, sandbox.Conflict) {
		t.Errorf("another request: %v", err)
	}
	_, err = s.Start(t.Context(), agent.StartRequest{Boot: "another", Command: shell("echo y >> " + effects)})
	if e, _ := errors.AsType[*sandbox.Error](err); e == nil || e.Code != sandbox.Restarted || e.Boot != boot {
		t.Errorf("another boot: %v", err)
	}
	if text, _ := os.ReadFile(effects); string(text) != "x\n" {
		t.Errorf("side effects %q", text)
	}
}

// TestAcknowledgedEndIsNotRunAgain pushes an acknowledged command out of what is
// kept whole: its id stays known.
func TestAcknowledgedEndIsNotRunAgain(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	s := b.attach()
	effects := filepath.Join(b.dir, "effects")
	first := shell("echo x >> " + effects)
	drain(t, start(t, s, first))
	for range 70 {
		drain(t, start(t, s, shell("true")))
	}
	_, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: first})
	if e, _ := errors.AsType[*sandbox.Error](err); e == nil || e.Code != sandbox.Conflict || e.Reason != "ended" {
		t.Errorf("a stale copy: %v", err)
	}
	_, err = s.Follow(t.Context(), agent.FollowRequest{ID: first.ID, Offset: -1})
	if !isCode(err, sandbox.NotFound) {
		t.Errorf("follow: %v", err)
	}
	if text, _ := os.ReadFile(effects); string(text) != "x\n" {
		t.Errorf("side effects %q", text)
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) { // acknowledgements are under way
		list, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 64 {
			break
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("%d commands kept", len(list))
		}
	}
}

// TestManyCommands runs commands one after another and at once: one end each,
// no byte missing.
func TestManyCommands(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 12 {
				want := fmt.Sprintf("%d-%d\n", worker, i)
				if c := drain(t, start(t, s, shell("echo "+strings.TrimSpace(want)))); c.out != want || *c.end.Code != 0 {
					t.Errorf("%q, %+v", c.out, c.end)
				}
			}
		})
	}
	wg.Wait()
}

func TestWaitAndList(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	c := shell("sleep 0.2; exit 4")
	c.Tag = "me"
	st := start(t, s, c)
	list, err := s.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != c.ID || list[0].Tag != "me" || list[0].State != sandbox.CommandRunning || list[0].Pid == 0 {
		t.Errorf("list %+v, %v", list, err)
	}
	end, err := s.Wait(t.Context(), c.ID)
	if err != nil || end.Code == nil || *end.Code != 4 {
		t.Errorf("wait %+v, %v", end, err)
	}
	if _, err := s.Wait(t.Context(), "unknown"); !isCode(err, sandbox.NotFound) {
		t.Errorf("wait for an unknown command: %v", err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	sleeper := shell("sleep 20")
	start(t, s, sleeper)
	if _, err := s.Wait(ctx, sleeper.ID); !isCode(err, sandbox.Timeout) {
		t.Errorf("wait bounded: %v", err)
	}
	drain(t, st)
}

// TestDetachedCommandGoesOn cuts the session and follows from an offset.
func TestDetachedCommandGoesOn(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	s := b.attach()
	c := shell("for i in $(seq 1 30); do echo line $i; sleep 0.02; done")
	st := start(t, s, c)
	var got []byte
	for len(got) < 20 {
		e, err := st.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == agent.EventOutput {
			got = append(got, e.Data...)
		}
	}
	_ = s.Close()
	s = b.attach()
	st, err := s.Follow(t.Context(), agent.FollowRequest{ID: c.ID, Offset: int64(len(got))})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	rest := drain(t, st)
	var want strings.Builder
	for i := range 30 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if string(got)+rest.out != want.String() || rest.gaps != 0 {
		t.Errorf("got %q and %q", got, rest.out)
	}
}

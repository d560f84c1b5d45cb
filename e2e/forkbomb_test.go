package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// A fork bomb has all the processes of its sandbox: every other sandbox stays
// usable, a kill by tag ends it in time, and its own sandbox is usable again.
func TestForkBomb(t *testing.T) {
	t.Parallel()
	const killed, answered = 5 * time.Second, 5 * time.Second
	f := newFleet(t, 1)
	other := f.create(messaging.CreateRequest{})
	box := f.create(messaging.CreateRequest{Limits: sandbox.Limits{CPU: 1, MemoryMB: 512, Pids: 512}})
	bomb, err := f.client.Exec(t.Context(), box, sandbox.Command{
		Shell: "trap '' HUP TERM; f() { while :; do f & done; }; f 2>/dev/null", Tag: "bomb", Background: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer bomb.Close()
	eventually(t, time.Minute, "the bomb has every process", func() error {
		s, err := f.client.Stats(t.Context(), box)
		if err == nil && s.Pids < s.PidsLimit-2 {
			err = fmt.Errorf("%d of %d processes", s.Pids, s.PidsLimit)
		}
		return err
	})
	for range 10 {
		begun := time.Now()
		if r := f.run(other, "echo usable"); string(r.Stdout) != "usable\n" {
			t.Errorf("another sandbox printed %q", r.Stdout)
		}
		if took := time.Since(begun); took > answered {
			t.Errorf("another sandbox took %s", took)
		}
	}
	begun := time.Now()
	k, err := f.client.Kill(t.Context(), box, sandbox.KillRequest{Tags: []sandbox.Tag{"bomb"}})
	took := time.Since(begun)
	t.Logf("%d processes killed in %s", k.Processes, took)
	if err != nil || len(k.Survivors) > 0 || k.Reset || took > killed {
		t.Errorf("kill: %+v, %v after %s", k, err, took)
	}
	if end, err := bomb.Wait(t.Context()); err != nil || end.Reason != sandbox.Killed || end.By != "tag" {
		t.Errorf("the bomb ended as %+v, %v; want killed by its tag", end, err)
	}
	if r := f.run(box, "echo again"); string(r.Stdout) != "again\n" {
		t.Errorf("after the kill: %+v", r)
	}
}

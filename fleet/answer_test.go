package fleet_test

import (
	"io"
	"testing"
	"time"

	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// NK-09, NK-10: a command id stands for one request in one boot. The same id
// with another command is a conflict. After a restart of the sandbox the
// reader is told that the end was not seen, and the id is not pinned to what died.
func TestCommandIDs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, nil)
	box := r.create("x")
	cmd := sandbox.Command{ID: "once", Shell: "echo ran >> $HOME/ran; sleep 60", Background: true}
	p, err := r.client.Exec(t.Context(), box, cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	soon(t, 30*time.Second, "it has run", func() bool { return r.run(box, "cat $HOME/ran; true") == "ran\n" })
	other := cmd
	other.Shell = "touch $HOME/other"
	_, err = r.kernel("main").Exec(t.Context(), box, other)
	code(t, err, sandbox.Conflict)
	info, err := r.client.Get(t.Context(), box)
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.records().Handles.Get(t.Context(), kv.HandleKey("main", "x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.engine.Reset(t.Context(), e.Value.Handle); err != nil {
		t.Fatal(err)
	}
	end, err := p.Copy(t.Context(), io.Discard, io.Discard)
	if sandbox.CodeOf(err) != sandbox.OutcomeUnknown {
		t.Fatalf("the command that died with its boot: %+v, %v", end, err)
	}
	if now, err := r.client.Get(t.Context(), box); err != nil || now.Boot == info.Boot {
		t.Fatalf("another boot is not known: %+v, %v", now, err)
	}
	_, err = r.client.Follow(t.Context(), box, cmd.ID, messaging.FollowOptions{})
	code(t, err, sandbox.NotFound)
	cmd.Shell = "echo anew"
	again, err := r.client.Exec(t.Context(), box, cmd)
	if err != nil {
		t.Fatal(err)
	}
	if end, err := again.Copy(t.Context(), io.Discard, io.Discard); err != nil || end.Code == nil || *end.Code != 0 {
		t.Fatalf("the id in another boot: %+v, %v", end, err)
	}
	if got := r.run(box, "cat $HOME/ran; ls $HOME"); got != "ran\nran\n" {
		t.Fatalf("it ran: %q", got)
	}
}

// NK-19: nobody there, gone and never there are told apart, and the next call
// finds who is there by then.
func TestNK19DistinctAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, nil)
	_, err := r.client.Run(t.Context(), messaging.Target{Sandbox: "x"}, sandbox.Command{Shell: "true"}, messaging.RunOptions{})
	code(t, err, sandbox.Unavailable)
	if sandbox.AsError(err).Reason != "no_worker" {
		t.Errorf("without a worker: %v", err)
	}
	_, stop := r.worker()
	_, err = r.client.Run(t.Context(), messaging.Target{Sandbox: "x"}, sandbox.Command{Shell: "true"}, messaging.RunOptions{})
	code(t, err, sandbox.NotFound)
	box, keep := r.create("x"), r.create("keep")
	if _, err := r.client.Destroy(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	_, err = r.client.Run(t.Context(), box, sandbox.Command{Shell: "true"}, messaging.RunOptions{})
	code(t, err, sandbox.Gone)
	r.run(keep, "true") // the client knows the first worker now
	r.worker()
	stop()
	if got := r.run(keep, "echo on"); got != "on\n" {
		t.Fatalf("after the worker that was known has gone: %q", got)
	}
}

// LC-12: what is pinned, or runs a command that keeps it awake, stays so over the
// change of its worker, and falls due once that ends.
func TestLC12PinOutlivesItsWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, func(c *fleet.Config) { c.DestroyAfter = time.Second })
	_, stop := r.worker()
	info, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "pinned", Pin: true})
	if err != nil {
		t.Fatal(err)
	}
	boxes := []messaging.Target{info.Target()}
	for name, cmd := range map[sandbox.Name]sandbox.Command{
		"foreground": {Shell: "sleep 60"}, "background": {Shell: "sleep 60", Background: true, KeepAwake: true},
	} {
		box := r.create(name)
		p, err := r.client.Exec(t.Context(), box, cmd)
		if err != nil {
			t.Fatal(err)
		}
		p.Close() // it runs on, though nobody reads
		boxes = append(boxes, box)
	}
	r.worker()
	stop()
	time.Sleep(3 * time.Second)
	for _, box := range boxes {
		if now, err := r.client.Get(t.Context(), box); err != nil || now.State != messaging.Running || now.Pinned != (box.Sandbox == "pinned") {
			t.Fatalf("%s, idle for 3 s: %+v, %v", box.Sandbox, now, err)
		}
	}
	if _, err := r.client.Pin(t.Context(), info.Target(), false); err != nil {
		t.Fatal(err)
	}
	for _, box := range boxes[1:] {
		if _, err := r.client.Kill(t.Context(), box, sandbox.KillRequest{All: true}); err != nil {
			t.Fatal(err)
		}
	}
	for _, box := range boxes {
		soon(t, 30*time.Second, "it is destroyed", func() bool {
			now, err := r.client.Get(t.Context(), box)
			return err == nil && now.State == messaging.Gone
		})
	}
}

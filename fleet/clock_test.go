package fleet

import (
	"log/slog"
	"testing"
	"time"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// LC-14: the machine's time is set an hour on, or back, while a worker runs:
// what it owns neither falls due at once nor never.
func TestLC14ClockJumps(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		w := &Worker{
			id: "w", cfg: Config{DestroyAfter: 30 * time.Minute, DetachAfter: time.Hour},
			clock: steady{wall: time.Now().Round(0).Add(-jump), began: time.Now()},
			boxes: map[string]*box{}, ctx: t.Context(), log: slog.New(slog.DiscardHandler),
		}
		b := w.box("t", "n")
		b.proven = time.Now()
		rec := kv.Record{
			State: kv.Running, Owner: string(messaging.WorkerID("w")), TTL: sandbox.Millis(40 * time.Minute),
			Created: w.clock.now(), LastUse: w.clock.now(),
		}
		b.entry = &kv.Entry[kv.Record]{Value: rec}
		b.touch()
		if b.due(rec, w.clock.now()) != nil {
			t.Errorf("a jump of %s: something is due at once", jump)
		}
		if ago := w.clock.now().Sub(b.lastUse()); ago.Abs() > time.Minute {
			t.Errorf("a jump of %s: it was used %s ago", jump, ago)
		}
		w.clock.began = w.clock.began.Add(-35 * time.Minute) // so long later
		b.proven = time.Now()
		if step, at := w.nextIdleStep(rec); step != stepDestroy || !w.clock.now().After(at) || b.due(rec, w.clock.now()) == nil {
			t.Errorf("a jump of %s: half an hour later nothing is due", jump)
		}
		w.clock.began = w.clock.began.Add(-10 * time.Minute)
		rec.LastUse = w.clock.now()
		b.entry = &kv.Entry[kv.Record]{Value: rec}
		b.touch()
		b.proven = time.Now()
		if b.due(rec, w.clock.now()) == nil {
			t.Errorf("a jump of %s: past its time to live, and just used, it is not due", jump)
		}
	}
}

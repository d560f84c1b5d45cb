package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"shoal/egress"
	"shoal/kv"
	"shoal/messaging"
)

// describe is a record as kernels see it.
func describe(r kv.Record) messaging.SandboxInfo {
	info := messaging.SandboxInfo{
		Tenant: r.Handle.Tenant, Name: r.Handle.Name, Generation: r.Handle.Generation,
		State: messaging.SandboxState(r.State), Mode: r.Mode,
		Provider: r.Handle.Provider, Engine: r.Handle.Engine, Image: r.Spec.Image,
		Owner: messaging.WorkerID(r.Owner), Boot: r.Boot, Epoch: r.Epoch,
		Limits: r.Handle.Limits, Egress: r.Egress, Metadata: r.Spec.Metadata, Pinned: r.Pin,
		Created: r.Created, LastUse: r.LastUse, Notes: r.Handle.Notes,
	}
	if r.TTL > 0 {
		info.Expires = new(r.Created.Add(r.TTL.Duration()))
	}
	if r.Last != nil {
		info.Termination = &messaging.Termination{Reason: r.Last.Reason, Time: r.Last.At, Detail: r.Last.By}
	}
	return info
}

func (b *box) info() messaging.SandboxInfo { return describe(b.record()) }

// event tells whoever listens; the record is the truth.
func (b *box) event(kind messaging.EventKind, data map[string]string) {
	if b.pooled {
		return // nobody's sandbox
	}
	rec := b.record()
	err := b.w.server.PublishEvent(messaging.Event{
		Kind: kind, Tenant: rec.Handle.Tenant, Sandbox: rec.Handle.Name, Generation: rec.Handle.Generation, Data: data,
	})
	if err != nil {
		b.log.Debug("event not sent", "kind", kind, "error", err)
	}
}

// explain says in sentences where the sandbox is and what happens next.
func (w *Worker) explain(ctx context.Context, r *messaging.Request) (any, error) {
	e, err := w.store.Handles.Get(ctx, kv.HandleKey(r.Tenant, r.Target().Sandbox))
	if err != nil {
		return nil, err
	}
	if err := w.visible(r, e); err != nil {
		return nil, err
	}
	// What its egress came to is known to the owner alone.
	if owner := messaging.WorkerID(e.Value.Owner); r.From == "" && owner != w.id && w.peers.alive(owner) {
		if err := w.forward(ctx, r, owner); !errors.Is(err, messaging.ErrNoOwner) {
			return nil, err
		}
	}
	lines := w.sentences(e.Value, w.clock.now())
	if b := w.peek(e.Key); b != nil && e.Value.Owner == string(w.id) && w.caps.EgressTunnel {
		lines = append(lines, egressSentence(b.egress.Stats()))
	}
	return messaging.ExplainAnswer{Info: describe(e.Value), Lines: lines}, nil
}

// egressSentence tells what the proxy has seen of a sandbox.
func egressSentence(s egress.Stats) string {
	return fmt.Sprintf("Since its owner took it over, %d connections out were allowed, %d denied, %d failed, %d closed; %d are open; %d bytes went up, %d down.",
		s.Allowed, s.Denied, s.Failed, s.Closed, s.Tunnels, s.BytesUp, s.BytesDown)
}

func (w *Worker) sentences(r kv.Record, now time.Time) []string {
	lines := []string{fmt.Sprintf("It is %s since %s.", r.State, r.Changed.Format(time.RFC3339))}
	switch {
	case r.Owner == "":
		lines = append(lines, "No worker owns it; the next request or sweep adopts it.")
	case !w.peers.alive(messaging.WorkerID(r.Owner)) && r.Owner != string(w.id):
		lines = append(lines, fmt.Sprintf("Its owner %s does not show itself; the next request or peer probe takes it over.", r.Owner))
	default:
		lines = append(lines, fmt.Sprintf("Worker %s owns it at epoch %d.", r.Owner, r.Epoch))
	}
	if r.Last != nil {
		lines = append(lines, fmt.Sprintf("It last stopped at %s: %s.", r.Last.At.Format(time.RFC3339), r.Last.Reason))
	}
	return append(lines, w.outlook(r, now)...)
}

// outlook says what the idle policy will do, and when.
func (w *Worker) outlook(r kv.Record, now time.Time) []string {
	if r.State == kv.Gone {
		return []string{fmt.Sprintf("This record vanishes at %s.", r.Changed.Add(kv.GoneTTL).Format(time.RFC3339))}
	}
	var lines []string
	if r.TTL > 0 {
		lines = append(lines, fmt.Sprintf("Its time to live ends at %s; then it is destroyed.", r.Created.Add(r.TTL.Duration()).Format(time.RFC3339)))
	}
	if r.Pin {
		return append(lines, "It is pinned: nothing suspends or destroys it for being idle.")
	}
	step, at := w.nextIdleStep(r)
	if step == "" {
		return append(lines, "No idle policy applies: it stays as it is until somebody acts.")
	}
	return append(lines, fmt.Sprintf("If nobody uses it, it will be %s at %s (in %s).", step, at.Format(time.RFC3339), at.Sub(now).Round(time.Second)))
}

package fleet

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"shoal/agent"
	"shoal/egress"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// applyEgress makes e the policy of the running sandbox.
func (b *box) applyEgress(ctx context.Context, s *agent.Session, e sandbox.Egress) error {
	if set := b.w.setter(); set != nil {
		if err := b.own(ctx); err != nil {
			return err
		}
		return set.SetEgress(ctx, b.record().Handle, e)
	}
	policy, err := b.w.policy(e)
	if err != nil {
		return err
	}
	b.egress.SetPolicy(policy)
	return s.Tunnel(ctx, policy != nil)
}

// setter returns the provider whose engine filters egress itself, nil where it
// goes through the proxy.
func (w *Worker) setter() sandbox.EgressSetter {
	if set, ok := w.provider.(sandbox.EgressSetter); ok && !w.caps.EgressTunnel {
		return set
	}
	return nil
}

// policy compiles e; nil lets nothing out.
func (w *Worker) policy(e sandbox.Egress) (*egress.Policy, error) {
	if e.Mode != sandbox.EgressAllowlist || len(e.Hosts) == 0 {
		return nil, nil //nolint:nilnil // a nil policy is the closed one
	}
	p, err := egress.ParsePolicy(e.Hosts, w.cfg.Policy)
	if err != nil {
		return nil, sandbox.InvalidField("egress.hosts", "%s", err.Error())
	}
	return p, nil
}

// restoreEgress sets the policy of the record, after an adoption, a resume, or
// a suspension that failed half-way.
func (b *box) restoreEgress() {
	rec := b.record()
	if rec.Owner != string(b.w.id) {
		return
	}
	policy, err := b.w.policy(rec.Egress)
	if err != nil {
		b.log.Error("the record's egress list is not valid any more; nothing is let out", "error", err)
	}
	b.egress.SetPolicy(policy)
}

// egressSet replaces the policy of a sandbox, running or suspended.
func (w *Worker) egressSet(ctx context.Context, r *messaging.Request) (any, error) {
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	release, err := b.gate.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := b.own(ctx); err != nil { // the list to add to is this owner's
		return nil, err
	}
	rec := b.record()
	want, err := w.wanted(body[messaging.EgressSetRequest](r), rec.Egress)
	if err != nil {
		return nil, err
	}
	if (want.Mode == sandbox.EgressOpen) != (rec.Egress.Mode == sandbox.EgressOpen) {
		return nil, sandbox.Errorf(sandbox.Unsupported, "a sandbox cannot change to or from open egress; create it anew").From(sandbox.FromWorker)
	}
	if err := b.change(ctx, func(rec *kv.Record) error {
		rec.Egress = want
		return nil
	}); err != nil {
		return nil, err
	}
	b.event(messaging.EventEgress, map[string]string{"mode": string(want.Mode), "hosts": strconv.Itoa(len(want.Hosts))})
	if b.record().State != kv.Running {
		return want, nil // in force when it runs again
	}
	s, err := b.attached(ctx, false)
	if err != nil && sandbox.AsError(err).Reason == "suspended" && b.w.setter() != nil {
		return want, nil // paused behind our back: in force when something wakes it
	}
	if err != nil {
		return nil, err
	}
	b.keepInside(ctx, s)
	return want, b.applyEgress(ctx, s, want)
}

// wanted is the policy that a request asks for where now is in force.
func (w *Worker) wanted(req *messaging.EgressSetRequest, now sandbox.Egress) (sandbox.Egress, error) {
	if !req.Add {
		return w.egressOf(req.Egress)
	}
	if now.Mode == sandbox.EgressOpen {
		return now, sandbox.Errorf(sandbox.Conflict, "the sandbox may reach everything already; set an allowlist to narrow it").From(sandbox.FromWorker)
	}
	want := sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: slices.Clone(now.Hosts)}
	for _, h := range req.Egress.Hosts {
		if !slices.Contains(want.Hosts, h) {
			want.Hosts = append(want.Hosts, h)
		}
	}
	return w.egressOf(want)
}

// egressGet answers with the policy, and with the counters where this worker
// or another is the living owner.
func (w *Worker) egressGet(ctx context.Context, r *messaging.Request) (any, error) {
	e, err := w.store.Handles.Get(ctx, kv.HandleKey(r.Tenant, r.Target().Sandbox))
	if err != nil {
		return nil, err
	}
	if err := w.visible(r, e); err != nil {
		return nil, err
	}
	answer := messaging.EgressAnswer{Egress: e.Value.Egress}
	switch owner := messaging.WorkerID(e.Value.Owner); {
	case owner == w.id:
		if b := w.find(e.Key); b != nil {
			answer.Counts = egressCounts(b.egress.Stats())
		}
	case r.From == "" && w.peers.alive(owner):
		if err := w.forward(ctx, r, owner); !errors.Is(err, messaging.ErrNoOwner) {
			return nil, err
		}
	}
	return answer, nil
}

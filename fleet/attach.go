package fleet

import (
	"context"
	"net"
	"time"

	"shoal/agent"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// attachFor bounds one attachment, waking included.
const attachFor = 60 * time.Second

// attachAgainFor bounds the tries to attach where the engine cannot start a
// program in the sandbox, attachAgain lies between two of them.
const (
	attachAgainFor = 30 * time.Second
	attachAgain    = 50 * time.Millisecond
)

// greetings is how often the agent of a new sandbox is looked for in vain; nothing
// has been claimed by then.
const greetings = 5

// helloFor bounds the wait for the agent's first word. It is generous: on a
// machine that starts many containers at once it takes seconds.
const helloFor = 30 * time.Second

// attached returns a session that works, attaching if there is none. With wake
// a sandbox that does not run is brought back first; without, that is
// Unavailable.
func (b *box) attached(ctx context.Context, wake bool) (*agent.Session, error) {
	if s := b.live(); s != nil {
		return s, nil
	}
	release, err := b.attaching.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if s := b.live(); s != nil {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, attachFor)
	defer cancel()
	if rec := b.record(); !wake && rec.Owner == string(b.w.id) && rec.State == kv.Suspended {
		return nil, errSuspended()
	}
	if err := b.own(ctx); err != nil {
		return nil, err
	}
	switch rec := b.record(); rec.State {
	case kv.Running, kv.Creating:
	case kv.Suspended, kv.Suspending, kv.Resuming:
		if !wake {
			return nil, errSuspended()
		}
	default:
		return nil, errGone(rec)
	}
	return b.attach(ctx, wake)
}

func errSuspended() error {
	return sandbox.Errorf(sandbox.Unavailable, "the sandbox is suspended; any use of it by a caller resumes it").
		Because("suspended").From(sandbox.FromWorker)
}

func errGone(rec kv.Record) error {
	reason := "destroyed"
	if rec.Last != nil && rec.State == kv.Gone { // an earlier run's otherwise
		reason = rec.Last.Reason
	}
	return sandbox.Errorf(sandbox.Gone, "the sandbox does not exist any more (%s); create it anew", reason).
		Because(reason).From(sandbox.FromWorker)
}

// attach takes the three steps: hello, one compare-and-swap of epoch and boot,
// claim. The agent, which forgets its epochs when it restarts, cannot be
// claimed by a stale owner, for whom the swap fails.
func (b *box) attach(ctx context.Context, wake bool) (*agent.Session, error) {
	made := b.record().State != kv.Creating
	s, err := b.connect(ctx, wake)
	if err != nil {
		return nil, err
	}
	if err := b.claim(ctx, s); err != nil {
		_ = s.Close()
		return nil, err
	}
	if set := b.w.setter(); set != nil && wake && made { // the engine may have been asleep when the list changed
		if err := set.SetEgress(ctx, b.record().Handle, b.record().Egress); err != nil {
			_ = s.Close()
			return nil, err
		}
	}
	b.mu.Lock()
	old := b.session
	b.session = s
	b.spec = nil
	b.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
	b.log.InfoContext(ctx, "attached", "epoch", b.record().Epoch, "boot", s.Hello().Boot)
	return s, nil
}

// connect opens a stream to the agent. Where the processes of the sandbox are
// used up, the engine's own program that enters it finds no thread in most of its
// tries (runc 1.1.5), so it is tried again within the time of an attachment. The
// agent of a new sandbox that ends before its first word does not pass its
// self-test, as in an image that lacks a shell; one that ends still sooner leaves
// the engine nothing to enter, and nothing uses up the processes of a new sandbox.
func (b *box) connect(ctx context.Context, wake bool) (*agent.Session, error) {
	made := b.record().State != kv.Creating
	for begun, tries := time.Now(), 1; ; tries++ {
		s, err := b.greet(ctx, wake)
		if err == nil {
			return s, nil
		}
		e := sandbox.AsError(err)
		unentered := e.Code == sandbox.Engine && e.Reason == "attach"
		ended := unentered || e.Code == sandbox.OutcomeUnknown || e.Code == sandbox.Engine && e.Reason == "agent"
		switch {
		case made && unentered && time.Since(begun) < attachAgainFor:
		case !made && tries < greetings && (ended || e.Code == sandbox.Engine):
		case !made && ended:
			return nil, sandbox.Errorf(sandbox.StartFailed, "the sandbox's agent ends before it answers: it cannot run or does not pass its self-test; look at the image").
				Because("agent").From(sandbox.FromSandbox).Wrap(err)
		default:
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(attachAgain):
		}
	}
}

// greet tries once to open a stream to the agent and hear its first word.
func (b *box) greet(ctx context.Context, wake bool) (*agent.Session, error) {
	stream, err := b.w.provider.Attach(ctx, b.record().Handle, wake)
	if err != nil {
		return nil, b.attachFailed(ctx, err)
	}
	return agent.Connect(ctx, stream, agent.ClientConfig{Egress: b.serveEgress, HelloTimeout: helloFor})
}

func (b *box) claim(ctx context.Context, s *agent.Session) error {
	hello := s.Hello()
	before := b.record()
	if before.Epoch > 0 && hello.Epoch > before.Epoch+agent.MaxEpochJump || hello.Epoch >= agent.MaxEpoch {
		b.log.ErrorContext(ctx, "the agent names an epoch beyond reason; it is not followed", "agent", hello.Epoch, "record", before.Epoch)
		return sandbox.Errorf(sandbox.Engine, "the sandbox's agent cannot be trusted any more; destroy the sandbox").Because("epoch").From(sandbox.FromWorker)
	}
	locks, err := b.liveLocks(ctx)
	if err != nil {
		return err
	}
	restarted := before.Boot != "" && before.Boot != hello.Boot && before.State == kv.Running
	err = b.change(ctx, func(r *kv.Record) error {
		if r.Owner != string(b.w.id) {
			return errMoved(r.Owner)
		}
		r.Epoch, r.Boot = max(r.Epoch, hello.Epoch)+1, hello.Boot
		if r.State == kv.Suspended || r.State == kv.Resuming || r.State == kv.Suspending {
			r.State, r.Mode = kv.Running, ""
		}
		if restarted {
			r.Last = &kv.Termination{Reason: "restarted", At: time.Now().UTC()}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if before.State != kv.Creating { // a setup command has a list of its own
		b.restoreEgress() // before the claim: connections that wait for a worker come at once
	}
	claim := agent.Claim{
		Boot: hello.Boot, Epoch: b.record().Epoch, Locks: locks,
		Tunnel:    b.tunnelOn(),
		Processes: b.w.processes(before.Handle.Limits),
	}
	b.mu.Lock()
	claim.Spec = b.spec
	b.mu.Unlock()
	claimed, err := s.Claim(ctx, claim)
	if err != nil {
		return err
	}
	b.remember(ctx, claimed.Spec)
	if claimed.Spec != nil && !agent.KeptOf(claimed.Spec).Equal(b.kept()) {
		b.keepInside(ctx, s)
	}
	if b.tunnelOn() != claim.Tunnel {
		b.restoreEgress()
		if err := s.Tunnel(ctx, b.tunnelOn()); err != nil {
			return err
		}
	}
	if restarted {
		b.event(messaging.EventTerminated, map[string]string{"reason": "restarted"})
	}
	return nil
}

// remember completes the record of a sandbox whose bucket was lost by what its
// agent keeps. The spec comes from inside a sandbox: it may name nothing that a
// request could not.
func (b *box) remember(ctx context.Context, kept *sandbox.Spec) {
	rec := b.record()
	if !rec.Rebuilt || kept == nil {
		return
	}
	if rec.Handle.Pool != "" && (kept.Tenant != rec.Handle.Tenant || kept.Name != rec.Handle.Name || kept.Generation != rec.Handle.Generation) {
		b.log.ErrorContext(ctx, "the sandbox was given to another name than its container has", "kept", kept.Name, "tenant", kept.Tenant)
		return
	}
	spec := *kept
	spec.Tenant, spec.Name, spec.Generation = rec.Handle.Tenant, rec.Handle.Name, rec.Handle.Generation
	spec.Bucket, spec.Limits, spec.Env = rec.Spec.Bucket, rec.Handle.Limits, nil
	err := spec.Validate()
	if err == nil {
		spec.Egress, err = b.w.egressOf(spec.Egress)
	}
	if err != nil {
		b.log.WarnContext(ctx, "the spec that the sandbox keeps is not used", "error", err)
		spec = rec.Spec
	}
	err = b.change(ctx, func(r *kv.Record) error {
		r.Spec, r.Egress, r.Pin, r.TTL, r.Rebuilt = spec, spec.Egress, spec.Pin, spec.TTL, false
		return nil
	})
	if err != nil {
		b.log.WarnContext(ctx, "the spec that the sandbox keeps waits for the next attachment", "error", err)
	}
}

// kept is what the agent should keep of the record.
func (b *box) kept() agent.Kept {
	rec := b.record()
	return agent.Kept{Egress: rec.Egress, Pin: rec.Pin, TTL: rec.TTL}
}

// keepInside tells the agent what changed, so that a lost record can be made
// anew as it is now. What fails is made good by the next attachment.
func (b *box) keepInside(ctx context.Context, s *agent.Session) {
	if err := s.Keep(ctx, b.kept()); err != nil {
		b.log.WarnContext(ctx, "what the sandbox keeps of its spec is out of date until the next attachment", "error", err)
	}
}

// attachFailed notes that the engine itself denies the sandbox.
func (b *box) attachFailed(ctx context.Context, err error) error {
	if sandbox.CodeOf(err) != sandbox.Gone {
		return err
	}
	return b.vanished(ctx, err)
}

// vanished writes down that the very engine denies the sandbox.
func (b *box) vanished(ctx context.Context, cause error) error {
	reason := "gone"
	if e := sandbox.AsError(cause); e.Reason != "" {
		reason = e.Reason
	}
	err := b.change(context.WithoutCancel(ctx), func(r *kv.Record) error {
		r.State, r.Owner = kv.Gone, ""
		r.Last = &kv.Termination{Reason: reason, At: time.Now().UTC()}
		return nil
	})
	if err != nil {
		return err
	}
	b.w.unreserve(ctx, b.record().Spec)
	b.event(messaging.EventGone, map[string]string{"reason": reason})
	gone := errGone(b.record())
	b.w.drop(b, gone)
	return gone
}

// serveEgress carries one connection from the sandbox to the proxy.
func (b *box) serveEgress(conn net.Conn) {
	if heir := b.heir.Load(); heir != nil {
		b = heir
	}
	b.w.proxy.ServeConn(b.w.ctx, conn, b.egress)
}

// tunnelOn reports whether the agent may send connections out.
func (b *box) tunnelOn() bool {
	e := b.record().Egress
	return b.w.caps.EgressTunnel && e.Mode == sandbox.EgressAllowlist && len(e.Hosts) > 0
}

package e2b

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"shoal/sandbox"
)

const (
	// createGrace is how long a create whose caller left may still answer, so
	// that its sandbox can be removed by id.
	createGrace = 10 * time.Second
	// cleanupTime bounds the removal of what a failed create left.
	cleanupTime = 30 * time.Second
	// lateAnswers is when a create whose answer was lost is looked for again, in
	// first waits of a repetition: 2 s.
	lateAnswers = 4
)

// Create implements [sandbox.Provider]. The limits are the template's: what was
// asked for and differs is a note of the handle.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec, progress sandbox.Progress) (sandbox.Handle, error) {
	if err := spec.Validate(); err != nil {
		return sandbox.Handle{}, err
	}
	if spec.Image != "" && spec.Image != p.cfg.Template {
		return sandbox.Handle{}, sandbox.Errorf(sandbox.Unsupported,
			"create %s: an E2B sandbox is made from the template %q and from no other image", objectName(spec), p.cfg.Template)
	}
	rules, err := p.rulesFor(spec.Egress)
	if err != nil {
		return sandbox.Handle{}, err
	}
	filter := p.ofGeneration(spec.Tenant, spec.Name, spec.Generation)
	if _, err := p.removeAll(ctx, filter); err != nil {
		return sandbox.Handle{}, translate("remove leftovers of "+objectName(spec), err)
	}
	if progress != nil {
		progress("create", 0, 0)
	}
	body := newSandbox{
		TemplateID: p.cfg.Template, Timeout: p.lifeSeconds(), AutoPause: true, Secure: true,
		AllowInternetAccess: rules.internet, Network: rules.network(),
		Metadata: p.metadata(spec, sandbox.NewID()),
	}
	made, err := p.createOrClean(ctx, body)
	if err != nil {
		return sandbox.Handle{}, p.createFailure(spec, err)
	}
	h, err := p.complete(ctx, spec, made)
	if err == nil && ctx.Err() == nil {
		h.Notes = append(h.Notes, rules.notes...)
		return h, nil
	}
	p.discard(ctx, made.SandboxID, filter)
	return sandbox.Handle{}, translate("create "+objectName(spec), errors.Join(err, ctx.Err()))
}

// createOrClean creates a sandbox; after a failure nothing of it is left. The
// request itself outlives its caller for a moment: an answer that comes then
// names what has to go.
func (p *Provider) createOrClean(ctx context.Context, body newSandbox) (access, error) {
	sending, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(createGrace, func() { cancel(context.Cause(ctx)) })
	})
	defer stop()
	made, err := p.api.create(sending, body)
	if err == nil {
		return made, nil
	}
	if e := asAPI(err); e == nil || !e.settled() {
		looks := 3
		if e != nil && e.Structured {
			looks = 1 // the server has answered, nothing comes later
		}
		p.lookAfter(ctx, map[string]string{metaFleet: p.cfg.Fleet, metaCreate: body.Metadata[metaCreate]}, looks)
	}
	return access{}, errors.Join(err, ctx.Err())
}

// lookAfter removes what a create with a lost answer may have made, now and a
// little later. What appears after that is the sweep's: nothing else names it.
func (p *Provider) lookAfter(ctx context.Context, filter map[string]string, looks int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	for look := 1; ; look++ {
		n, err := p.removeAll(ctx, filter)
		if err != nil {
			p.log.LogAttrs(ctx, slog.LevelWarn, "e2b create may have left a sandbox", slog.String("error", err.Error()))
		}
		if n > 0 || look >= looks || !sleep(ctx, lateAnswers*p.api.backoff) {
			return
		}
	}
}

// discard removes a sandbox that was made and is not handed out.
func (p *Provider) discard(ctx context.Context, id string, filter map[string]string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	err := p.api.remove(ctx, id)
	if err == nil || isGone(err) {
		_, err = p.removeAll(ctx, filter)
	}
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelError, "e2b sandbox is left behind",
			slog.String("sandbox", id), slog.String("error", err.Error()))
	}
	p.forget(id)
}

// removeAll deletes every sandbox that carries filter and says how many.
func (p *Provider) removeAll(ctx context.Context, filter map[string]string) (int, error) {
	found, err := p.api.list(ctx, filter)
	if err != nil {
		return 0, err
	}
	for i, d := range found {
		if err := p.api.remove(ctx, d.SandboxID); err != nil && !isGone(err) {
			return i, err
		}
		p.forget(d.SandboxID)
	}
	return len(found), nil
}

// complete reads a new sandbox back: its limits, and whether it will pause
// rather than die, which older servers forgot.
func (p *Provider) complete(ctx context.Context, spec sandbox.Spec, made access) (sandbox.Handle, error) {
	if made.AccessToken.IsZero() {
		return sandbox.Handle{}, engineError("E2B gave no access token, so that anybody could use the sandbox").Because("no_token")
	}
	r, err := p.remember(made.SandboxID, made.AccessToken, made.Domain, spec.Name)
	if err != nil {
		return sandbox.Handle{}, err
	}
	d, err := p.api.get(ctx, made.SandboxID)
	if err != nil {
		return sandbox.Handle{}, err
	}
	if d.Lifecycle != nil && d.Lifecycle.OnTimeout != "pause" {
		return sandbox.Handle{}, engineError("E2B would kill the sandbox at the end of its time, though a pause was asked for")
	}
	if err := p.checkTemplate(ctx, p.envdOf(made.SandboxID, r)); err != nil {
		return sandbox.Handle{}, err
	}
	engine, err := p.EngineID(ctx)
	if err != nil {
		return sandbox.Handle{}, err
	}
	h := sandbox.Handle{
		Provider: Kind, Engine: engine, Tenant: spec.Tenant, Name: spec.Name, Generation: spec.Generation,
		Ref: made.SandboxID, Limits: spec.Limits,
	}
	h.Notes = applyTemplate(&h.Limits, d)
	return h, nil
}

// applyTemplate puts the template's limits in place of those asked for.
func applyTemplate(l *sandbox.Limits, d detail) []string {
	var notes []string
	differ := func(what string, asked, got any) {
		notes = append(notes, fmt.Sprintf("%s is %v, fixed by the E2B template; %v was asked for", what, got, asked))
	}
	if d.CPUCount > 0 && l.CPU != float64(d.CPUCount) {
		differ("cpu", l.CPU, d.CPUCount)
		l.CPU = float64(d.CPUCount)
	}
	if d.MemoryMB > 0 && l.MemoryMB != d.MemoryMB {
		differ("memoryMb", l.MemoryMB, d.MemoryMB)
		l.MemoryMB = d.MemoryMB
	}
	if d.DiskSizeMB > 0 && l.DiskMB != d.DiskSizeMB {
		differ("diskMb", l.DiskMB, d.DiskSizeMB)
		l.DiskMB = d.DiskSizeMB
	}
	return notes
}

// checkTemplate looks once whether the template has our programs: E2B shows no
// image labels.
func (p *Provider) checkTemplate(ctx context.Context, e *envd) error {
	p.mu.Lock()
	checked := p.checked
	p.mu.Unlock()
	if checked {
		return nil
	}
	err := e.runToEnd(ctx, process{
		Cmd: "/bin/sh", Args: []string{"-c", "test -x " + agentProgram + " && test -x " + attachProgram}, Cwd: "/",
	})
	if ended, ok := errors.AsType[*exitError](err); ok && ended.Exited {
		return sandbox.Errorf(sandbox.Invalid, "the E2B template %q holds no agent; build it with `shoal e2b template`", p.cfg.Template)
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checked = true
	return nil
}

// createFailure gives a failed create its code: a 404 here speaks of the
// template, unless the route itself is unknown.
func (p *Provider) createFailure(spec sandbox.Spec, err error) error {
	if e := asAPI(err); e != nil && e.Status == 404 && e.Structured && !e.noRoute() {
		return sandbox.Errorf(sandbox.NotFound, "create %s: E2B has no template %q: %s", objectName(spec), p.cfg.Template, e.Message).
			From(sandbox.FromEngine).Wrap(err)
	}
	return translate("create "+objectName(spec), err)
}

package docker

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"shoal/sandbox"
)

const (
	// createLimit bounds everything of a create after the pull, cleanLimit its
	// clean-up.
	createLimit = 2 * time.Minute
	cleanLimit  = time.Minute
	// cancelGrace is how long a cancelled create waits for its own clean-up.
	cancelGrace = 30 * time.Second
)

// Create implements [sandbox.Provider].
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec, progress sandbox.Progress) (sandbox.Handle, error) {
	b, err := p.draw(&spec)
	if err != nil {
		return sandbox.Handle{}, err
	}
	if err := p.ensureImage(ctx, b.image, progress); err != nil {
		return sandbox.Handle{}, err
	}
	name := p.container(b.id)
	if !p.building.claim(name) {
		return sandbox.Handle{}, sandbox.Errorf(sandbox.Conflict, "this generation of sandbox %s is being created already", b.id.name)
	}
	h, err := outlive(ctx, p, func(work context.Context) (sandbox.Handle, error) {
		defer p.building.drop(name)
		return p.build(ctx, work, b)
	})
	if err != nil {
		return sandbox.Handle{}, translate("create sandbox "+string(b.id.name), err)
	}
	return h, nil
}

// outlive runs work to its end even when ctx ends, because an engine call that
// is cut off may still take effect after the clean-up. A caller that leaves
// waits a little, so that normally nothing is left when it has its answer.
func outlive[T any](ctx context.Context, p *Provider, work func(context.Context) (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	workCtx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), createLimit, errNoAnswer)
	ended := make(chan outcome, 1)
	p.work.Go(func() {
		defer cancel()
		value, err := work(workCtx)
		ended <- outcome{value, err}
	})
	select {
	case o := <-ended:
		return o.value, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-ended:
		return o.value, o.err
	case <-time.After(cancelGrace):
		var none T
		return none, ctx.Err()
	}
}

// build makes the objects of b and starts the container, on ctx; it gives up
// between two steps when caller has ended. On failure nothing is left.
func (p *Provider) build(caller, ctx context.Context, b *blueprint) (h sandbox.Handle, err error) {
	if err := p.remove(ctx, b.id); err != nil {
		return h, err
	}
	defer func() {
		if err != nil {
			p.undo(ctx, b.id, err)
		}
	}()
	engineID, err := p.EngineID(ctx)
	if err != nil {
		return h, err
	}
	for _, v := range b.volumes {
		if err := p.step(caller, ctx, request{method: http.MethodPost, path: "/volumes/create", body: v}, nil); err != nil {
			return h, err
		}
	}
	var made created
	name := p.container(b.id)
	create := request{method: http.MethodPost, path: "/containers/create", query: url.Values{"name": {name}}, body: b.container}
	if err := p.step(caller, ctx, create, &made); err != nil {
		return h, err
	}
	if err := p.start(caller, ctx, name); err != nil {
		return h, err
	}
	return sandbox.Handle{
		Provider: Kind, Engine: engineID, Tenant: b.id.tenant, Name: b.id.name, Generation: b.id.generation,
		Ref: made.ID, Limits: b.limits, Notes: b.notes,
	}, caller.Err()
}

func (p *Provider) step(caller, ctx context.Context, r request, out any) error {
	if err := caller.Err(); err != nil {
		return err
	}
	return p.engine.call(ctx, slowCall, r, out)
}

// start starts a container when one of the start tokens is free. Started
// already is success.
func (p *Provider) start(caller, ctx context.Context, name string) error {
	release, err := p.acquire(caller)
	if err != nil {
		return err
	}
	defer release()
	return p.engine.call(ctx, slowCall, request{method: http.MethodPost, path: "/containers/" + name + "/start"}, nil)
}

// undo removes what a failed create has made. Where the engine did not answer,
// the object may appear later, so it looks again.
func (p *Provider) undo(ctx context.Context, id identity, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	rounds := 1
	if _, broken := errors.AsType[*url.Error](cause); broken || errors.Is(cause, errNoAnswer) {
		rounds = 4
	}
	var err error
	for i := range rounds {
		if i > 0 && sleep(ctx, time.Second) != nil {
			break
		}
		err = p.remove(ctx, id)
	}
	if err != nil {
		p.conf.Logger.LogAttrs(ctx, slog.LevelWarn, "leftovers of a failed create remain; the sweep removes them",
			slog.String("sandbox", string(id.name)), slog.String("generation", id.generation), slog.Any("cause", err))
	}
}

// sleep waits for d or ctx's end.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

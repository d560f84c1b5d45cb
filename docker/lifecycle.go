package docker

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"shoal/sandbox"
)

// wakeLimit bounds a start or unpause with its wait for a start token.
const wakeLimit = 90 * time.Second

// stopSeconds is what a stop leaves the agent before it is killed: 3 s for the
// commands to end, then their kill and a sync.
const stopSeconds = "10"

// Resume implements [sandbox.Provider].
func (p *Provider) Resume(ctx context.Context, h sandbox.Handle) error {
	id, err := identityOf(h)
	if err != nil {
		return err
	}
	err = p.wake(ctx, p.container(id))
	if isNoContainer(err) {
		return gone(h)
	}
	return translate("resume sandbox "+string(h.Name), err)
}

// wake brings a container to running, once for all who ask meanwhile.
func (p *Provider) wake(ctx context.Context, name string) error {
	return p.wakes.do(ctx, name, wakeLimit, nil, func(ctx context.Context, _ sandbox.Progress) error {
		for {
			c, err := p.inspect(ctx, name)
			if err != nil || c.State.Status == "running" {
				return err
			}
			if c.State.Status != "paused" {
				return p.start(ctx, ctx, name)
			}
			if err := p.act(ctx, quickCall, name, "unpause", nil); !isNotPaused(err) {
				return err
			}
			// A late event of the pause can overwrite the state after the unpause;
			// the event of the unpause follows (seen on Engine 20.10 under load).
			if err := sleep(ctx, removePoll); err != nil {
				return err
			}
		}
	})
}

// thaw unpauses a container whose state says paused, before it is ended.
func (p *Provider) thaw(ctx context.Context, c *container, name string) error {
	if c.State.Status != "paused" {
		return nil
	}
	if err := p.act(ctx, quickCall, name, "unpause", nil); !isNotPaused(err) {
		return err
	}
	return nil
}

// act posts one of the container's verbs.
func (p *Provider) act(ctx context.Context, limit time.Duration, name, verb string, query url.Values) error {
	return p.engine.call(ctx, limit, request{method: http.MethodPost, path: "/containers/" + name + "/" + verb, query: query}, nil)
}

// Suspend implements [sandbox.Provider].
func (p *Provider) Suspend(ctx context.Context, h sandbox.Handle, mode sandbox.SuspendMode) error {
	id, err := identityOf(h)
	if err != nil {
		return err
	}
	switch mode {
	case sandbox.SuspendMemory:
		err = p.pause(ctx, p.container(id))
	case sandbox.SuspendDisk:
		end := p.links.ending(p.container(id))
		if err = p.stop(ctx, p.container(id)); err == nil {
			end()
		}
	default:
		return sandbox.InvalidField("mode", "%q; use memory or disk", mode)
	}
	if isNoContainer(err) {
		return gone(h)
	}
	return translate("suspend sandbox "+string(h.Name), err)
}

func (p *Provider) pause(ctx context.Context, name string) error {
	c, err := p.inspect(ctx, name)
	if err != nil || c.State.Status != "running" {
		return err
	}
	err = p.act(ctx, quickCall, name, "pause", nil)
	if err == nil {
		return nil
	}
	// A pause can fail after it has frozen the processes: believe the state,
	// and where it says running make sure that they do run.
	now, lookErr := p.inspect(ctx, name)
	switch {
	case lookErr != nil:
		return err
	case now.State.Status != "running": // paused after all, or it has stopped meanwhile
		return nil
	}
	_ = p.act(ctx, quickCall, name, "unpause", nil) // "not paused" is what we hope to hear
	return err
}

func (p *Provider) stop(ctx context.Context, name string) error {
	c, err := p.inspect(ctx, name)
	if err != nil {
		return err
	}
	if err := p.thaw(ctx, &c, name); err != nil {
		return err
	}
	return p.act(ctx, slowCall, name, "stop", url.Values{"t": {stopSeconds}})
}

// Reset implements [sandbox.Provider].
func (p *Provider) Reset(ctx context.Context, h sandbox.Handle) error {
	id, err := identityOf(h)
	if err != nil {
		return err
	}
	end := p.links.ending(p.container(id))
	if err = p.restart(ctx, p.container(id)); err == nil {
		end()
	}
	if isNoContainer(err) {
		return gone(h)
	}
	return translate("reset sandbox "+string(h.Name), err)
}

func (p *Provider) restart(ctx context.Context, name string) error {
	before, err := p.inspect(ctx, name)
	if err != nil {
		return err
	}
	if err := p.thaw(ctx, &before, name); err != nil {
		return err
	}
	release, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	err = p.act(ctx, slowCall, name, "restart", url.Values{"t": {"0"}})
	if err == nil || isNoContainer(err) {
		return err
	}
	// The answer was lost or an error: the new start time tells whether it happened.
	after, lookErr := p.inspect(ctx, name)
	if lookErr == nil && after.State.Status == "running" && after.State.StartedAt.After(before.State.StartedAt) {
		return nil
	}
	return err
}

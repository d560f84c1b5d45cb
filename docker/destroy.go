package docker

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"time"

	"shoal/sandbox"
)

const (
	// removeLimit bounds the removal of one sandbox, all waits included.
	removeLimit = 90 * time.Second
	removePoll  = 100 * time.Millisecond
	// removeTries is how often a refusal other than "in progress" is tried anew:
	// a mount may be busy for a moment.
	removeTries = 5
)

// Destroy implements [sandbox.Provider].
func (p *Provider) Destroy(ctx context.Context, h sandbox.Handle) error {
	id, err := identityOf(h)
	if err != nil {
		return err
	}
	return translate("destroy sandbox "+string(h.Name), p.remove(ctx, id))
}

// DestroyByName implements [sandbox.Provider].
func (p *Provider) DestroyByName(ctx context.Context, tenant sandbox.Tenant, name sandbox.Name) error {
	if err := errors.Join(tenant.Validate(), name.Validate()); err != nil {
		return sandbox.AsError(err)
	}
	found, err := p.survey(ctx, LabelTenant+"="+string(tenant), LabelName+"="+string(name))
	if err != nil {
		return translate("look for sandbox "+string(name), err)
	}
	all, err := p.survey(ctx) // what came from the warm pool is labelled otherwise
	if err != nil {
		return translate("look for sandbox "+string(name), err)
	}
	maps.Copy(found, all)
	var errs []error
	for id := range found {
		if id.tenant == tenant && id.name == name {
			errs = append(errs, p.remove(ctx, id))
		}
	}
	return translate("destroy sandbox "+string(name), errors.Join(errs...))
}

// remove removes the container of id and then its volumes. What is missing is
// success.
func (p *Provider) remove(ctx context.Context, id identity) error {
	ctx, cancel := context.WithTimeoutCause(ctx, removeLimit, errNoAnswer)
	defer cancel()
	end := p.links.ending(p.container(id))
	if err := p.removeContainer(ctx, p.container(id)); err != nil {
		return err
	}
	end()
	if id.pool != "" { // its claim may have ended before the new name
		if err := p.removeContainer(ctx, p.container(id.made())); err != nil {
			return err
		}
	}
	return errors.Join(p.removeVolume(ctx, p.workspace(id)), p.removeVolume(ctx, p.skills(id)))
}

func (p *Provider) removeContainer(ctx context.Context, name string) error {
	for try := 0; ; {
		c, err := p.inspect(ctx, name)
		if isNoContainer(err) {
			return nil
		}
		if err != nil {
			return err
		}
		// Killing a frozen container takes 12 s under gVisor. A failure here shows
		// again in the removal.
		_ = p.thaw(ctx, &c, name)
		err = p.engine.call(ctx, slowCall, request{
			method: http.MethodDelete, path: "/containers/" + name,
			query: url.Values{"force": {"1"}, "v": {"1"}}, // v: volumes that an image declares
		}, nil)
		switch {
		case err == nil, isNoContainer(err):
			return nil
		case isBeingRemoved(err): // somebody else does it: wait for the end
		case try+1 == removeTries:
			return err
		default:
			try++
		}
		if err := sleep(ctx, removePoll); err != nil {
			return err
		}
	}
}

func (p *Provider) removeVolume(ctx context.Context, name string) error {
	for try := 1; ; try++ {
		err := p.engine.call(ctx, slowCall, request{method: http.MethodDelete, path: "/volumes/" + name}, nil)
		switch {
		case err == nil, isNoVolume(err):
			return nil
		case !isConflict(err) || try == 10*removeTries: // a conflict: its container is just going
			return err
		}
		if err := sleep(ctx, removePoll); err != nil {
			return err
		}
	}
}

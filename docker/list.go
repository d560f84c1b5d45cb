package docker

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"shoal/sandbox"
)

// Inspect implements [sandbox.Provider].
func (p *Provider) Inspect(ctx context.Context, h sandbox.Handle) (sandbox.Object, error) {
	id, err := identityOf(h)
	if err != nil {
		return sandbox.Object{}, err
	}
	c, err := p.inspect(ctx, p.container(id))
	if isNoContainer(err) {
		return sandbox.Object{Handle: h, State: sandbox.Absent}, nil
	}
	if err != nil {
		return sandbox.Object{}, translate("look at sandbox "+string(h.Name), err)
	}
	if found, role, ok := p.parse(c.Name, c.Config.Labels); !ok || role != roleSandbox || found != id {
		return sandbox.Object{}, engineFault("the engine's container for sandbox %s is not one of this fleet's", h.Name)
	}
	h.Ref, h.Limits = c.ID, limitsOf(&c)
	state, complete := stateOf(c.State.Status)
	return sandbox.Object{
		Handle: h, State: state, Bucket: c.Config.Labels[LabelBucket], Created: c.Created,
		OOMKilled: c.State.OOMKilled, Complete: complete,
	}, nil
}

func (p *Provider) inspect(ctx context.Context, name string) (container, error) {
	var c container
	err := p.engine.call(ctx, quickCall, request{method: http.MethodGet, path: "/containers/" + name + "/json"}, &c)
	return c, err
}

// stateOf maps the engine's word for a container's state. A container that was
// never started, or is half removed, is not complete.
func stateOf(status string) (state sandbox.RunState, complete bool) {
	switch status {
	case "running":
		return sandbox.Running, true
	case "paused":
		return sandbox.Paused, true
	case "exited", "restarting":
		return sandbox.Stopped, true
	}
	return sandbox.Stopped, false // created, removing, dead
}

// List implements [sandbox.Provider].
func (p *Provider) List(ctx context.Context) ([]sandbox.Object, error) {
	found, err := p.survey(ctx)
	if err != nil {
		return nil, translate("list the fleet's sandboxes", err)
	}
	engineID, err := p.EngineID(ctx)
	if err != nil {
		return nil, err
	}
	objects := make([]sandbox.Object, 0, len(found))
	for id, parts := range found {
		o := parts.object
		o.Handle.Provider, o.Engine = Kind, engineID
		o.Tenant, o.Name, o.Generation, o.Pool = id.tenant, id.name, id.generation, id.pool
		o.Complete = o.Complete && parts.volumes == 2
		objects = append(objects, o)
	}
	return objects, nil
}

// parts is what the engine holds of one sandbox.
type parts struct {
	object  sandbox.Object
	volumes int
}

// survey lists the containers and volumes of this fleet that carry all labels.
func (p *Provider) survey(ctx context.Context, labels ...string) (map[identity]*parts, error) {
	labels = append([]string{LabelFleet + "=" + p.conf.Fleet}, labels...)
	filters, err := json.Marshal(map[string][]string{"label": labels})
	if err != nil {
		return nil, err
	}
	query := url.Values{"filters": {string(filters)}}
	// Volumes first: a sandbox made in between then shows as incomplete (and
	// young), never as complete with a missing container.
	var volumes volumeList
	if err := p.engine.call(ctx, slowCall, request{method: http.MethodGet, path: "/volumes", query: query}, &volumes); err != nil {
		return nil, err
	}
	var containers []listed
	query = url.Values{"filters": {string(filters)}, "all": {"1"}}
	if err := p.engine.call(ctx, slowCall, request{method: http.MethodGet, path: "/containers/json", query: query}, &containers); err != nil {
		return nil, err
	}
	return p.group(volumes.Volumes, containers), nil
}

func (p *Provider) group(volumes []volume, containers []listed) map[identity]*parts {
	found := make(map[identity]*parts)
	entry := func(id identity, bucket string, made time.Time) *parts {
		if found[id] == nil {
			found[id] = &parts{object: sandbox.Object{State: sandbox.Stopped, Bucket: bucket, Created: made}}
		}
		return found[id]
	}
	for _, v := range volumes {
		if id, _, ok := p.parse(v.Name, v.Labels); ok {
			entry(id, v.Labels[LabelBucket], v.CreatedAt).volumes++
		}
	}
	for _, c := range containers {
		if len(c.Names) == 0 {
			continue
		}
		id, _, ok := p.parse(c.Names[0], c.Labels)
		if !ok {
			continue
		}
		made := time.Unix(c.Created, 0)
		o := &entry(id, c.Labels[LabelBucket], made).object
		o.Ref, o.Created, o.Bucket = c.ID, made, c.Labels[LabelBucket]
		o.State, o.Complete = stateOf(c.State)
	}
	// The volumes of a claimed sandbox are still named and labelled as they were
	// made.
	for id, parts := range found {
		made := found[id.made()]
		if id.pool == "" || made == nil || made.object.Ref != "" {
			continue
		}
		parts.volumes = made.volumes
		delete(found, id.made())
	}
	return found
}

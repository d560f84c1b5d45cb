package e2b

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"shoal/sandbox"
)

// Inspect implements [sandbox.Provider]. E2B does not say whether a paused
// sandbox has its memory: Stopped is what this worker itself suspended that
// way, and Paused everything else.
func (p *Provider) Inspect(ctx context.Context, h sandbox.Handle) (sandbox.Object, error) {
	op := "inspect sandbox " + string(h.Name)
	id, err := p.idOf(ctx, h)
	if sandbox.CodeOf(err) == sandbox.Gone {
		return sandbox.Object{Handle: h, State: sandbox.Absent}, nil
	}
	if err != nil {
		return sandbox.Object{}, err
	}
	d, err := p.api.get(ctx, id)
	if isGone(err) {
		p.forget(id)
		return sandbox.Object{Handle: h, State: sandbox.Absent}, nil
	}
	if err != nil {
		return sandbox.Object{}, translate(op, err)
	}
	if !matches(d.Metadata, p.ofGeneration(h.Tenant, h.Name, h.Generation)) {
		return sandbox.Object{}, sandbox.Errorf(sandbox.Conflict, "%s: its id belongs to another sandbox", op).From(sandbox.FromEngine)
	}
	return p.object(d)
}

// object reads one sandbox of ours.
func (p *Provider) object(d detail) (sandbox.Object, error) {
	engine, err := p.EngineID(context.Background())
	if err != nil {
		return sandbox.Object{}, err
	}
	o := sandbox.Object{
		Handle: sandbox.Handle{
			Provider: Kind, Engine: engine, Ref: d.SandboxID,
			Tenant: sandbox.Tenant(d.Metadata[metaTenant]), Name: sandbox.Name(d.Metadata[metaName]),
			Generation: d.Metadata[metaGeneration],
			Limits:     sandbox.Limits{CPU: float64(d.CPUCount), MemoryMB: d.MemoryMB, DiskMB: d.DiskSizeMB},
		},
		Bucket: d.Metadata[metaBucket], Created: d.StartedAt, Complete: true,
	}
	switch d.State {
	case stateRunning:
		o.State = sandbox.Running
	case statePaused:
		o.State = sandbox.Paused
		if p.isStopped(d) {
			o.State = sandbox.Stopped
		}
	default:
		return o, engineError("E2B knows a state of its own: %q", clean(d.State))
	}
	return o, errors.Join(o.Tenant.Validate(), o.Name.Validate(), sandbox.ValidateID("generation", o.Generation))
}

// List implements [sandbox.Provider]. Created is the start of the present run:
// E2B keeps no other time. Two sandboxes of one generation are both returned,
// with a warning in the log.
func (p *Provider) List(ctx context.Context) ([]sandbox.Object, error) {
	found, err := p.api.list(ctx, map[string]string{metaFleet: p.cfg.Fleet})
	if err != nil {
		return nil, translate("list sandboxes", err)
	}
	all := make([]sandbox.Object, 0, len(found))
	seen := map[[3]string]string{}
	for _, d := range found {
		o, err := p.object(d)
		if err != nil {
			p.log.LogAttrs(ctx, slog.LevelWarn, "e2b sandbox of this fleet is not understood",
				slog.String("ref", d.SandboxID), slog.String("error", err.Error()))
			continue
		}
		key := [3]string{string(o.Tenant), string(o.Name), o.Generation}
		if other, twice := seen[key]; twice {
			p.log.LogAttrs(ctx, slog.LevelWarn, "e2b has two sandboxes of one generation",
				slog.String("sandbox", string(o.Name)), slog.String("ref", o.Ref), slog.String("other", other))
		}
		seen[key] = o.Ref
		all = append(all, o)
	}
	return all, nil
}

// Resume implements [sandbox.Provider]. Its time to live is then at least the
// setting, and never less than before.
func (p *Provider) Resume(ctx context.Context, h sandbox.Handle) error {
	id, err := p.idOf(ctx, h)
	if err != nil {
		return err
	}
	_, err = p.wake(ctx, id, h.Name)
	return err
}

// wake brings a sandbox to running, once for all who ask at the same time.
func (p *Provider) wake(ctx context.Context, id string, name sandbox.Name) (reach, error) {
	result := p.wakes.DoChan(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*slowCall)
		defer cancel()
		a, _, err := p.api.connect(ctx, id, p.lifeSeconds(), false)
		if err != nil {
			return reach{}, p.settle(ctx, "resume sandbox "+string(name), id, err)
		}
		return p.remember(id, a.AccessToken, a.Domain, name)
	})
	select {
	case <-ctx.Done():
		return reach{}, sandbox.AsError(ctx.Err())
	case r := <-result:
		out, _ := r.Val.(reach)
		return out, r.Err
	}
}

// Suspend implements [sandbox.Provider].
func (p *Provider) Suspend(ctx context.Context, h sandbox.Handle, mode sandbox.SuspendMode) error {
	op := "suspend sandbox " + string(h.Name)
	id, err := p.idOf(ctx, h)
	if err != nil {
		return err
	}
	if mode == sandbox.SuspendMemory {
		err = p.pause(ctx, id, true)
	} else {
		err = p.stop(ctx, id, h.Name)
	}
	if err == nil || alreadyPaused(err) {
		return nil
	}
	return p.settle(ctx, op, id, err)
}

// stop pauses without memory. E2B drops the memory of running sandboxes only,
// so that one which was paused otherwise is resumed for it.
func (p *Provider) stop(ctx context.Context, id string, name sandbox.Name) error {
	p.sync(ctx, id, name)
	err := p.pause(ctx, id, false)
	if alreadyPaused(err) {
		d, getErr := p.api.get(ctx, id)
		if getErr != nil || p.isStopped(d) {
			return getErr
		}
		if _, err := p.wake(ctx, id, name); err != nil {
			return err
		}
		err = p.pause(ctx, id, false)
	}
	if err != nil {
		return err
	}
	if d, err := p.api.get(ctx, id); err == nil && d.State == statePaused {
		p.noteStopped(id, d.EndAt)
	}
	return nil
}

func (p *Provider) noteStopped(id string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.stopped) >= maxReach {
		clear(p.stopped) // they read as Paused then, which holds, too
	}
	p.stopped[id] = at
}

// isStopped reports whether d is still in the pause that this worker made
// without memory.
func (p *Provider) isStopped(d detail) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, known := p.stopped[d.SandboxID]
	return known && d.State == statePaused && at.Equal(d.EndAt)
}

// syncWait bounds the wait for a sandbox to write out what it has cached.
const syncWait = 5 * time.Second

// sync asks a sandbox to write its cache to the disk, as a pause without memory
// may lose the rest. It is best effort: a reset comes when nothing else answers.
func (p *Provider) sync(ctx context.Context, id string, name sandbox.Name) {
	ctx, cancel := context.WithTimeout(ctx, syncWait)
	defer cancel()
	p.mu.Lock()
	r, known := p.reach[id]
	p.mu.Unlock()
	var err error
	if !known { // another worker's until now
		r, err = p.reachRunning(ctx, id, name)
	}
	if err == nil {
		err = p.envdOf(id, r).runToEnd(ctx, process{Cmd: "/bin/sync", Cwd: "/"})
	}
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelDebug, "e2b sandbox was not synced", slog.String("ref", id), slog.String("error", err.Error()))
	}
}

func alreadyPaused(err error) bool {
	e := asAPI(err)
	return e != nil && e.Status == http.StatusConflict && strings.Contains(e.Message, textPaused)
}

// pause asks for a pause and waits while another transition is in progress.
func (p *Provider) pause(ctx context.Context, id string, memory bool) error {
	for attempt := 1; ; attempt++ {
		err := p.api.pause(ctx, id, memory)
		e := asAPI(err)
		busy := e != nil && e.Status == http.StatusConflict && !alreadyPaused(err)
		if !busy || attempt >= maxAttempts || !sleep(ctx, p.api.backoff<<(attempt-1)) {
			return err
		}
	}
}

// Destroy implements [sandbox.Provider]. It removes every sandbox of the
// generation, also one that a lost answer left.
func (p *Provider) Destroy(ctx context.Context, h sandbox.Handle) error {
	op := "destroy sandbox " + string(h.Name)
	if h.Ref != "" {
		id, err := p.idOf(ctx, h)
		if err != nil {
			return err
		}
		p.forget(id)
		if err := p.api.remove(ctx, id); err != nil && !isGone(err) {
			if err := p.settle(ctx, op, id, err); sandbox.CodeOf(err) != sandbox.Gone {
				return err
			}
		}
	}
	_, err := p.removeAll(ctx, p.ofGeneration(h.Tenant, h.Name, h.Generation))
	return translate(op, err)
}

// DestroyByName implements [sandbox.Provider].
func (p *Provider) DestroyByName(ctx context.Context, tenant sandbox.Tenant, name sandbox.Name) error {
	_, err := p.removeAll(ctx, p.ofName(tenant, name))
	return translate("destroy sandbox "+string(name), err)
}

// Reset implements [sandbox.Provider]: a pause without memory and a boot from
// disk. Only the answer 201 says that it booted; 200 means that somebody else
// had resumed it meanwhile. That a server too old to know the field keeps the
// memory can be seen only by the agent's boot, which is then the old one.
func (p *Provider) Reset(ctx context.Context, h sandbox.Handle) error {
	op := "reset sandbox " + string(h.Name)
	id, err := p.idOf(ctx, h)
	if err != nil {
		return err
	}
	p.sync(ctx, id, h.Name)
	for range 3 {
		if err := p.pauseForReset(ctx, id); err != nil {
			return p.settle(ctx, op+": it did not happen", id, err)
		}
		a, booted, err := p.api.connect(ctx, id, p.lifeSeconds(), true)
		if err != nil {
			p.bringBack(ctx, id, h.Name)
			return p.settle(ctx, op+": it did not happen", id, err)
		}
		if booted {
			_, err := p.remember(id, a.AccessToken, a.Domain, h.Name)
			return err
		}
	}
	return engineError("%s: it did not happen, as the sandbox was resumed in between each time", op)
}

// pauseForReset pauses without memory, or with it where the server cannot.
func (p *Provider) pauseForReset(ctx context.Context, id string) error {
	err := p.pause(ctx, id, false)
	if e := asAPI(err); e != nil && e.Status == http.StatusBadRequest {
		err = p.pause(ctx, id, true)
	}
	if alreadyPaused(err) {
		return nil
	}
	return err
}

// bringBack undoes the pause of a reset that failed.
func (p *Provider) bringBack(ctx context.Context, id string, name sandbox.Name) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), slowCall+time.Second)
	defer cancel()
	if _, err := p.wake(ctx, id, name); err != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "e2b sandbox stays paused after a failed reset",
			slog.String("sandbox", string(name)), slog.String("error", err.Error()))
	}
}

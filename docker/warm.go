package docker

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"shoal/sandbox"
)

var _ sandbox.Warmer = (*Provider)(nil)

// Recipe implements [sandbox.Warmer].
func (p *Provider) Recipe(ctx context.Context, spec sandbox.Spec) (string, error) {
	b, err := p.draw(&spec)
	if err != nil {
		return "", err
	}
	img, err := p.inspectImage(ctx, b.image)
	if isNoImage(err) {
		return "", sandbox.Errorf(sandbox.NotFound, "the engine does not have the image %s yet", b.image).Because("image").From(sandbox.FromEngine)
	}
	if err != nil {
		return "", translate("look at the image "+b.image, err)
	}
	// Prefix and fleet are in the names and labels already.
	return strings.Join([]string{img.ID, p.conf.Runtime, b.container.HostConfig.NetworkMode, p.conf.VolumeDriver}, " "), nil
}

// Fits implements [sandbox.Warmer]. A container's mounts cannot change: the
// disk must be the same, and /tmp no larger than it would be by itself. runsc
// has no command to change limits (release 20221219).
func (p *Provider) Fits(member, spec sandbox.Spec) bool {
	mine, err := p.draw(&member)
	if err != nil {
		return false
	}
	theirs, err := p.draw(&spec)
	switch {
	case err != nil,
		mine.image != theirs.image,
		mine.container.HostConfig.NetworkMode != theirs.container.HostConfig.NetworkMode,
		member.Limits.DiskMB != spec.Limits.DiskMB,
		tmpMB(member.Limits) > tmpMB(spec.Limits):
		return false
	}
	return p.conf.Runtime != RuntimeRunsc || member.Limits == spec.Limits
}

// Claim implements [sandbox.Warmer]. The container's id does not change, so
// that what is attached stays so.
func (p *Provider) Claim(ctx context.Context, member sandbox.Handle, spec sandbox.Spec) (sandbox.Handle, error) {
	h := member.Claimed(spec)
	id, err := identityOf(h)
	if err != nil {
		return h, err
	}
	if member.Tenant != sandbox.PoolTenant || spec.Generation != member.Generation || spec.Tenant.Validate() != nil {
		return h, sandbox.Errorf(sandbox.Internal, "sandbox %s is claimed as what it is not", spec.Name)
	}
	op := "claim a sandbox of the pool for " + string(spec.Name)
	if err := p.rename(ctx, p.container(id.made()), p.container(id)); err != nil {
		if isNoContainer(err) {
			return h, gone(h)
		}
		return h, translate(op, err)
	}
	if l := spec.Limits; l.CPU != member.Limits.CPU || l.MemoryMB != member.Limits.MemoryMB || l.Pids != member.Limits.Pids {
		if err := p.relimit(ctx, p.container(id), l); err != nil {
			return h, translate(op, err)
		}
	}
	if tmp := tmpMB(member.Limits); tmp < tmpMB(spec.Limits) {
		h.Notes = append(slices.Clip(h.Notes), "/tmp is smaller than half the memory: the sandbox was made ahead")
	}
	return h, nil
}

// rename gives a container its new name; one that has it already is success.
func (p *Provider) rename(ctx context.Context, from, to string) error {
	err := p.act(ctx, quickCall, from, "rename", url.Values{"name": {to}})
	if isNoContainer(err) {
		_, err = p.inspect(ctx, to)
	}
	return err
}

// relimit changes cpu, memory and processes of a running container; the new
// limits hold when it returns.
func (p *Provider) relimit(ctx context.Context, name string, l sandbox.Limits) error {
	memory := int64(l.MemoryMB) << 20
	return p.engine.call(ctx, slowCall, request{
		method: http.MethodPost, path: "/containers/" + name + "/update",
		body: containerUpdate{
			Memory: memory, MemorySwap: memory,
			NanoCpus: int64(math.Round(l.CPU * 1e9)), PidsLimit: p.pidsLimit(l.Pids),
		},
	}, nil)
}

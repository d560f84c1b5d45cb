package sandbox

import "context"

// PoolTenant holds the sandboxes that were made before anybody asked for them,
// the warm pool. No kernel can be of this name: see [Tenant.Validate].
const PoolTenant Tenant = "_pool"

// ValidateAny is [Tenant.Validate] that admits the fleet's own [PoolTenant]
// too: for engine objects and for what workers say among themselves, never for
// what a kernel writes.
func (t Tenant) ValidateAny() error {
	if t == PoolTenant {
		return nil
	}
	return t.Validate()
}

// Warmer is implemented by providers whose sandboxes can be made ahead and
// given a name and limits later.
type Warmer interface {
	// Recipe names all that is fixed when a sandbox of spec is made, as the
	// engine would make it now: the image behind its reference, the runtime and
	// so on. A sandbox made by another recipe must not be handed out any more.
	// Codes: NotFound (the engine has no such image), Engine, and Create's.
	Recipe(ctx context.Context, spec Spec) (string, error)
	// Fits reports whether a sandbox made for member can become what spec asks
	// for. It needs no engine.
	Fits(member, spec Spec) bool
	// Claim gives a running sandbox of the pool spec's name and limits; its
	// generation stays and must be spec's. The handle that it returns, and
	// [Handle.Claimed] without it, destroy the sandbox however far a claim came.
	// Again with the same arguments is success. Gone when it no longer exists.
	Claim(ctx context.Context, member Handle, spec Spec) (Handle, error)
}

// Claimed returns the handle that a member of the pool has once spec's name
// and limits are its own.
func (h Handle) Claimed(spec Spec) Handle {
	h.Pool = h.Name
	h.Tenant, h.Name, h.Limits = spec.Tenant, spec.Name, spec.Limits
	return h
}

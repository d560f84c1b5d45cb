package sandboxtest

import (
	"context"

	"shoal/sandbox"
)

var _ sandbox.Warmer = (*Fake)(nil)

// SetRecipe changes what the fake makes its sandboxes by.
func (f *Fake) SetRecipe(recipe string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recipe = recipe
}

// Recipe implements [sandbox.Warmer].
func (f *Fake) Recipe(ctx context.Context, spec sandbox.Spec) (string, error) {
	if err := f.begin(ctx, "Recipe", sandbox.Handle{Tenant: spec.Tenant, Name: spec.Name}); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return "fake " + f.recipe + " " + spec.Image, f.judgeLocked(&spec)
}

// Fits implements [sandbox.Warmer].
func (f *Fake) Fits(member, spec sandbox.Spec) bool {
	return member.Image == spec.Image && member.Limits.DiskMB == spec.Limits.DiskMB && spec.Egress.Mode != sandbox.EgressOpen
}

// Claim implements [sandbox.Warmer]. The hook is called before, as "Claim", and
// once the sandbox has its new name, as "Claimed".
func (f *Fake) Claim(ctx context.Context, member sandbox.Handle, spec sandbox.Spec) (sandbox.Handle, error) {
	h := member.Claimed(spec)
	if err := f.begin(ctx, "Claim", h); err != nil {
		return h, err
	}
	if err := f.rename(member, h); err != nil {
		return h, err
	}
	return h, f.begin(ctx, "Claimed", h)
}

func (f *Fake) rename(member, h sandbox.Handle) error {
	if f.box(h) != nil {
		return nil
	}
	b := f.box(member)
	if b == nil {
		return gone(h)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == sandbox.Absent {
		return gone(h)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.boxes, identityOf(member))
	f.boxes[identityOf(h)] = b
	b.handle = h
	return nil
}

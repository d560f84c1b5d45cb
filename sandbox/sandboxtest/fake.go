package sandboxtest

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"shoal/sandbox"
)

// FakeKind is the fake's name in handles.
const FakeKind = "fake"

// DefaultImage is the image that a fake has at first and takes for specs that
// name none.
const DefaultImage = "shoal-sandbox:dev"

// Fake is a provider in memory, with one engine of its own. Several workers may
// share it, as they share an engine. Safe for concurrent use.
type Fake struct {
	dir    string
	engine string

	mu     sync.Mutex // guards what follows; a box is never locked while it is held
	boxes  map[identity]*box
	images map[string]bool
	recipe string
	hook   func(op string, h sandbox.Handle) error
}

type identity struct {
	tenant     sandbox.Tenant
	name       sandbox.Name
	generation string
}

func identityOf(h sandbox.Handle) identity { return identity{h.Tenant, h.Name, h.Generation} }

var _ sandbox.Provider = (*Fake)(nil)

// NewFake returns a fake that keeps the sandboxes' files below dir.
func NewFake(dir string) *Fake {
	return &Fake{
		dir: dir, engine: sandbox.NewID(), boxes: make(map[identity]*box),
		images: map[string]bool{DefaultImage: true},
	}
}

// Close destroys every sandbox and waits for all that the fake has started.
func (f *Fake) Close() {
	for _, b := range f.all(func(identity) bool { return true }) {
		f.drop(b)
	}
}

// SetImage makes the engine have an image; ours says that it carries the
// agent's label. References that were never set cannot be pulled either.
func (f *Fake) SetImage(ref string, ours bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.images[ref] = ours
}

// SetHook makes every call begin with hook, which may count, wait, or fail the
// call in the engine's place. op is the method's name.
func (f *Fake) SetHook(hook func(op string, h sandbox.Handle) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// Cut breaks every stream to a sandbox's agent, as a cut connection to the
// engine does. The sandbox goes on.
func (f *Fake) Cut(h sandbox.Handle) {
	if b := f.box(h); b != nil {
		b.cut()
	}
}

// ServeEgress makes l the place where the programs of a running sandbox find the
// proxy, until its boot ends: the fake's sandboxes share this machine's loopback,
// so that it cannot be the agent's usual address. It closes l.
func (f *Fake) ServeEgress(h sandbox.Handle, l net.Listener) error {
	return f.with(context.Background(), "ServeEgress", h, func(b *box) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.machine == nil {
			return errors.Join(sandbox.Errorf(sandbox.Unavailable, "sandbox %s does not run", h.Name), l.Close())
		}
		b.machine.egress(l)
		return nil
	})
}

func (f *Fake) begin(ctx context.Context, op string, h sandbox.Handle) error {
	if err := ctx.Err(); err != nil {
		return sandbox.AsError(err)
	}
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		return hook(op, h)
	}
	return nil
}

func (f *Fake) box(h sandbox.Handle) *box {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.boxes[identityOf(h)]
}

func (f *Fake) all(want func(identity) bool) []*box {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []*box
	for id, b := range f.boxes {
		if want(id) {
			found = append(found, b)
		}
	}
	return found
}

// Kind implements [sandbox.Provider].
func (f *Fake) Kind() string { return FakeKind }

// EngineID implements [sandbox.Provider].
func (f *Fake) EngineID(ctx context.Context) (string, error) {
	return f.engine, f.begin(ctx, "EngineID", sandbox.Handle{})
}

// Capabilities implements [sandbox.Provider].
func (f *Fake) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{
		Suspend:      []sandbox.SuspendMode{sandbox.SuspendMemory, sandbox.SuspendDisk},
		LimitsEach:   true,
		Egress:       []sandbox.EgressMode{sandbox.EgressNone, sandbox.EgressAllowlist},
		EgressTunnel: true,
	}
}

// Create implements [sandbox.Provider].
func (f *Fake) Create(ctx context.Context, spec sandbox.Spec, _ sandbox.Progress) (sandbox.Handle, error) {
	h := sandbox.Handle{
		Provider: FakeKind, Engine: f.engine, Tenant: spec.Tenant, Name: spec.Name, Generation: spec.Generation,
		Ref: sandbox.NewID(), Limits: spec.Limits, Notes: []string{"diskMb is not enforced: this is a fake"},
	}
	if err := f.begin(ctx, "Create", h); err != nil {
		return sandbox.Handle{}, err
	}
	if err := f.judge(&spec); err != nil {
		return sandbox.Handle{}, err
	}
	if old := f.box(h); old != nil {
		f.drop(old)
	}
	b := &box{handle: h, bucket: spec.Bucket, created: time.Now(), dir: filepath.Join(f.dir, h.Ref)}
	if err := b.build(); err != nil {
		return sandbox.Handle{}, errors.Join(sandbox.Errorf(sandbox.Internal, "make the fake sandbox").Wrap(err), os.RemoveAll(b.dir))
	}
	f.mu.Lock()
	f.boxes[identityOf(h)] = b
	f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		f.drop(b)
		return sandbox.Handle{}, sandbox.AsError(err)
	}
	return h, nil
}

// judge refuses what this engine cannot do.
func (f *Fake) judge(spec *sandbox.Spec) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.judgeLocked(spec)
}

func (f *Fake) judgeLocked(spec *sandbox.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	ref := spec.Image
	if ref == "" {
		ref = DefaultImage
	}
	ours, known := f.images[ref]
	switch {
	case !known:
		return sandbox.Errorf(sandbox.NotFound, "image %s is neither on the engine nor in its registry", ref).Because("image").From(sandbox.FromEngine)
	case !ours:
		return sandbox.InvalidField("image", "%s has no label %s", ref, sandbox.AgentLabel)
	}
	switch spec.Egress.Mode {
	case sandbox.EgressNone, sandbox.EgressAllowlist:
		return nil
	case sandbox.EgressOpen:
		return sandbox.Errorf(sandbox.Denied, "egress open is not allowed here")
	}
	return sandbox.InvalidField("egress.mode", "the mode must be set")
}

// Inspect implements [sandbox.Provider].
func (f *Fake) Inspect(ctx context.Context, h sandbox.Handle) (sandbox.Object, error) {
	if err := f.begin(ctx, "Inspect", h); err != nil {
		return sandbox.Object{}, err
	}
	b := f.box(h)
	if b == nil {
		return sandbox.Object{Handle: h, State: sandbox.Absent}, nil
	}
	return b.object(), nil
}

// List implements [sandbox.Provider].
func (f *Fake) List(ctx context.Context) ([]sandbox.Object, error) {
	if err := f.begin(ctx, "List", sandbox.Handle{}); err != nil {
		return nil, err
	}
	var objects []sandbox.Object
	for _, b := range f.all(func(identity) bool { return true }) {
		objects = append(objects, b.object())
	}
	return objects, nil
}

// Resume implements [sandbox.Provider].
func (f *Fake) Resume(ctx context.Context, h sandbox.Handle) error {
	return f.with(ctx, "Resume", h, (*box).wake)
}

// Suspend implements [sandbox.Provider].
func (f *Fake) Suspend(ctx context.Context, h sandbox.Handle, mode sandbox.SuspendMode) error {
	switch mode {
	case sandbox.SuspendMemory:
		return f.with(ctx, "Suspend", h, (*box).pause)
	case sandbox.SuspendDisk:
		return f.with(ctx, "Suspend", h, (*box).stop)
	}
	return sandbox.InvalidField("mode", "%q; use memory or disk", mode)
}

// Reset implements [sandbox.Provider].
func (f *Fake) Reset(ctx context.Context, h sandbox.Handle) error {
	return f.with(ctx, "Reset", h, (*box).restart)
}

func (f *Fake) with(ctx context.Context, op string, h sandbox.Handle, do func(*box) error) error {
	if err := f.begin(ctx, op, h); err != nil {
		return err
	}
	b := f.box(h)
	if b == nil {
		return gone(h)
	}
	return do(b)
}

func gone(h sandbox.Handle) error {
	return sandbox.Errorf(sandbox.Gone, "sandbox %s does not exist any more; create it anew", h.Name).From(sandbox.FromEngine)
}

// Attach implements [sandbox.Provider].
func (f *Fake) Attach(ctx context.Context, h sandbox.Handle, wake bool) (io.ReadWriteCloser, error) {
	if err := f.begin(ctx, "Attach", h); err != nil {
		return nil, err
	}
	b := f.box(h)
	if b == nil {
		return nil, gone(h)
	}
	return b.attach(wake)
}

// Destroy implements [sandbox.Provider].
func (f *Fake) Destroy(ctx context.Context, h sandbox.Handle) error {
	if err := f.begin(ctx, "Destroy", h); err != nil {
		return err
	}
	for _, made := range []sandbox.Handle{h, {Tenant: sandbox.PoolTenant, Name: h.Pool, Generation: h.Generation}} {
		if b := f.box(made); b != nil {
			f.drop(b)
		}
	}
	return nil
}

// DestroyByName implements [sandbox.Provider].
func (f *Fake) DestroyByName(ctx context.Context, tenant sandbox.Tenant, name sandbox.Name) error {
	if err := f.begin(ctx, "DestroyByName", sandbox.Handle{Tenant: tenant, Name: name}); err != nil {
		return err
	}
	if err := errors.Join(tenant.Validate(), name.Validate()); err != nil {
		return sandbox.AsError(err)
	}
	for _, b := range f.all(func(id identity) bool { return id.tenant == tenant && id.name == name }) {
		f.drop(b)
	}
	return nil
}

// drop removes a box; a second call waits for the first.
func (f *Fake) drop(b *box) {
	b.destroy()
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.boxes, func(_ identity, other *box) bool { return other == b })
}

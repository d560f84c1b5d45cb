package docker_test

import (
	"io"
	"testing"

	"github.com/docker/docker/api/types/container"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/sandbox"
)

// poolSpec is a member of the pool to make; its name is its own.
func poolSpec() sandbox.Spec {
	spec := newSpec(sandbox.NewID())
	spec.Tenant = sandbox.PoolTenant
	return spec
}

// wanted is a spec that a member of that generation is claimed for.
func wanted(name string, member sandbox.Handle) sandbox.Spec {
	spec := newSpec(name)
	spec.Generation = member.Generation
	return spec
}

// A claim gives a member its name and its limits, at once and for good: the
// stream to it lives on, everything that names the sandbox finds it.
func TestClaimNamesAndLimits(t *testing.T) {
	t.Parallel()
	p, fleet := newProvider(t)
	member := mustCreate(t, p, poolSpec())
	s, err := p.Attach(t.Context(), member, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	spec := wanted("claimed.x", member)
	spec.Limits = sandbox.Limits{CPU: 1.5, MemoryMB: 256, DiskMB: 64, Pids: 200}
	var h sandbox.Handle
	for range 2 { // a repeat is success
		if h, err = p.Claim(t.Context(), member, spec); err != nil {
			t.Fatalf("claim: %v (%v)", err, cause(err))
		}
	}
	if h.Tenant != spec.Tenant || h.Name != spec.Name || h.Ref != member.Ref || h.Pool != member.Name || h.Limits != spec.Limits {
		t.Fatalf("handle %+v", h)
	}
	if _, err := io.WriteString(s, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
		t.Fatalf("the stream did not outlive the claim: %v", err)
	}
	info, err := dockertest.Client(t).ContainerInspect(t.Context(), h.Ref)
	if err != nil || info.Name != "/shoal-t1-claimed.x."+h.Generation {
		t.Fatalf("name %s, %v", info.Name, err)
	}
	if r := info.HostConfig.Resources; r.Memory != 256<<20 || r.MemorySwap != 256<<20 || r.NanoCPUs != 15e8 || *r.PidsLimit != 200 {
		t.Errorf("limits %+v", r)
	}
	if o, err := p.Inspect(t.Context(), h); err != nil || o.State != sandbox.Running || o.Limits != spec.Limits {
		t.Errorf("inspect: %+v, %v", o, err)
	}
	objects, err := p.List(t.Context())
	if err != nil || len(objects) != 1 || !objects[0].Complete || objects[0].Name != "claimed.x" || objects[0].Pool != member.Name ||
		objects[0].Tenant != "t1" || objects[0].Generation != h.Generation || objects[0].Bucket != "bucket-1" {
		t.Errorf("list: %+v, %v", objects, err)
	}
	for _, mode := range []sandbox.SuspendMode{sandbox.SuspendMemory, sandbox.SuspendDisk} {
		if err := p.Suspend(t.Context(), h, mode); err != nil {
			t.Fatal(err)
		}
		if err := p.Resume(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	// The member's own handle reaches nothing any more, and what it cannot
	// destroy, it does not harm.
	if o, err := p.Inspect(t.Context(), member); err != nil || o.State != sandbox.Absent {
		t.Errorf("the member still shows: %+v, %v", o, err)
	}
	mustDestroy(t, p, h)
	dockertest.NothingLeft(t, fleet)
	_, err = p.Claim(t.Context(), member, spec)
	wantCode(t, err, sandbox.Gone)
}

// However far a claim came, the handle of the claim destroys everything.
func TestHalfClaimsLeaveNothing(t *testing.T) {
	t.Parallel()
	p, fleet := newProvider(t)
	c := dockertest.Client(t)
	before := mustCreate(t, p, poolSpec())
	mustDestroy(t, p, before.Claimed(wanted("before", before)))
	dockertest.NothingLeft(t, fleet)

	alone := mustCreate(t, p, poolSpec())
	h, err := p.Claim(t.Context(), alone, wanted("alone", alone))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ContainerRemove(t.Context(), h.Ref, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	objects, err := p.List(t.Context())
	if err != nil || len(objects) != 1 || objects[0].Complete || objects[0].Tenant != sandbox.PoolTenant {
		t.Errorf("volumes without their container: %+v, %v", objects, err)
	}
	mustDestroy(t, p, h)
	dockertest.NothingLeft(t, fleet)

	named := mustCreate(t, p, poolSpec())
	if _, err := p.Claim(t.Context(), named, wanted("named", named)); err != nil {
		t.Fatal(err)
	}
	if err := p.DestroyByName(t.Context(), "t1", "other"); err != nil {
		t.Fatal(err)
	}
	if objects, err := p.List(t.Context()); err != nil || len(objects) != 1 {
		t.Fatalf("another name was destroyed: %+v, %v", objects, err)
	}
	if err := p.DestroyByName(t.Context(), "t1", "named"); err != nil {
		t.Fatal(err)
	}
	dockertest.NothingLeft(t, fleet)
}

// A member is for those only who ask for what it is.
func TestFits(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{docker.RuntimeRunc, docker.RuntimeRunsc} {
		p, err := docker.New(docker.Config{Image: "shoal-sandbox:dev", Runtime: runtime, AllowOpenEgress: true, Network: "way-out"})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		member := poolSpec()
		runc := runtime == docker.RuntimeRunc
		for name, c := range map[string]struct {
			change func(*sandbox.Spec)
			want   bool
		}{
			"the same":          {func(*sandbox.Spec) {}, true},
			"the default named": {func(s *sandbox.Spec) { s.Image = "shoal-sandbox:dev" }, true},
			"an allowlist": {func(s *sandbox.Spec) {
				s.Egress = sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"example.com"}}
			}, true},
			"an environment, a setup": {func(s *sandbox.Spec) {
				s.Env, s.Setup = map[string]string{"A": "b"}, []sandbox.Setup{{Shell: "true"}}
			}, true},
			"more memory":   {func(s *sandbox.Spec) { s.Limits.MemoryMB = 256 }, runc},
			"other cpu":     {func(s *sandbox.Spec) { s.Limits.CPU = 1 }, runc},
			"other pids":    {func(s *sandbox.Spec) { s.Limits.Pids = 129 }, runc},
			"another image": {func(s *sandbox.Spec) { s.Image = "shoal-sandbox:other" }, false},
			"open egress":   {func(s *sandbox.Spec) { s.Egress.Mode = sandbox.EgressOpen }, false},
			"another disk":  {func(s *sandbox.Spec) { s.Limits.DiskMB = 65 }, false},
			"no limits":     {func(s *sandbox.Spec) { s.Limits = sandbox.Limits{} }, false},
		} {
			spec := newSpec("x")
			c.change(&spec)
			if got := p.Fits(member, spec); got != c.want {
				t.Errorf("%s, %s: %t, want %t", runtime, name, got, c.want)
			}
		}
		member.Limits.MemoryMB, member.Limits.DiskMB = 256, 1024
		spec := newSpec("x")
		spec.Limits.DiskMB = 1024
		if p.Fits(member, spec) {
			t.Errorf("%s: a /tmp of more than half the memory fits", runtime)
		}
	}
}

// What is fixed when a sandbox is made changes the recipe, nothing else does.
func TestRecipe(t *testing.T) {
	t.Parallel()
	registry := dockertest.NewRegistry(t, ours)
	one := registry.Ref(t, "one:1")
	p, _ := newProvider(t, func(c *docker.Config) { c.Image = one })
	_, err := p.Recipe(t.Context(), poolSpec())
	wantCode(t, err, sandbox.NotFound)
	mustDestroy(t, p, mustCreate(t, p, poolSpec())) // pulls it
	recipe := func(p *docker.Provider, change func(*sandbox.Spec)) string {
		t.Helper()
		spec := poolSpec()
		change(&spec)
		r, err := p.Recipe(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := recipe(p, func(*sandbox.Spec) {})
	if again := recipe(p, func(s *sandbox.Spec) { s.Limits.CPU = 1 }); again != first {
		t.Errorf("%s, then %s", first, again)
	}
	runsc, _ := newProvider(t, func(c *docker.Config) { c.Image, c.Runtime = one, docker.RuntimeRunsc })
	if other := recipe(runsc, func(*sandbox.Spec) {}); other == first {
		t.Error("another runtime has the same recipe")
	}
	if err := dockertest.Client(t).ImageTag(t.Context(), dockertest.Image, one); err != nil {
		t.Fatal(err)
	}
	if moved := recipe(p, func(*sandbox.Spec) {}); moved == first {
		t.Error("the reference stands for another image, and the recipe is the same")
	}
}

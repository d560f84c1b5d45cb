package docker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"
	"github.com/google/go-cmp/cmp"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/sandbox"
)

func TestCreateMakesWhatTheDesignSays(t *testing.T) {
	t.Parallel()
	p, fleet := newProvider(t)
	spec := newSpec("box.one")
	h := mustCreate(t, p, spec)

	c, err := dockertest.Client(t).ContainerInspect(t.Context(), h.Ref)
	if err != nil {
		t.Fatal(err)
	}
	name := "shoal-t1-box.one." + spec.Generation
	host := c.HostConfig
	got := map[string]any{
		"name": c.Name, "user": c.Config.User, "entrypoint": strings.Join(c.Config.Entrypoint, " "), "cmd": strings.Join(c.Config.Cmd, " "),
		"init": *host.Init, "readonly": host.ReadonlyRootfs, "drop": strings.Join(host.CapDrop, " "), "add": strings.Join(host.CapAdd, " "),
		"privileged": host.Privileged, "security": strings.Join(host.SecurityOpt, " "), "ipc": string(host.IpcMode), "network": string(host.NetworkMode),
		"memory": host.Memory, "swap": host.MemorySwap, "cpus": host.NanoCPUs, "pids": *host.PidsLimit, "log": host.LogConfig.Type,
		"runtime": host.Runtime, "binds": len(host.Binds), "health": strings.Join(c.Config.Healthcheck.Test, " "),
		"tmp": host.Tmpfs["/tmp"], "run": host.Tmpfs["/run/shoal"], "ulimits": len(host.Ulimits), "shares": host.CPUShares,
	}
	want := map[string]any{
		"name": "/" + name, "user": "0:0", "entrypoint": "/opt/shoal/bin/agent", "cmd": "serve",
		"init": true, "readonly": true, "drop": "ALL", "add": "SETUID SETGID KILL",
		"privileged": false, "security": "no-new-privileges", "ipc": "private", "network": "none",
		"memory": int64(128 << 20), "swap": int64(128 << 20), "cpus": int64(500_000_000), "pids": int64(128), "log": "none",
		"runtime": "runc", "binds": 0, "health": "NONE",
		"tmp": "rw,exec,nosuid,nodev,mode=1777,size=64m", "run": "rw,noexec,nosuid,nodev,mode=0700,size=4m", "ulimits": 1, "shares": int64(128),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("container (-want +got):\n%s", diff)
	}
	mounts := map[string]string{}
	for _, m := range c.Mounts {
		mounts[m.Destination] = m.Name
		if m.RW == (m.Destination == "/skills") {
			t.Errorf("mount %s: writable is %t", m.Destination, m.RW)
		}
	}
	wantMounts := map[string]string{"/workspace": name + "-workspace", "/skills": name + "-skills", "/opt/shoal/skills": name + "-skills"}
	if diff := cmp.Diff(wantMounts, mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	labels := map[string]string{
		"shoal.fleet": fleet, "shoal.tenant": "t1", "shoal.name": "box.one", "shoal.generation": spec.Generation,
		"shoal.role": "sandbox", "shoal.bucket": "bucket-1", "shoal.disk": "64", "shoal.agent": "1",
	}
	if diff := cmp.Diff(labels, c.Config.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if len(h.Notes) != 1 || !strings.Contains(h.Notes[0], "diskMb is not enforced") { // FS-15
		t.Errorf("notes %q do not say that the disk limit is not enforced", h.Notes)
	}
	if h.Limits != spec.Limits {
		t.Errorf("limits %+v, want %+v", h.Limits, spec.Limits)
	}
}

func TestCreateRefusesBeforeItTouchesTheEngine(t *testing.T) {
	t.Parallel()
	p, fleet := newProvider(t)
	for what, c := range map[string]struct {
		change func(*sandbox.Spec)
		code   sandbox.Code
		field  string
	}{
		"a bad tenant":       {func(s *sandbox.Spec) { s.Tenant = "T1" }, sandbox.Invalid, "tenant"},
		"a bad name":         {func(s *sandbox.Spec) { s.Name = "a/b" }, sandbox.Invalid, "name"},
		"no generation":      {func(s *sandbox.Spec) { s.Generation = "" }, sandbox.Invalid, "generation"},
		"a bad image":        {func(s *sandbox.Spec) { s.Image = "A:b:c" }, sandbox.Invalid, "image"},
		"an image by its id": {func(s *sandbox.Spec) { s.Image = strings.Repeat("ab", 32) }, sandbox.Invalid, "image"},
		"no memory limit":    {func(s *sandbox.Spec) { s.Limits.MemoryMB = 0 }, sandbox.Invalid, "limits.memoryMb"},
		"no limit of pids":   {func(s *sandbox.Spec) { s.Limits.Pids = 0 }, sandbox.Invalid, "limits.pids"},
		"no egress mode":     {func(s *sandbox.Spec) { s.Egress.Mode = "" }, sandbox.Invalid, "egress.mode"},
		"open egress":        {func(s *sandbox.Spec) { s.Egress.Mode = sandbox.EgressOpen }, sandbox.Denied, ""},
	} {
		spec := newSpec("refused")
		c.change(&spec)
		_, err := p.Create(t.Context(), spec, nil)
		if got := sandbox.AsError(err); got == nil || got.Code != c.code || got.Field != c.field {
			t.Errorf("%s: got %v, want %s of %q", what, err, c.code, c.field)
		}
	}
	dockertest.NothingLeft(t, fleet)
}

func TestCreatePullsAMissingImageOnce(t *testing.T) { // several callers, one pull, progress for each
	t.Parallel()
	registry := dockertest.NewRegistry(t, ours)
	registry.Hold = make(chan struct{})
	p, fleet := newProvider(t, func(c *docker.Config) { c.Image = registry.Ref(t, "pulled:1") })
	var wg sync.WaitGroup
	steps := make(chan string, 1000)
	for range 3 {
		wg.Go(func() {
			h, err := p.Create(t.Context(), newSpec("pull"), func(step string, _, _ int64) { steps <- step })
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			if err := p.Destroy(t.Context(), h); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	}
	for range 3 { // reports while the layer is held back
		select {
		case step := <-steps:
			if step != "pull" {
				t.Errorf("progress step %q, want pull", step)
			}
		case <-time.After(20 * time.Second):
			t.Error("no progress in 20 s")
		}
	}
	close(registry.Hold)
	wg.Wait()
	if n := registry.Pulls(); n != 1 {
		t.Errorf("%d pulls, want 1", n)
	}
	dockertest.NothingLeft(t, fleet)
}

func TestCreateSaysWhatIsWrongWithTheImage(t *testing.T) {
	t.Parallel()
	registry := dockertest.NewRegistry(t, map[string]string{"some": "other"})
	p, fleet := newProvider(t, func(c *docker.Config) { c.Image = registry.Ref(t, "foreign:1") })

	_, err := p.Create(t.Context(), newSpec("foreign"), nil)
	wantCode(t, err, sandbox.Invalid)
	if e := sandbox.AsError(err); e.Field != "image" || !strings.Contains(e.Message, "FROM") {
		t.Errorf("an image that is not ours: %v; want the field and the remedy", err)
	}

	spec := newSpec("missing")
	spec.Image = registry.Ref(t, "missing:1")
	_, err = p.Create(t.Context(), spec, nil)
	wantCode(t, err, sandbox.NotFound)

	spec.Image = "127.0.0.1:1/nobody/listens:1"
	_, err = p.Create(t.Context(), spec, nil)
	wantCode(t, err, sandbox.Engine)
	if !strings.Contains(err.Error(), "docker pull") {
		t.Errorf("a registry that does not answer: %v; want the advice to pull beforehand", err)
	}
	dockertest.NothingLeft(t, fleet)
}

// LC-11: each step fails once; nothing is left, and the next create works.
func TestCreateLeavesNothingWhenItFails(t *testing.T) {
	t.Parallel()
	image := dockertest.NewRegistry(t, ours).Ref(t, "standin:1")
	p, fleet := newProvider(t, func(c *docker.Config) { c.Image = image })
	mustDestroy(t, p, mustCreate(t, p, newSpec("first"))) // the image is there now

	t.Run("the caller leaves", func(t *testing.T) {
		for _, after := range []int{0, 2, 5, 10, 30, 80, 150} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(after)*time.Millisecond)
			h, err := p.Create(ctx, newSpec("left"), nil)
			cancel()
			if err == nil {
				mustDestroy(t, p, h)
				continue
			}
			wantCode(t, err, sandbox.Timeout)
			dockertest.NothingLeft(t, fleet)
		}
	})
	t.Run("the start fails", func(t *testing.T) {
		spec := newSpec("start")
		spec.Egress.Mode = sandbox.EgressOpen
		nowhere, _ := newProvider(t, func(c *docker.Config) {
			c.Fleet, c.Image, c.AllowOpenEgress, c.Network = fleet, image, true, "shoal-nosuchnetwork"
		})
		_, err := nowhere.Create(t.Context(), spec, nil)
		wantCode(t, err, sandbox.Engine)
		dockertest.NothingLeft(t, fleet)
	})
	mustDestroy(t, p, mustCreate(t, p, newSpec("left")))
	dockertest.NothingLeft(t, fleet)
}

func TestCreateRemovesLeftoversOfItsGenerationOnly(t *testing.T) {
	t.Parallel()
	p, fleet := newProvider(t)
	c := dockertest.Client(t)
	other := mustCreate(t, p, newSpec("same"))

	spec := newSpec("same")
	object := "shoal-t1-same." + spec.Generation
	old := volume.CreateOptions{Name: object + "-workspace", Labels: map[string]string{docker.LabelFleet: fleet, "old": "yes"}}
	if _, err := c.VolumeCreate(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	h := mustCreate(t, p, spec)
	v, err := c.VolumeInspect(t.Context(), object+"-workspace")
	if err != nil || v.Labels["old"] != "" {
		t.Errorf("the leftover volume was taken over: %v, %v", v.Labels, err)
	}
	if o, err := p.Inspect(t.Context(), other); err != nil || o.State != sandbox.Running {
		t.Errorf("the other generation is %s, %v; want running", o.State, err)
	}
	mustDestroy(t, p, h)
	mustDestroy(t, p, other)
}

func TestCreateOfOneGenerationTwiceAtATime(t *testing.T) {
	t.Parallel()
	p, fleet := newProvider(t)
	mustDestroy(t, p, mustCreate(t, p, newSpec("warm")))
	spec := newSpec("twice")
	var wg sync.WaitGroup
	results := make(chan error, 4)
	for range 4 {
		wg.Go(func() {
			_, err := p.Create(t.Context(), spec, nil)
			results <- err
		})
	}
	wg.Wait()
	close(results)
	made := 0
	for err := range results {
		if err == nil {
			made++
		} else if !errors.Is(err, &sandbox.Error{Code: sandbox.Conflict}) {
			t.Errorf("a second create: %v, want conflict", err)
		}
	}
	if made == 0 {
		t.Error("none of the creates succeeded")
	}
	if err := p.DestroyByName(t.Context(), spec.Tenant, spec.Name); err != nil {
		t.Error(err)
	}
	dockertest.NothingLeft(t, fleet)
}

func TestOpenEgressNeedsANetworkThatKeepsSandboxesApart(t *testing.T) {
	t.Parallel()
	c := dockertest.Client(t)
	for _, icc := range []string{"true", "false"} {
		name := dockertest.Network(t, c, map[string]string{"com.docker.network.bridge.enable_icc": icc})
		p, _ := newProvider(t, func(c *docker.Config) { c.AllowOpenEgress, c.Network = true, name })
		err := p.Check(t.Context())
		if icc == "true" {
			wantCode(t, err, sandbox.Engine)
			continue
		}
		wantCode(t, err, "")
		spec := newSpec("open")
		spec.Egress.Mode = sandbox.EgressOpen
		h := mustCreate(t, p, spec)
		info, err := c.ContainerInspect(t.Context(), h.Ref)
		if err != nil || info.HostConfig.NetworkMode != container.NetworkMode(name) {
			t.Errorf("network mode %q (%v), want %q", info.HostConfig.NetworkMode, err, name)
		}
		mustDestroy(t, p, h)
	}
	p, _ := newProvider(t, func(c *docker.Config) { c.AllowOpenEgress, c.Network = true, "shoal-nosuchnetwork" })
	err := p.Check(t.Context())
	wantCode(t, err, sandbox.Engine)
	if !strings.Contains(err.Error(), "docker network create") {
		t.Errorf("a missing network: %v; want the command that makes it", err)
	}
}

func mustDestroy(t *testing.T, p *docker.Provider, h sandbox.Handle) {
	t.Helper()
	if err := p.Destroy(t.Context(), h); err != nil {
		t.Fatalf("destroy: %v (%v)", err, cause(err))
	}
}

// RL-01, RL-02, LC-01: networks run out, refuse to go while somebody is on
// them, and are missing at a resume. A sandbox has none, whatever it may reach,
// so none of that can happen; 40 sandboxes are no more than the one here.
func TestSandboxesHaveNoNetwork(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	spec := newSpec("listed")
	spec.Egress = sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"example.com"}}
	h := mustCreate(t, p, spec)
	for range 2 {
		c, err := dockertest.Client(t).ContainerInspect(t.Context(), h.Ref)
		if err != nil {
			t.Fatal(err)
		}
		for name := range c.NetworkSettings.Networks {
			if name != "none" {
				t.Errorf("the sandbox is on the network %s", name)
			}
		}
		if c.HostConfig.NetworkMode != "none" {
			t.Errorf("network mode %s, want none", c.HostConfig.NetworkMode)
		}
		if err := p.Suspend(t.Context(), h, sandbox.SuspendDisk); err != nil {
			t.Fatal(err)
		}
		if err := p.Resume(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	mustDestroy(t, p, h)
}

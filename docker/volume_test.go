package docker_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/sandbox"
)

// FS-15: with a volume driver that takes a size, diskMb holds: the disk is full
// at its limit, the files survive a stop, and nothing is left of the volume.
func TestVolumeDriver(t *testing.T) {
	t.Parallel()
	image := dockertest.NewRegistry(t, ours).Ref(t, "standin:1")
	d := dockertest.NewDaemon(t)
	p, err := docker.New(docker.Config{Endpoint: d.Endpoint(), Image: image, VolumeDriver: d.VolumeDriver()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if !p.Capabilities().DiskLimit {
		t.Error("the provider does not say that the disk is limited")
	}
	h := mustCreate(t, p, newSpec("sized"))
	if len(h.Notes) != 0 {
		t.Errorf("notes %q although the limit is enforced", h.Notes)
	}
	// The stand-in has no programs, so this process writes into its root.
	inside := func(name string) string {
		t.Helper()
		c, err := dockertest.ClientAt(t, d.Endpoint()).ContainerInspect(t.Context(), h.Ref)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("/proc/%d/root/workspace/%s", c.State.Pid, name)
	}
	big := inside("big")
	if err := os.WriteFile(big, make([]byte, 80<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("80 MiB into 64: %v, want no space", err)
	}
	if st, err := os.Stat(big); err != nil || st.Size() != 64<<20 {
		t.Errorf("of 80 MiB stand %v, %v; want 64", st, err)
	}
	if err := os.WriteFile(big, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Suspend(t.Context(), h, sandbox.SuspendDisk); err != nil {
		t.Fatal(err)
	}
	if err := p.Resume(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(inside("big")); err != nil || strings.TrimSpace(string(got)) != "kept" {
		t.Errorf("after a stop the file holds %q, %v", got, err)
	}
	mustDestroy(t, p, h)
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left on the engine: %v, %v", list, err)
	}
}

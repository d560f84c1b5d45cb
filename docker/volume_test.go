package docker_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"shoal/docker"
	"shoal/docker/dockertest"
)

// FS-15: with a volume driver that takes a size, diskMb holds: the disk is full
// at its limit, the files survive a stop, and nothing is left of the volume.
func TestVolumeDriver(t *testing.T) {
	t.Parallel()
	dockertest.NeedImage(t)
	driver := dockertest.VolumeDriver(t)
	p, fleet := newProvider(t, func(c *docker.Config) { c.Image, c.VolumeDriver = dockertest.Image, driver })
	if !p.Capabilities().DiskLimit {
		t.Error("the provider does not say that the disk is limited")
	}
	spec := newSpec("sized")
	h := mustCreate(t, p, spec)
	if len(h.Notes) != 0 {
		t.Errorf("notes %q although the limit is enforced", h.Notes)
	}
	run := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "docker", "exec", "-u", "1000", h.Ref, "bash", "-c", script)
		cmd.Env = append(os.Environ(), "DOCKER_HOST="+dockertest.Endpoint())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if said := run("head -c 200M /dev/zero >/workspace/big || stat -c %s /workspace/big"); !strings.Contains(said, "No space left on device") || !strings.Contains(said, "67108864") {
		t.Errorf("200 MB into 64 MB: %q, want no space at the limit", said)
	}
	run("rm /workspace/big && echo kept >/workspace/kept")
	if err := p.Suspend(t.Context(), h, "disk"); err != nil {
		t.Fatal(err)
	}
	if err := p.Resume(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if got := run("cat /workspace/kept"); got != "kept" {
		t.Errorf("after a stop the file holds %q", got)
	}
	mustDestroy(t, p, h)
	dockertest.NothingLeft(t, fleet)
}

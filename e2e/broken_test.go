//go:build chaosbreak

package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"shoal/docker/dockertest"
	"shoal/sandbox"
)

// buildTags are those of the programs under test.
const buildTags = "chaosbreak"

// useBrokenAgent makes the sandboxes run an agent that lacks the guarantee that
// CHAOS_BREAK names.
func useBrokenAgent(t *testing.T) {
	t.Helper()
	what := os.Getenv("CHAOS_BREAK")
	if !slices.Contains([]string{"fence", "offset", "idempotency", "lock"}, what) {
		t.Fatalf("CHAOS_BREAK=%q; use fence, offset, idempotency or lock", what)
	}
	t.Logf("without the guarantee %q: the run must find it", what)
	dir := t.TempDir()
	build := exec.Command("go", "build", "-tags", buildTags, "-trimpath", "-o", filepath.Join(dir, "agent"), "shoal/cmd/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	file := "FROM " + dockertest.Image + "\nCOPY agent /opt/shoal/bin/agent\nENV CHAOS_BREAK=" + what + "\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	tag := "shoal-test-broken:" + strings.ToLower(sandbox.NewID()[:12])
	docker := func(ctx context.Context, args ...string) {
		cmd := exec.CommandContext(ctx, "docker", args...)
		cmd.Env = append(os.Environ(), "DOCKER_HOST="+dockertest.Endpoint(), "DOCKER_BUILDKIT=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("docker %v: %v\n%s", args, err, out)
		}
	}
	docker(t.Context(), "build", "--quiet", "--network", "none", "--tag", tag, dir)
	whole := dockertest.Image
	dockertest.Image = tag
	t.Cleanup(func() {
		dockertest.Image = whole
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		docker(ctx, "rmi", "--force", tag)
	})
}

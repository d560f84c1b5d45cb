package dockertest

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"

	"shoal/docker"
	"shoal/image"
)

// Image is the sandbox image to test with: this tree's own under make test.
var Image = image.Name()

// Endpoint returns the engine that tests use: DOCKER_HOST or the default.
func Endpoint() string {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host
	}
	return docker.DefaultEndpoint
}

// Client returns a client of the tests' engine. The test fails when no engine
// answers, and is skipped with -short.
func Client(t testing.TB) *client.Client {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a Docker engine: run without -short")
	}
	return ClientAt(t, Endpoint())
}

// ClientAt returns a client of the engine at endpoint.
func ClientAt(t testing.TB, endpoint string) *client.Client {
	t.Helper()
	c, err := client.NewClientWithOpts(client.WithHost(endpoint), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatalf("docker client for %s: %v", endpoint, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.Ping(ctx); err != nil {
		t.Fatalf("no Docker engine answers at %s (run: make engine): %v", endpoint, err)
	}
	return c
}

// NeedImage fails the test when the engine does not have the sandbox image.
func NeedImage(t testing.TB) {
	t.Helper()
	if _, err := Client(t).ImageInspect(t.Context(), Image); err != nil {
		t.Fatalf("the image %s is missing (run: make image): %v", Image, err)
	}
}

// HasRuntime reports whether the engine has a runtime registered.
func HasRuntime(t testing.TB, name string) bool {
	t.Helper()
	info, err := Client(t).Info(t.Context())
	if err != nil {
		t.Fatalf("ask the engine for its runtimes: %v", err)
	}
	_, ok := info.Runtimes[name]
	return ok
}

// Fleet returns a fleet name of the test's own. At the end of the test
// everything labelled with it is removed; a test that promises to leave
// nothing says so itself with [NothingLeft].
func Fleet(t testing.TB) string {
	t.Helper()
	c := Client(t)
	fleet := "test-" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() { Sweep(t, c, fleet) })
	return fleet
}

// Sweep removes every object of fleet from the engine behind c.
func Sweep(t testing.TB, c *client.Client, fleet string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	for _, id := range containers(t, ctx, c, fleet) {
		_ = c.ContainerUnpause(ctx, id) // most are not paused
		if err := c.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
			t.Logf("clean up container %s: %v", id, err)
		}
	}
	for _, name := range volumes(t, ctx, c, fleet) {
		if err := c.VolumeRemove(ctx, name, true); err != nil {
			t.Errorf("clean up volume %s: %v", name, err)
		}
	}
}

// NothingLeft fails the test when the engine holds an object of fleet.
func NothingLeft(t testing.TB, fleet string) {
	t.Helper()
	c := Client(t)
	if left := append(containers(t, t.Context(), c, fleet), volumes(t, t.Context(), c, fleet)...); len(left) > 0 {
		t.Errorf("left behind on the engine: %v", left)
	}
}

func byFleet(fleet string) filters.Args {
	return filters.NewArgs(filters.Arg("label", docker.LabelFleet+"="+fleet))
}

func containers(t testing.TB, ctx context.Context, c *client.Client, fleet string) []string {
	t.Helper()
	list, err := c.ContainerList(ctx, container.ListOptions{All: true, Filters: byFleet(fleet)})
	if err != nil {
		t.Fatalf("list containers of fleet %s: %v", fleet, err)
	}
	var names []string
	for _, o := range list {
		names = append(names, strings.TrimPrefix(o.Names[0], "/"))
	}
	return names
}

func volumes(t testing.TB, ctx context.Context, c *client.Client, fleet string) []string {
	t.Helper()
	list, err := c.VolumeList(ctx, volume.ListOptions{Filters: byFleet(fleet)})
	if err != nil {
		t.Fatalf("list volumes of fleet %s: %v", fleet, err)
	}
	var names []string
	for _, v := range list.Volumes {
		names = append(names, v.Name)
	}
	return names
}

// Network makes a bridge with these driver options and removes it at the end
// of the test.
func Network(t testing.TB, c *client.Client, options map[string]string) string {
	t.Helper()
	name := "shoal-test-" + strings.ToLower(rand.Text()[:12])
	if _, err := c.NetworkCreate(t.Context(), name, network.CreateOptions{Driver: "bridge", Options: options}); err != nil {
		t.Fatalf("make network: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if err := c.NetworkRemove(ctx, name); err != nil {
			t.Errorf("remove network %s: %v", name, err)
		}
	})
	return name
}

// Shell starts a container of its own with a sandbox's options and returns a
// function that runs a script in it as uid 1000 by plain docker exec. The
// container goes with the test.
func Shell(t testing.TB, runtime string) func(script string) (code int, output string) {
	t.Helper()
	command := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "docker", args...)
		cmd.Env = append(os.Environ(), "DOCKER_HOST="+Endpoint())
		return cmd
	}
	name := "shoal-test-" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		_ = command(ctx, "rm", "-f", name).Run() // a failure leaves a container that ends by itself
	})
	out, err := command(t.Context(), "run", "-d", "--rm", "--name", name, "--runtime", runtime, "--network", "none", "--read-only", "--init",
		"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp", "--entrypoint", "sleep", Image, "300").CombinedOutput()
	if err != nil {
		t.Fatalf("start a container: %v: %s", err, out)
	}
	return func(script string) (int, string) {
		out, err := command(t.Context(), "exec", "-u", "1000", name, "bash", "-c", script).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode(), string(out)
		}
		if err != nil {
			t.Fatalf("docker exec: %v", err)
		}
		return 0, string(out)
	}
}

package docker_test

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/sandbox/sandboxtest"
)

func TestConformanceRunc(t *testing.T) {
	t.Parallel()
	conform(t, docker.RuntimeRunc)
}

func TestConformanceRunsc(t *testing.T) {
	t.Parallel()
	if !dockertest.HasRuntime(t, docker.RuntimeRunsc) {
		t.Skip("the engine has no runtime runsc; scripts/runsc.sh registers it where it can")
	}
	conform(t, docker.RuntimeRunsc)
}

func conform(t *testing.T, runtime string) {
	t.Helper()
	dockertest.NeedImage(t)
	var fleet string
	sandboxtest.Run(t, func(t *testing.T) sandboxtest.Subject {
		registry := dockertest.NewRegistry(t, nil)
		var p *docker.Provider
		p, fleet = newProvider(t, func(c *docker.Config) { c.Image, c.Runtime = dockertest.Image, runtime })
		return sandboxtest.Subject{
			Provider:     p,
			MissingImage: registry.Ref(t, "missing:1"),
			ForeignImage: registry.Ref(t, "foreign:1"),
			Real:         true,
			Heavy:        runtime == docker.RuntimeRunc,
			PidsLimit:    runtime == docker.RuntimeRunc,
			Known:        knownFaults(t, runtime),
		}
	})
	dockertest.NothingLeft(t, fleet)
}

// knownFaults reads testdata/<runtime>-known.txt: cases that the engine itself
// fails, each with a command that shows it by plain docker exec. The fault is
// proved anew; a case whose proof does not fail any more is run again.
func knownFaults(t *testing.T, runtime string) map[string]string {
	t.Helper()
	known := make(map[string]string)
	file, err := os.Open("testdata/" + runtime + "-known.txt")
	if os.IsNotExist(err) {
		return known
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	exec := dockertest.Shell(t, runtime)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, command, ok := strings.Cut(line, "\t")
		if !ok {
			t.Fatalf("%s-known.txt: %q is not a case, a tab and a command", runtime, line)
		}
		if code, out := exec(command); code == 0 {
			t.Errorf("%s works by plain docker exec under %s now (%q); take %q from the list", command, runtime, out, name)
		} else {
			known[name] = "plain docker exec fails too: " + command
		}
	}
	return known
}

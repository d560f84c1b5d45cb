package docker_test

import (
	"bufio"
	"flag"
	"os"
	"strings"
	"testing"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/docker/filter"
	"shoal/docker/filter/filtertest"
	"shoal/sandbox/sandboxtest"
)

// TestConformanceRunc goes through a socket filter with the default policy, as a
// hardened deployment does: nothing of the suite is refused, and no call is
// admitted that the suite does not send.
func TestConformanceRunc(t *testing.T) {
	t.Parallel()
	dockertest.NeedImage(t)
	fleet, registry := dockertest.Fleet(t), dockertest.NewRegistry(t, nil)
	missing, foreign := registry.Ref(t, "missing:1"), registry.Ref(t, "foreign:1")
	policy, err := filter.DefaultPolicy(filter.Settings{Fleet: fleet, Images: []string{dockertest.Image, missing, foreign}})
	if err != nil {
		t.Fatal(err)
	}
	front := filtertest.New(t, policy)
	sandboxtest.Run(t, func(t *testing.T) sandboxtest.Subject {
		p, _ := newProvider(t, func(c *docker.Config) { c.Fleet, c.Endpoint, c.Image = fleet, front.Endpoint(), dockertest.Image })
		return sandboxtest.Subject{
			Provider: p, MissingImage: missing, ForeignImage: foreign,
			Real: true, Heavy: true, PidsLimit: true,
		}
	})
	dockertest.NothingLeft(t, fleet)
	for _, rule := range front.Refused(t) {
		if rule != "lookup" { // what is no longer there
			t.Errorf("the filter refused a call of the suite by %s", rule)
		}
	}
	if strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return // single cases send less
	}
	filtertest.SentIsAdmitted(t, policy, front.Calls(t))
}

func TestConformanceRunsc(t *testing.T) {
	t.Parallel()
	if !dockertest.HasRuntime(t, docker.RuntimeRunsc) {
		t.Skip("the engine has no runtime runsc; scripts/runsc.sh registers it where it can")
	}
	dockertest.NeedImage(t)
	var fleet string
	sandboxtest.Run(t, func(t *testing.T) sandboxtest.Subject {
		registry := dockertest.NewRegistry(t, nil)
		var p *docker.Provider
		p, fleet = newProvider(t, func(c *docker.Config) { c.Image, c.Runtime = dockertest.Image, docker.RuntimeRunsc })
		return sandboxtest.Subject{
			Provider:     p,
			MissingImage: registry.Ref(t, "missing:1"),
			ForeignImage: registry.Ref(t, "foreign:1"),
			Real:         true,
			Known:        knownFaults(t),
		}
	})
	dockertest.NothingLeft(t, fleet)
}

// knownFaults reads testdata/runsc-known.txt: cases that gVisor itself fails, each
// with a command that shows it by plain docker exec. The fault is proved anew; a
// case whose proof does not fail any more is run again.
func knownFaults(t *testing.T) map[string]string {
	t.Helper()
	known := make(map[string]string)
	file, err := os.Open("testdata/runsc-known.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	exec := dockertest.Shell(t, docker.RuntimeRunsc)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, command, ok := strings.Cut(line, "\t")
		if !ok {
			t.Fatalf("%s: %q is not a case, a tab and a command", file.Name(), line)
		}
		if code, out := exec(command); code == 0 {
			t.Errorf("%s works by plain docker exec now (%q); take %q from the list", command, out, name)
		} else {
			known[name] = "plain docker exec fails too: " + command
		}
	}
	return known
}

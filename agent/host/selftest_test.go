package host

import (
	"bytes"
	"context"
	"crypto/rand"
	"maps"
	"os/exec"
	"strings"
	"testing"
	"time"

	"shoal/image"
)

// good is what a probe says in a sandbox under runc.
const good = `Uid: 1000 1000 1000 1000
Gid: 1000 1000 1000 1000
Groups: 61000
CapInh: 0000000000000000
CapPrm: 0000000000000000
CapEff: 0000000000000000
CapBnd: 00000000000000e0
CapAmb: 0000000000000000
NoNewPrivs: 1
Seccomp: 2
umask: 0022
core: 0
cwd: /
signal: no
memory: no
programs: no
sockets: no
skills: no
stderr: yes
namespace: no
root: no
terminal: yes
`

func probed(said string) *facts {
	f := &facts{values: map[string]string{}, mark: 61000}
	f.add(said)
	return f
}

// TestEachPromiseCanFail breaks one fact after another: exactly the promise that
// stands for it must be named.
func TestEachPromiseCanFail(t *testing.T) {
	t.Parallel()
	if err := probed(good).judge(); err != nil {
		t.Fatal(err)
	}
	bad := map[string]string{
		"Uid": "1000 0 1000 1000", "Gid": "0 0 0 0", "Groups": "0 61000",
		"CapInh": "00000000000000e0", "CapPrm": "00000000000000e0", "CapEff": "0000000000000020", "CapAmb": "0000000000000001",
		"NoNewPrivs": "0", "Seccomp": "0", "descriptor": "7", "umask": "0077", "core": "unlimited", "cwd": "/workspace",
		"signal": "yes", "memory": "yes", "programs": "yes", "sockets": "yes", "skills": "yes", "root": "yes",
		"stderr": "no", "namespace": "yes", "terminal": "no",
	}
	for _, p := range promises {
		value, ok := bad[p.fact]
		if !ok {
			t.Errorf("%s: this test has no broken value for it", p.name)
			continue
		}
		f := probed(good)
		f.values = maps.Clone(f.values)
		f.values[p.fact] = value
		err := f.judge()
		if err == nil || strings.Count(err.Error(), "does not hold") != 1 || !strings.Contains(err.Error(), p.name) {
			t.Errorf("%s = %q: %v", p.fact, value, err)
		}
	}
}

// TestSilentProbeFails checks that a probe that says nothing proves nothing.
func TestSilentProbeFails(t *testing.T) {
	t.Parallel()
	err := probed("").judge()
	if err == nil || strings.Count(err.Error(), "does not hold") < 15 {
		t.Errorf("%v", err)
	}
}

// weak is a command of a sandbox that keeps none of its promises: as root with
// an engine's ordinary capabilities, then as the user with standard streams of root's.
const weak = `
umask 077; exec 7</etc/passwd; export AGENT=1
unshare --user true && echo "namespaces: yes"
setpriv --inh-caps=+kill --ambient-caps=+kill bash -c "$PROBE"
as_user() { setpriv --reuid=1000 --regid=1000 --clear-groups bash -c "$1"; }
as_user "$PROBE" | grep ^stderr:
as_user "$TERMINAL_PROBE"
`

// TestProbeSeesWhatIsBroken runs the probe where every promise is broken in
// fact: each must be named.
func TestProbeSeesWhatIsBroken(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a Docker engine: run without -short")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	name := "shoal-selftest-" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() { _ = exec.Command("docker", "rm", "-f", name).Run() })
	cmd := exec.CommandContext(ctx, "docker", "run", "--rm", "-i", "--name", name, "--label", "shoal.selftest="+name,
		"--network", "none", "--user", "0:0", "--workdir", "/workspace", "--ulimit", "core=-1",
		"--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
		"--env", "PROBE="+probe, "--env", "TERMINAL_PROBE="+terminalProbe, "--entrypoint", "bash", image.Name(), "-c", weak)
	var errs bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(""), &errs
	said, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v (is the engine up and the image built? run: make image)\n%s", err, errs.Bytes())
	}
	f := probed(string(said))
	err = f.judge()
	for _, p := range promises {
		if p.fact == "namespace" && f.values["namespaces"] != "yes" {
			t.Log("this machine lets nobody make a user namespace")
			continue
		}
		if err == nil || !strings.Contains(err.Error(), p.name) {
			t.Errorf("%s: the probe did not see that it is broken, it found %q", p.name, f.values[p.fact])
		}
	}
}

package host

import (
	"maps"
	"strings"
	"testing"
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

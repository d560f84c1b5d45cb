package filter_test

import (
	"testing"

	"shoal/docker/filter"
)

// TestCheck tries both policies on the real engine.
func TestCheck(t *testing.T) {
	e := newRealEngine(t)
	dial, err := filter.Dialer("unix://" + e.socket)
	if err != nil {
		t.Fatal(err)
	}
	findings, err := filter.Check(t.Context(), e.policy, dial)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range findings {
		names[f.Name] = true
		if f.Name == "policy" && f.Level != filter.LevelOK {
			t.Errorf("%s", f.Detail)
		}
		if f.Level != filter.LevelOK && f.Remedy == "" {
			t.Errorf("%s has no remedy", f.Name)
		}
	}
	for _, name := range []string{"api", "seccomp", "user namespaces", "runtimes", "storage", "policy"} {
		if !names[name] {
			t.Errorf("nothing is said about %s", name)
		}
	}
}

package e2b

import (
	"testing"

	"shoal/e2b/e2btest"
	"shoal/sandbox/sandboxtest"
)

// TestConformance runs the suite on a fake whose sandboxes are containers.
// Processes are not bounded by a cgroup: E2B gives a whole machine.
func TestConformance(t *testing.T) {
	var fake *e2btest.Server
	sandboxtest.Run(t, func(t *testing.T) sandboxtest.Subject {
		t.Helper()
		f, p := contained(t, e2btest.Config{})
		fake = f
		return sandboxtest.Subject{Provider: p, Real: true}
	})
	if left := fake.Sandboxes(); len(left) != 0 {
		t.Errorf("left behind: %+v", left)
	}
}

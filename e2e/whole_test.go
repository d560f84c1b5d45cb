//go:build !chaosbreak

package e2e_test

import (
	"os"
	"testing"
)

// buildTags are those of the programs under test.
const buildTags = ""

// useBrokenAgent does nothing: these builds have every guarantee.
func useBrokenAgent(t *testing.T) {
	t.Helper()
	if what := os.Getenv("CHAOS_BREAK"); what != "" {
		t.Fatalf("CHAOS_BREAK=%s has no effect without the build tag chaosbreak; use make chaos CHAOS_BREAK=%s", what, what)
	}
}

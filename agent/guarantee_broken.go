//go:build chaosbreak

package agent

import "os"

// What a build of the chaos test switches off.
var (
	fences = os.Getenv("CHAOS_BREAK") != "fence"
	once   = os.Getenv("CHAOS_BREAK") != "idempotency"
)

//go:build chaosbreak

package messaging

import "os"

// counts is what a build of the chaos test switches off.
var counts = os.Getenv("CHAOS_BREAK") != "offset"

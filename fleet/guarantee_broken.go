//go:build chaosbreak

package fleet

import "os"

// excludes is what a build of the chaos test switches off.
var excludes = os.Getenv("CHAOS_BREAK") != "lock"

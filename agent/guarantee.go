//go:build !chaosbreak

package agent

// What the chaos test switches off, in builds of its own, to see that it finds it.
const (
	fences = true // only the session with the highest epoch is served
	once   = true // a command that is known is not started again
)

//go:build !chaosbreak

package messaging

// counts: a stream goes on at its offset, and nothing is taken twice. The chaos
// test switches it off, in builds of its own, to see that it finds it.
const counts = true

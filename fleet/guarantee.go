//go:build !chaosbreak

package fleet

// excludes: a tag has one holder. The chaos test switches it off, in builds of
// its own, to see that it finds it.
const excludes = true

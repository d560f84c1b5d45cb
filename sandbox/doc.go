// Package sandbox is the contract between the parts of Shoal: what a sandbox
// is, what a command is, what a provider does, and how things fail.
//
// # Words
//
// A kernel is a client. A tenant is a name space of kernels that trust each
// other. A sandbox is one conversation's machine; every create makes a new
// generation of it. A command is one program run in it. A tag names who
// started a command. An engine is what holds the sandboxes: one Docker daemon,
// or one E2B account.
//
// # What it holds
//
// Plain data with its validation ([Spec], [Command], [FileInfo], …), the
// closed set of error codes ([Code], [Error]), the grammar of names, and
// [Provider], the life cycle that docker and e2b implement. It imports nothing
// but the standard library and starts no goroutine; every value is safe to
// share once it is no longer changed.
//
// # On the wire
//
// The struct tags named json serve msgpack as well. Durations are whole
// milliseconds ([Milliseconds]), so that a kernel in any language can write
// them.
package sandbox

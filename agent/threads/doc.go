// Package threads keeps operating-system threads for what a goroutine alone cannot do.
//
// # A user's threads
//
// [Pool] runs functions on threads whose effective user and group are those of
// the sandbox's user, while the rest of the process stays root. The kernel then
// judges every path and owns every new file, pipe or terminal as if the user had
// done it. Real and saved ids stay root's, so the user cannot signal or trace
// these threads. A thread never changes back: it ends with the pool and is
// never given to another goroutine.
//
// [Self] does the same work as the process's own user. It is for processes that
// are no sandbox's agent, that is for tests.
//
// # Spare threads
//
// [Park] makes threads in advance. A Go program that needs a new thread when the
// sandbox has no process number left aborts.
package threads

// Package docker makes sandboxes of containers on one Docker engine.
//
// # What it is
//
// [Provider] implements [sandbox.Provider]. A sandbox is one container and two
// volumes, all named after tenant, name and generation, all labelled with the
// fleet; nothing else of the engine is touched, and what carries another
// fleet's label is never removed. What callers may write freely (commands,
// environment, metadata) never enters an engine request: the agent carries it.
//
// # The engine's side
//
// wire.go lists every request this package can send, with every query key and
// body key; a socket filter can admit exactly these. Requests are written from
// structs of our own and sent by net/http, because a general client sends every
// key of the engine's types, negotiates what we do not use, and hides the raw
// stream that we want. The API version is negotiated between 1.41 and 1.44,
// which every engine from 20.10 on speaks.
//
// Every call has a deadline of its own. Work that must not be cut in the middle
// (a create and its clean-up) runs on a context that the caller's cancellation
// does not reach, bounded in time and waited for by [Provider.Close].
//
// # Errors
//
// Everything returned is a [*sandbox.Error]. The engine's own words are its
// cause, for the log; they may hold paths of the host and never reach a caller.
//
// # Not promised
//
// Limits.DiskMB is enforced only with a volume driver that takes a size.
// Registry credentials are not handled: pull private images beforehand.
// "docker volume prune" on engines before 23.0 removes the marker volume that
// identifies the engine; do not run it there.
package docker

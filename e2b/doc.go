// Package e2b runs sandboxes on E2B, in its cloud or self-hosted.
//
// # What it does
//
// The control plane is spoken to over HTTP with per-call time limits. A create
// is repeated only when the server surely did nothing; everything else is
// repeated with a growing wait, and 429 with the wait that the server asks for.
// Sandboxes are found by their metadata (fleet, tenant, name, generation), and
// every listing is checked again, as a server might ignore the filter.
//
// The stream to the agent is the stdio of the attach program, which the daemon
// in every sandbox (envd) runs as root: its output arrives on one long answer,
// its input goes out in one request after another. A stream that fails in
// either direction is over: what was lost on the way is unknown.
//
// # What proves that a sandbox is gone
//
// Only a 404 whose message says so. A server that does not know a route answers
// with the same status, the same code and the same shape.
//
// # Unverified
//
// The protocol was read in the open-source server (e2b-dev/infra 54693ff) and
// recorded from envd 0.6.13; the cloud itself was not contacted. What rests on
// an assumption about the cloud says "unverified" where it stands, and the live
// tests check those assumptions one by one.
package e2b

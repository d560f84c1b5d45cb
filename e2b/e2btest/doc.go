// Package e2btest is a fake E2B: a control plane and the proxy to sandboxes
// whose daemon answers like the real one was recorded to answer (package envd).
//
// A sandbox is a container of our image ([Docker]) or runs its processes on the
// test's own machine ([Plain]) where a container adds nothing. Pausing keeps
// the processes (the container is frozen), pausing or connecting without memory
// ends them and keeps the files. The fake refuses what the real control plane
// refuses: wrong types, bodies without a content type, missing keys, unknown
// routes, domains without the deny-all rule. Where the reference leaves a
// behaviour open, the fake takes the harsher one.
//
// # Faults
//
// [Server.Inject] makes requests fail in every way that was met: each kind of
// 404, 409, 429 with and without Retry-After, 5xx, stalls before or after the
// work, lost answers. [Server.CutStreams] breaks open process streams,
// [Server.Expire] ends a sandbox's time at once.
//
// # Not covered
//
// Logs, metrics, snapshots, forks, volumes and terminals, which no provider
// here uses. Egress rules are kept and validated, not enforced.
package e2btest

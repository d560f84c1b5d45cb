// Package agent is the protocol between a worker and the program inside a
// sandbox, and both of its ends.
//
// # What it is
//
// [Server] is the agent: it starts commands on a [Host], keeps their output until
// it is acknowledged, kills, and touches files. [Connect] gives a worker a
// [Session] over any byte stream. Package agent/host is the real host, command
// agent the program.
//
// # Attach
//
// A session begins with the agent's [Hello] (boot, highest epoch). The worker
// records its epoch where workers agree on it and then claims; a claim for another
// boot or with an epoch that is not above the highest is refused. From the answer
// on nothing that an older session asked for begins: its streams are closed, and
// the check of the claim and the registration of a start, or the rename that makes
// a write effective, are one critical section.
//
// # Commands
//
// A start names the command's id and the boot. The same id and request follow what
// runs or give the stored end; nothing is ever run twice. Output has one offset over
// both streams. What is not acknowledged is kept: a full ring stops the command or
// overwrites the oldest bytes, which readers are told as a gap. One primary reader
// governs a command, others watch. An end is kept until it is acknowledged, at most
// 15 minutes; then its id is known for 2 more.
//
// # On the wire
//
// yamux (its specification, version 0) without pings; one stream per command, file
// operation, connection in or out, or short request. A stream is a sequence of
// frames: length of the body (4 bytes, big endian), kind (1 byte), body. Bodies are
// msgpack maps; kind 13 is raw bytes. The first frame is a request {op, body}; then
// comes one answer or error, and what the operation adds. Unknown fields and kinds
// are skipped. Two protocol versions are spoken, the newest and the one before.
//
// # Trust
//
// Neither end trusts the other's bytes: frames, nesting, streams and credits are
// bounded before anything is allocated for them. A worker ends a session whose agent
// contradicts itself (code Engine, reason "protocol"); such an agent can lie about
// its own sandbox only.
//
// # Concurrency
//
// Sessions and servers may be used from several goroutines, a [Stream]'s Recv and a
// [FileReader] from one. Every wait ends with its context, with the session, or
// with a bound that its comment names. Close waits for what was started.
package agent

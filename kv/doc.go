// Package kv keeps the fleet's records in JetStream KV: sandbox handles, tag
// locks, worker presence and quotas.
//
// # What it promises
//
// Every change is a compare-and-swap against the value that was read
// ([Table.Put]); no revision number leaves this package, it travels inside
// [Entry]. Reads that decide go to the stream's leader: a replica may answer
// with an old value (8 % of reads after a write under load, measured with
// three replicas). A write whose reply was lost is recognised by reading back:
// each write carries a fresh op id.
//
// Unknown fields of a value are kept when it is written again, so that workers
// of two versions can share a bucket.
//
// # Time to live
//
// Entries of tables with a TTL vanish unless they are written again. An
// ordinary KV update would remove the TTL (nats.go issue 1994), so this
// package publishes to the bucket's subject with the expected sequence and the
// TTL. TTLs are whole seconds. Expiry is judged by the server's clock, late by
// up to a quarter of a second and never early; a holder stops itself earlier,
// by its own monotonic clock.
//
// # Failure
//
// Reads and writes wait up to 10 s, within their context, for a server that is
// away (5 to 8 s at a leader's death); then it is Unavailable. A lost race is
// Conflict with reason "revision". All methods may be used from several
// goroutines; an Entry belongs to one at a time.
package kv

// Package messaging is how kernels and workers talk over NATS: the subjects,
// the bodies of every operation, the codec, the server side that a worker
// runs, and the client that a kernel uses.
//
// # Requests
//
// A kernel publishes a request on [Subject] and gets its answer from whichever
// worker owns the sandbox. Bodies are msgpack, or JSON when the request says
// Content-Type: application/json; the answer comes in the same form. Requests
// are decoded strictly: an unknown field is Invalid and is named.
//
// # Streams
//
// exec, follow, read, tar-get and forward answer with a stream of [Frame]s to
// the requester's inbox: data with offsets, gaps, a heartbeat each second, and
// exactly one terminal frame (end, error or moved). The reader acknowledges
// the offsets it has consumed; the worker never has more than a window of
// bytes under way. Silence is trouble, never success.
//
// # Concurrency
//
// [Server] and [Client] may be used from several goroutines. Requests of one
// client are served concurrently and in no particular order; the frames of one
// stream arrive in order or are asked for again.
//
// # Not promised
//
// A request is not queued while NATS is away: the caller is told. Nothing here
// runs a command twice; where that cannot be proved the answer is
// OutcomeUnknown.
package messaging

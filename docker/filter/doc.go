// Package filter is a reverse proxy that stands between a worker and the
// Docker engine's socket, so that a worker somebody has taken over still
// cannot have the host.
//
// # What it does
//
// Whoever reaches the engine's socket owns the host. The filter lets through
// the calls that Shoal's Docker provider makes and nothing else. It does not
// match text: it parses a request, judges its values, and sends the engine a
// request written anew from its own structs. The engine therefore sees only
// what the filter understood; a key it does not know, a second spelling of one
// it does know, or a value outside its range never arrives.
//
// A request passes five steps, each of which may refuse it:
//
//   - framing: HTTP/1.1, one length, no coding, nothing a browser adds;
//   - target: an exact path (no '%', no empty or dotted segment), an API
//     version in range, a closed set of method × path;
//   - query: a closed set of keys, each at most once, each with its own grammar;
//   - body: read whole, strict JSON, no unknown key, every value judged;
//   - owner: an exec belongs to a container that carries our name and labels.
//
// # Policy
//
// What is admitted is data: a [Policy]. [DefaultPolicy] is the least that
// Shoal's provider needs. A policy is JSON, read strictly by [ParsePolicy].
//
// # Streams
//
// The only raw copying is that of an exec's stream, after the engine itself
// has answered 101 to its start. The connection ends with the stream.
//
// # Concurrency
//
// A [Filter] serves any number of connections at once, up to its limit. A
// [Policy] must not be changed once it was given to [New].
//
// # Not promised
//
// Whoever may talk to the filter can still make, stop and remove every
// container with the policy's prefix, and start the attach command in it. The
// position of the socket (a file of its own group, mutual TLS) is the first
// line of defence, this is the second.
package filter

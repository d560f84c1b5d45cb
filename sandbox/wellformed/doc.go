// Package wellformed checks msgpack that a stranger sent before it is decoded.
//
// The decoder recurses without bound when it skips, allocates by the lengths it
// is told, and keeps what it has allocated in a pool, a megabyte more with each
// length that lies (vmihailenco/msgpack 5.4.1). So nothing foreign reaches it
// unchecked.
package wellformed

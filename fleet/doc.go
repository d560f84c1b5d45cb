// Package fleet is the worker: it answers kernels' requests by driving a
// provider, the agents inside the sandboxes, and the fleet's records.
//
// # Ownership
//
// Each sandbox has at most one owner, the worker that is named in its record
// and whose session the agent serves. The record is changed by
// compare-and-swap only, and every attachment takes a new epoch, of which the
// agent serves the highest. So two workers that both believe they own a
// sandbox cannot both act in it, whatever clocks and networks do; and taking
// over waits for no lease.
//
// A worker that receives a request for a sandbox of another worker forwards it
// there. When that worker does not answer, it adopts the sandbox.
//
// # One sandbox, one box
//
// In the owner a [box] stands for the sandbox. Life-cycle operations hold its
// gate alone; starts and file operations share it. A command's output is
// pumped by a goroutine of its own, which outlives a broken session: it
// attaches again and follows from its own offset.
//
// An exec on an attached sandbox does no KV operation and no engine call.
//
// # Concurrency
//
// [Worker.Run] owns every goroutine of the package and returns when all have
// ended.
package fleet

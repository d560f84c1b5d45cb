// Package dockerbench does by hand, through the engine's own Go client, what a
// sandbox is used for: it is what the benchmark compares Shoal with.
//
// Its containers have a sandbox's image, limits and mounts, so that only the
// way to them differs. Everything it makes carries the label of its fleet.
package dockerbench

// Package envd is a fake of the daemon that runs in every E2B sandbox: its
// HTTP routes and its process service, over Connect with JSON.
//
// It answers as envd 0.6.13 was recorded to answer, oddities included: a
// missing program is not an error but a process that ends with 127, a kill by
// signal ends the stream although descendants live on, a keepalive interval of
// 0 crashes the daemon, a Connect timeout is the life of the process. Left out
// are watchers, terminals, metrics and the node's own control routes, which no
// provider here calls.
//
// Processes are real. As root, as in a container, they run as the user asked
// for; otherwise all of them run as the user of the test.
package envd

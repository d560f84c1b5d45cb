// Package e2e holds the tests that run the programs as people do: workers and
// NATS servers as processes, real Docker, real signals.
package e2e

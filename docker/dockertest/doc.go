// Package dockertest supports tests that need a Docker engine: a client that
// looks at the engine independently of package docker, fleets that clean up
// after themselves, an engine of the test's own that it may break, and a
// registry.
//
// Such tests are real. Where no engine answers or the image is missing they
// fail with one line that says what to do; with -short they are skipped.
package dockertest

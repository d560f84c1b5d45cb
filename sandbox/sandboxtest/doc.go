// Package sandboxtest holds the conformance suite that every provider passes,
// and a provider in memory.
//
// # The suite
//
// [Run] runs a plain list of cases against a provider, each named for the
// promise it checks. It speaks to the sandbox as a worker does, through
// package agent, and looks at nothing but the contract. With SHOAL_WHOLE set the
// cases about long times and large numbers run in full length. No file is watched
// here, so there is no case of watchers that live on (FS-13).
//
// # The fake
//
// [Fake] keeps sandboxes in this process: a folder, and the real agent server,
// which runs commands as plain processes with the hardening off. It is faithful
// in life cycle, streams, commands and files. It does not isolate: commands run
// as the test's own user, /workspace is a folder (commands see it as $HOME), and
// limits are recorded, not enforced. A pause stops the processes that still
// have their HOME; the agent's own clock goes on, so hold it before, as a
// worker does.
package sandboxtest

// Package host is the machine that an agent's server runs on, as it wants to
// see it (agent.Host): commands started by package launch, killed by package
// proc, files judged with the sandbox user's rights.
//
// [New] is the hardened one of a sandbox. [NewUnhardened] runs commands as the
// process's own user and is for tests outside of a sandbox.
package host

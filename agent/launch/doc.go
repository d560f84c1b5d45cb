// Package launch starts commands in a sandbox, hardened.
//
// # The program
//
// [Launcher] executes a small static program, launch, as root. It has no C
// library; its source and its options are in native/launch.c, build.sh compiles
// it. launch drops everything a command must not have, changes to the sandbox's
// user, enters the working directory and executes the command. The agent never
// lets a child of its own fork become the user before exec: a command looping on
// kill(-1, SIGSTOP) would stop it there and with it the agent, which waits in vfork.
//
// The command's arguments follow launch's options in its argument vector, and
// its environment is the command's own. That is the shortest way, nothing is
// copied or parsed, and it shows nothing that the executed command would not
// show itself.
//
// # The outcome
//
// launch tells over a pipe how far it got. [Launcher.Start] returns a running
// [Process], or a [StartError] with the step that failed and the kernel's reason.
// A command that another one stopped or killed during its start is an error too.
// Start always returns within the configured time and a second.
//
// # A kill during a start
//
// Until its mark is set, a starting command is root's and unmarked, so no scan
// finds it. Whoever kills cancels the context of such a start and waits for
// Start to return: the process is then dead and collected.
//
// # Tests without a sandbox
//
// [NewUnhardened] starts commands as the process's own user with nothing dropped.
package launch

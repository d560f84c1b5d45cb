// Package proc sees, waits for and kills the processes of a sandbox.
//
// # Children
//
// [Reaper] collects every child of the agent, those it started and the orphans
// that fall to it, in one thread. A [Child] is one that it started; signals to a
// Child never reach another process that got the same number.
//
// # Marks
//
// Every command has a mark, a supplementary group id of its own, which its
// descendants cannot give up (the filter that launch installs denies setgroups)
// and which /proc shows to everybody. [Marks] hands them out. A process of the
// sandbox's user without a mark in use is a runaway, and every kill takes it.
//
// # Killing
//
// [Table.Kill] stops all it wants to kill until a scan finds nothing new, kills
// them, and scans until none is left. It never forks, so it works when the
// sandbox has no process number left, and it is bounded in passes and time.
//
// # Tests without a sandbox
//
// [NewOwnReaper] and [Unhardened] are for a process that is no sandbox's agent:
// they touch only what carries a mark in its environment.
package proc

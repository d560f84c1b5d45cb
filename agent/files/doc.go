// Package files touches a sandbox's files, with its user's rights.
//
// # Whose rights
//
// Paths are opened, made, renamed and removed on threads whose effective user is
// the sandbox's (package threads), so the kernel judges every step and every link
// as if the user had taken it: a link that a command planted leads the agent
// nowhere the command could not go itself. What an open file holds is read and
// written outside of those threads, so a slow client holds none of them.
//
// /skills is the exception. It is read like everything else, and written by the
// agent as root through an os.Root at the volume's second, writable mount, which no
// link leaves.
//
// # Kinds
//
// Only regular files are read and written. FIFOs, sockets and devices are refused
// at once, without being opened.
//
// # Writes
//
// A write goes to a temporary file beside its target and takes effect by one
// rename, so the path holds the old content or the new. A link at the end of the
// path stays, its target is written. An upload that breaks off changes nothing.
// An archive is unpacked file by file, each of them in this way.
//
// # Bounds
//
// Listings are paged and keep one page in memory. Trees are followed 256 folders
// deep. All methods may be called from several goroutines, wait no longer than
// their context, and return [sandbox.Error]s.
package files

package agent

import (
	"context"
	"io"
	"syscall"
	"time"

	"shoal/sandbox"
)

// Host is the machine that a server runs commands on: it starts and kills
// processes and touches files with the sandbox user's rights. Its methods may
// be called from several goroutines. Errors are [sandbox.Error]s.
type Host interface {
	// Start starts a program and returns when it is being executed. Nothing is
	// left of one that failed (StartFailed with a reason) or whose ctx ended.
	Start(ctx context.Context, p Program) (Process, error)
	// Kill ends processes and returns when none is left, or when it gave up
	// after its own bound of 5 s. It takes those of the given programs and
	// every one that belongs to no program in use; all takes everything. An
	// error says that it could not look: nothing is confirmed.
	Kill(ctx context.Context, programs []Process, all bool) (Killed, error)
	// Limit sets the user's limit of processes for programs to come; 0 = none.
	Limit(processes int)
	// Stats measures the sandbox.
	Stats(ctx context.Context) (sandbox.Stats, error)
	// OOMKills counts the processes that the kernel ended for want of memory;
	// it only grows.
	OOMKills() int64
	// Sync writes what is cached to the disk.
	Sync()
	// Files is the sandbox's file system.
	Files() Files
}

// Killed is what a kill did.
type Killed struct {
	Processes int
	Survivors []int // by pid
}

// Program is what to start.
type Program struct {
	Argv []string
	Env  []string // the whole environment, key=value
	Dir  string
	// Stdin asks for a pipe; without, standard input is at its end.
	Stdin bool
	// TTY asks for a terminal in place of the pipes.
	TTY *sandbox.TTY
}

// Exit is how a main process ended.
type Exit struct {
	Code       int
	Signal     int // 0 = it exited by itself
	CPU        time.Duration
	PeakMemory int64 // bytes
}

// Pipe is the reading end of a program's output. After the end it returns io.EOF.
type Pipe interface {
	io.Reader
	SetReadDeadline(at time.Time) error
	// Pending is how many bytes could be read now.
	Pending() int
}

// Process is a started program with the processes that come from it.
type Process interface {
	Pid() int
	// Done is closed when the main process has ended; Exit then says how.
	Done() <-chan struct{}
	Exit() Exit
	// Stdout and Stderr; with a terminal Stderr is nil.
	Stdout() Pipe
	Stderr() Pipe
	// Stdin is nil unless the program asked for it or has a terminal. Write
	// waits while the program does not read and ends at Close.
	Stdin() io.WriteCloser
	// Signal signals the main process's group.
	Signal(sig syscall.Signal) error
	// Resize sets the terminal's size.
	Resize(size sandbox.TTY) error
	// Finish ends what the main process, which has ended, left behind, and
	// gives the program's mark back. An ordinary end costs next to nothing.
	Finish(ctx context.Context) (Killed, error)
	// Keep lets what it left go on, in place of Finish.
	Keep()
	// Kept reports whether something may still go on after Keep.
	Kept() bool
	// Close closes the descriptors. To be called once, after Done.
	Close()
}

// Files is a sandbox's file system, judged with the user's rights. /skills is
// the agent's to write.
type Files interface {
	Stat(ctx context.Context, path string, hash bool) (sandbox.FileInfo, error)
	List(ctx context.Context, path string, o sandbox.ListOptions) (sandbox.FileList, error)
	Mkdir(ctx context.Context, path string, mode uint32) error
	Remove(ctx context.Context, path string, all bool) error
	Rename(ctx context.Context, from, to string, replace bool) error
	// Read writes the content to w.
	Read(ctx context.Context, path string, o sandbox.ReadOptions, w io.Writer) (ReadResult, error)
	// Write replaces a file by what r holds. commit is called right around the
	// rename and may refuse it.
	Write(ctx context.Context, path string, o sandbox.WriteOptions, r io.Reader, commit Commit) (sandbox.FileInfo, error)
	// Pack writes a directory as tar.
	Pack(ctx context.Context, path string, w io.Writer) error
	// Unpack makes the entries of a tar below a directory, and counts them.
	Unpack(ctx context.Context, path string, r io.Reader, commit Commit) (entries int, err error)
}

// Commit runs the step that makes an operation take effect, unless the caller
// may no longer act; then it returns Fenced and the step does not run.
type Commit func(step func() error) error

// ReadResult says how a read ended.
type ReadResult struct {
	// Truncated: the limit came before the end of the file.
	Truncated bool
	// Size of the file when it was opened.
	Size int64
}

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"shoal/agent/proc"
	"shoal/agent/threads"
)

// Config says how commands are started.
type Config struct {
	// Program is the path of the launch program.
	Program string
	// UID and GID are the commands' user, both above 0.
	UID, GID int
	// Reaper collects the commands.
	Reaper *proc.Reaper
	// Threads run with the user's rights; pipes and terminals are made there.
	Threads threads.Runner
	// OpenFiles is a command's limit of descriptors. Defaults to 4096; a limit
	// that is lower already stays.
	OpenFiles int
	// Processes is the limit of the user's processes and threads, by RLIMIT_NPROC;
	// 0 leaves it. Only for gVisor: elsewhere it counts the host's processes.
	Processes int
	// OOMScore is the commands' oom_score_adj. Defaults to 500.
	OOMScore int
	// Nice is the commands' nice value, 0 to 19. Defaults to 19: the agent then
	// gets its turn among hundreds of spinning commands. The sandbox's own share
	// of the machine does not change by it.
	Nice int
	// NoRewrite forbids tracers to rewrite system calls, see [RewriteUnchecked].
	NoRewrite bool
	// Timeout is how long a start may take. Defaults to 5 s.
	Timeout time.Duration
}

// Command is one program to start.
type Command struct {
	// Argv is the program and its arguments. A program without a slash is
	// looked up in the PATH of Env, with the user's rights.
	Argv []string
	// Env is the whole environment, as key=value.
	Env []string
	// Dir is the working directory, entered with the user's rights.
	Dir string
	// Mark is the command's mark, from [proc.Marks].
	Mark int
	// Stdin asks for a pipe to standard input; without, it is at its end.
	Stdin bool
	// Terminal asks for a terminal of this size in place of the three pipes.
	Terminal *Size
}

// Process is a started command: a child with the agent's ends of its descriptors.
type Process struct {
	*proc.Child
	// Stdin is there when the command asked for it. Closing it is the end of file.
	Stdin *os.File
	// Stdout and Stderr are there unless there is a terminal. They take deadlines.
	Stdout, Stderr *os.File
	// Terminal is there when the command asked for it.
	Terminal *Terminal

	io *stdio
}

// Close closes the agent's ends of the descriptors. It ends nothing else.
func (p *Process) Close() { p.io.closeParent() }

// Launcher starts commands. It may be used from several goroutines.
type Launcher struct {
	reaper  *proc.Reaper
	threads threads.Runner
	timeout time.Duration
	fork    func(c *Command, files []uintptr) (int, error)
	reports bool // the process reports its start over descriptor 3
}

// New checks the configuration.
func New(cfg Config) (*Launcher, error) {
	switch {
	case !filepath.IsAbs(cfg.Program):
		return nil, fmt.Errorf("launch: Program %q is not an absolute path", cfg.Program)
	case cfg.UID <= 0 || cfg.GID <= 0:
		return nil, fmt.Errorf("launch: UID %d and GID %d must be above 0", cfg.UID, cfg.GID)
	case cfg.Reaper == nil || cfg.Threads == nil:
		return nil, errors.New("launch: Reaper and Threads must be set")
	case cfg.Nice < 0 || cfg.Nice > 19:
		return nil, fmt.Errorf("launch: Nice %d is not from 0 to 19", cfg.Nice)
	case cfg.OpenFiles < 0 || cfg.Processes < 0 || cfg.Timeout < 0 || cfg.OOMScore < 0 || cfg.OOMScore > 1000:
		return nil, errors.New("launch: OpenFiles, Processes and Timeout must not be negative, OOMScore 0 to 1000")
	}
	cfg.OpenFiles = cmp.Or(cfg.OpenFiles, 4096)
	cfg.OOMScore = cmp.Or(cfg.OOMScore, 500)
	cfg.Nice = cmp.Or(cfg.Nice, 19)
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	return &Launcher{reaper: cfg.Reaper, threads: cfg.Threads, timeout: cfg.Timeout, fork: cfg.fork, reports: true}, nil
}

// fork executes the launch program. It runs as root until it has dropped
// everything, so no command can stop it while the runtime waits in vfork.
func (cfg Config) fork(c *Command, files []uintptr) (int, error) {
	options := fmt.Sprintf("u%dg%dm%dn%dp%do%dk%d", cfg.UID, cfg.GID, c.Mark, cfg.OpenFiles, cfg.Processes, cfg.OOMScore, cfg.Nice)
	if c.Terminal != nil {
		options += "t1"
	}
	if cfg.NoRewrite {
		options += "x1"
	}
	argv := append([]string{"launch", options, c.Dir}, c.Argv...)
	return syscall.ForkExec(cfg.Program, argv, &syscall.ProcAttr{Env: c.Env, Files: files})
}

// Start starts a command and returns when its program is being executed. It
// fails with a [*StartError], or with the context's cause when the context
// ended first; in both cases no process is left. A command killed in the instant
// of its start may also be returned as a Process that ends at once.
func (l *Launcher) Start(ctx context.Context, c Command) (*Process, error) {
	if c.Mark <= 0 || len(c.Argv) == 0 || c.Argv[0] == "" {
		return nil, &StartError{Step: StepOptions, Errno: syscall.EINVAL}
	}
	var (
		s   *stdio
		err error
	)
	if e := l.threads.Do(ctx, func() { s, err = openStdio(&c) }); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, startError(StepPipes, err)
	}
	child, err := l.run(ctx, &c, s)
	s.closeChild()
	if err != nil {
		s.closeParent()
		return nil, err
	}
	return &Process{Child: child, Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr, Terminal: s.pty, io: s}, nil
}

func (l *Launcher) run(ctx context.Context, c *Command, s *stdio) (*proc.Child, error) {
	files := []uintptr{uintptr(s.child[0]), uintptr(s.child[1]), uintptr(s.child[2])}
	if !l.reports {
		return l.forkOne(ctx, c, files)
	}
	w, status, err := pipeFrom("status")
	if err != nil {
		return nil, startError(StepPipes, err)
	}
	defer status.Close()
	child, err := l.forkOne(ctx, c, append(files, uintptr(w)))
	_ = unix.Close(w)
	if err != nil {
		return nil, err
	}
	if err := l.await(ctx, child, status); err != nil {
		return nil, err
	}
	return child, nil
}

func (l *Launcher) forkOne(ctx context.Context, c *Command, files []uintptr) (*proc.Child, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	child, err := l.reaper.Fork(func() (int, error) { return l.fork(c, files) })
	switch {
	case err == nil:
		return child, nil
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.ENAMETOOLONG):
		// The launch program is given the command's arguments; the second is gVisor's word.
		return nil, &StartError{Step: StepExec, Errno: syscall.E2BIG}
	default:
		return nil, startError(StepFork, err)
	}
}

// startError gives err its step, unless it has one.
func startError(step Step, err error) error {
	if e, ok := errors.AsType[*StartError](err); ok {
		return e
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return &StartError{Step: step, Errno: errno}
	}
	return fmt.Errorf("start: %s: %w", step, err)
}

package host

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"shoal/agent"
	"shoal/agent/launch"
	"shoal/agent/proc"
	"shoal/agent/threads"
	"shoal/sandbox"
)

// The sandbox's user.
const (
	UID = 1000
	GID = 1000
)

const workspace = "/workspace"

// Config is what a hardened host needs.
type Config struct {
	// Launch is the path of the launch program.
	Launch string
	// Files is the sandbox's file system.
	Files agent.Files
	// Threads run with the sandbox user's rights.
	Threads threads.Runner
}

// Host implements agent.Host. [Host.Run] must be running.
type Host struct {
	reaper *proc.Reaper
	table  *proc.Table
	files  agent.Files
	cgroup *proc.Cgroup
	config launch.Config // of the launcher, but for the limit of processes
	launch atomic.Pointer[launch.Launcher]
	plain  bool   // not hardened
	root   string // stands for /workspace, "" = itself

	mu     sync.Mutex
	looked time.Time // when processes were last listed for Kept; guarded by mu
}

var _ agent.Host = (*Host)(nil)

// New returns the host of a sandbox. It opens /proc and makes the process adopt
// orphans.
func New(cfg Config) (*Host, error) {
	if cfg.Files == nil || cfg.Threads == nil {
		return nil, errors.New("host: Files and Threads must be set")
	}
	reaper := proc.NewReaper()
	table, err := proc.NewTable(proc.Config{UID: UID, Reaper: reaper})
	if err != nil {
		return nil, err
	}
	h := &Host{
		reaper: reaper,
		table:  table,
		files:  cfg.Files,
		cgroup: proc.OpenCgroup(),
		config: launch.Config{
			Program: cfg.Launch, UID: UID, GID: GID, Reaper: reaper, Threads: cfg.Threads,
			NoRewrite: launch.RewriteUnchecked(),
		},
	}
	launcher, err := launch.New(h.config)
	if err != nil {
		return nil, err
	}
	h.launch.Store(launcher)
	return h, nil
}

// NewUnhardened returns a host for tests: commands run as the process's own
// user with nothing dropped. root stands for /workspace.
func NewUnhardened(root string, files agent.Files) (*Host, error) {
	reaper := proc.NewOwnReaper()
	table, err := proc.Unhardened(reaper)
	if err != nil {
		return nil, err
	}
	h := &Host{reaper: reaper, table: table, files: files, cgroup: proc.OpenCgroup(), plain: true, root: root}
	h.launch.Store(launch.NewUnhardened(reaper))
	return h, nil
}

// Run collects ended processes until ctx ends and the last one has ended.
func (h *Host) Run(ctx context.Context) { h.reaper.Run(ctx) }

// Start implements agent.Host.
func (h *Host) Start(ctx context.Context, p agent.Program) (agent.Process, error) {
	mark, err := h.table.Acquire()
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Busy, "too many commands have processes in the sandbox").Because("marks").Wrap(err)
	}
	started, err := h.launch.Load().Start(ctx, launch.Command{
		Argv: p.Argv, Env: p.Env, Dir: h.inside(p.Dir), Mark: mark.Number(), Stdin: p.Stdin, Terminal: size(p.TTY),
	})
	if err != nil {
		h.table.Release(mark)
		return nil, startError(ctx, err)
	}
	return &process{host: h, started: started, mark: mark}, nil
}

func size(t *sandbox.TTY) *launch.Size {
	if t == nil {
		return nil
	}
	return &launch.Size{Rows: t.Rows, Cols: t.Cols}
}

// startError says in one word what was wrong with the request: that is what a
// caller can test.
func startError(ctx context.Context, err error) error {
	e, ok := errors.AsType[*launch.StartError](err)
	if !ok {
		if ctx.Err() != nil {
			return err
		}
		return sandbox.Errorf(sandbox.Internal, "start the command").Wrap(err)
	}
	failed := func(reason, format string, args ...any) error {
		return sandbox.Errorf(sandbox.StartFailed, format, args...).Because(reason).From(sandbox.FromSandbox).Wrap(err)
	}
	switch {
	case e.Step == launch.StepDirectory:
		return failed("cwd", "the working directory cannot be entered: %v", e.Errno)
	case e.Step == launch.StepExec && e.Errno == syscall.E2BIG:
		return failed("too_large", "arguments and environment are too long for the kernel; write a file instead")
	case e.Step == launch.StepExec:
		return failed("program", "the program cannot be executed: %v", e.Errno)
	case e.Step == launch.StepKilled:
		return failed("killed", "another process killed it while it started")
	case e.Step == launch.StepStopped:
		return failed("stopped", "it did not start in time: stopped by another process, or the sandbox is overloaded")
	case errors.Is(e.Errno, syscall.EAGAIN), errors.Is(e.Errno, syscall.ENOMEM):
		return failed("resources", "the sandbox has no room for another process: %v", e.Errno)
	}
	return failed("hardening", "the step %s failed: %v", e.Step, e.Errno)
}

// Kill implements agent.Host.
func (h *Host) Kill(ctx context.Context, programs []agent.Process, all bool) (agent.Killed, error) {
	target := proc.Target{All: all}
	for _, p := range programs {
		if own, ok := p.(*process); ok {
			target.Marks = append(target.Marks, own.mark)
		}
	}
	r, err := h.table.Kill(ctx, target)
	if err != nil {
		return agent.Killed{}, sandbox.Errorf(sandbox.Internal, "look at the sandbox's processes").Wrap(err)
	}
	return killed(r), nil
}

func killed(r proc.Result) agent.Killed {
	k := agent.Killed{Processes: r.Killed}
	for _, s := range r.Survivors {
		k.Survivors = append(k.Survivors, s.Pid)
	}
	return k
}

// Limit implements agent.Host.
func (h *Host) Limit(processes int) {
	if h.plain {
		return
	}
	cfg := h.config
	cfg.Processes = processes
	if launcher, err := launch.New(cfg); err == nil { // the rest was checked before
		h.launch.Store(launcher)
	}
}

// Sync implements agent.Host.
func (h *Host) Sync() {
	if !h.plain {
		unix.Sync()
	}
}

// Files implements agent.Host.
func (h *Host) Files() agent.Files { return h.files }

// inside maps a path below /workspace to the root that stands for it.
func (h *Host) inside(path string) string {
	rest, ok := strings.CutPrefix(path, workspace)
	if h.root == "" || !ok || rest != "" && rest[0] != '/' {
		return path
	}
	return h.root + rest
}

// lookEvery is how often Kept looks at the processes at most.
const lookEvery = 4 * time.Second

// kept says whether something of an ended command may go on.
func (h *Host) kept(mark proc.Mark) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.looked) > lookEvery {
		h.looked = time.Now()
		_, _ = h.table.Processes() // a scan that fails frees no mark
	}
	return h.table.Kept(mark)
}

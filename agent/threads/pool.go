package threads

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrClosed says that the pool was closed.
var ErrClosed = errors.New("threads: the pool is closed")

// Runner runs a function with some user's rights and waits for it.
//
// Do returns the context's error when no thread came free in time; the function
// has then not run. Once begun it is not interrupted, so it must not block for
// long. A Runner may be used from several goroutines.
type Runner interface {
	Do(ctx context.Context, fn func()) error
}

// Self runs functions on the calling goroutine, with the process's own rights.
type Self struct{}

// Do runs fn at once.
func (Self) Do(ctx context.Context, fn func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	fn()
	return nil
}

// Config says whose threads a pool has, and how many.
type Config struct {
	UID, GID int // the user, both above 0
	Size     int // number of threads, at least 1; defaults to 4
}

// Pool is a fixed number of threads with a user's rights. It is a [Runner].
type Pool struct {
	cfg    Config
	jobs   chan job
	closed chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
}

var _ Runner = (*Pool)(nil)

type job struct {
	fn   func()
	done chan struct{}
}

// NewPool checks the configuration. [Pool.Start] makes the threads.
func NewPool(cfg Config) (*Pool, error) {
	if cfg.Size == 0 {
		cfg.Size = 4
	}
	if cfg.UID <= 0 || cfg.GID <= 0 || cfg.Size < 0 {
		return nil, fmt.Errorf("threads: uid %d, gid %d and size %d must be above 0", cfg.UID, cfg.GID, cfg.Size)
	}
	return &Pool{cfg: cfg, jobs: make(chan job), closed: make(chan struct{})}, nil
}

// Start makes the threads and changes their rights. On an error no thread is
// left. It must be called once, before Do; it needs CAP_SETUID and CAP_SETGID.
func (p *Pool) Start() error {
	ready := make(chan error, p.cfg.Size)
	for range p.cfg.Size {
		p.wg.Go(func() { p.thread(ready) })
	}
	var err error
	for range p.cfg.Size {
		err = errors.Join(err, <-ready)
	}
	// The change made the process undumpable, or should have: nobody of the user
	// may look into it, whatever fs.suid_dumpable says.
	err = errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	if err != nil {
		p.Close()
		return fmt.Errorf("threads: take the user's rights: %w", err)
	}
	return nil
}

// thread serves jobs on one thread. It never unlocks a thread that changed, so
// the runtime ends it with the goroutine.
func (p *Pool) thread(ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread stands for the process in /proc and cannot be ended:
		// hold it here, unchanged, while another one takes the place.
		p.wg.Go(func() { p.thread(ready) })
		<-p.closed
		runtime.UnlockOSThread()
		return
	}
	err := become(p.cfg.UID, p.cfg.GID)
	ready <- err
	if err != nil {
		return
	}
	for {
		select {
		case j := <-p.jobs:
			j.run()
		case <-p.closed:
			return
		}
	}
}

// run closes done also when fn ends the goroutine, so that nobody waits for ever.
func (j job) run() {
	defer close(j.done)
	j.fn()
}

// become changes the calling thread alone; the wrappers in package syscall
// would change the whole process.
func become(uid, gid int) error {
	const keep = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("setgroups: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(gid), keep); e != 0 {
		return fmt.Errorf("setresgid: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		return fmt.Errorf("setresuid: %w", e)
	}
	if unix.Geteuid() != uid || unix.Getegid() != gid {
		return errors.New("the ids did not change")
	}
	return nil
}

// Do runs fn on one of the pool's threads and waits for it.
func (p *Pool) Do(ctx context.Context, fn func()) error {
	j := job{fn: fn, done: make(chan struct{})}
	select {
	case p.jobs <- j:
		<-j.done
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.closed:
		return ErrClosed
	}
}

// Close ends the threads and waits for them. It may be called twice.
func (p *Pool) Close() {
	p.once.Do(func() { close(p.closed) })
	p.wg.Wait()
}

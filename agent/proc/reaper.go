package proc

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrEnded says that a signal came too late: the process has ended.
var ErrEnded = errors.New("the process has ended")

// Exit is how a process ended.
type Exit struct {
	// Signal is what ended the process, 0 when it exited by itself.
	Signal syscall.Signal
	// Code is the exit code; it means nothing when Signal is set.
	Code int
	// CPU is the user and system time of the process and of the descendants it waited for.
	CPU time.Duration
	// MaxRSS is the largest memory that it or one of them had, in bytes.
	MaxRSS int64
}

// Child is a process that [Reaper.Fork] made. Its methods may be called from
// several goroutines.
type Child struct {
	reaper *Reaper
	pid    int
	done   chan struct{}
	exit   Exit // written before done is closed
}

// Pid is the process's number; another process may have it after Done.
func (c *Child) Pid() int { return c.pid }

// Done is closed when the process has ended and was collected.
func (c *Child) Done() <-chan struct{} { return c.done }

// Exit says how the process ended. It may be called after Done only.
func (c *Child) Exit() Exit {
	<-c.done
	return c.exit
}

// Signal sends a signal to the process alone, or returns [ErrEnded].
func (c *Child) Signal(sig syscall.Signal) error { return c.signal(c.pid, sig) }

// SignalGroup sends a signal to the process group that the process leads. It
// returns [ErrEnded] once the process itself has ended.
func (c *Child) SignalGroup(sig syscall.Signal) error { return c.signal(-c.pid, sig) }

// signal holds the lock under which children are collected, so the number is
// still the child's.
func (c *Child) signal(target int, sig syscall.Signal) error {
	c.reaper.mu.Lock()
	defer c.reaper.mu.Unlock()
	select {
	case <-c.done:
		return ErrEnded
	default:
		return os.NewSyscallError("kill", syscall.Kill(target, sig))
	}
}

// Reaper collects ended children. The zero value is of no use; see [NewReaper].
type Reaper struct {
	all   bool
	scope string        // of marks in the environment
	wake  chan struct{} // a child was made
	wg    sync.WaitGroup

	mu       sync.Mutex
	children map[int]*Child
	clock    uint64              // counts forks begun and children collected
	forks    map[uint64]struct{} // when each fork under way began
	early    map[int]early       // ended before their fork returned, or not ours
}

type early struct {
	at   uint64
	exit Exit
}

// NewReaper returns a Reaper of every child, also of those it does not know. The
// process must not wait for children in any other way (os/exec does).
func NewReaper() *Reaper { return newReaper(true) }

// NewOwnReaper returns a Reaper that waits for what Fork made and for nothing
// else, one thread for each.
func NewOwnReaper() *Reaper { return newReaper(false) }

func newReaper(all bool) *Reaper {
	return &Reaper{
		all:      all,
		scope:    rand.Text(),
		wake:     make(chan struct{}, 1),
		children: map[int]*Child{},
		forks:    map[uint64]struct{}{},
		early:    map[int]early{},
	}
}

// Run collects children until ctx is done, and then until the next child ends or
// none is left: waiting for children cannot be interrupted.
func (r *Reaper) Run(ctx context.Context) {
	if !r.all {
		<-ctx.Done()
		r.wg.Wait()
		return
	}
	for ctx.Err() == nil {
		if pid, err := awaitZombie(unix.P_ALL, 0); err == nil {
			r.collect(pid)
			continue
		}
		select { // no child is left
		case <-r.wake:
		case <-ctx.Done():
		}
	}
}

// Fork calls fork, which starts one process and returns its number, and
// registers it. Several forks may be under way at once.
func (r *Reaper) Fork(fork func() (int, error)) (*Child, error) {
	r.mu.Lock()
	r.clock++
	began := r.clock
	r.forks[began] = struct{}{}
	r.mu.Unlock()

	pid, err := fork()

	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.forks, began)
	defer r.forgetEarlyLocked()
	if err != nil {
		return nil, err
	}
	c := &Child{reaper: r, pid: pid, done: make(chan struct{})}
	if e, ok := r.early[pid]; ok && e.at > began {
		delete(r.early, pid)
		c.endLocked(e.exit)
		return c, nil
	}
	r.children[pid] = c
	r.watchLocked(pid)
	return c, nil
}

func (r *Reaper) watchLocked(pid int) {
	if !r.all {
		r.wg.Go(func() {
			if _, err := awaitZombie(unix.P_PID, pid); err == nil {
				r.collect(pid)
			}
		})
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// forgetEarlyLocked drops what no fork under way can ask for any more.
func (r *Reaper) forgetEarlyLocked() {
	oldest := r.clock + 1
	for began := range r.forks {
		oldest = min(oldest, began)
	}
	for pid, e := range r.early {
		if e.at < oldest {
			delete(r.early, pid)
		}
	}
}

// collect takes the status of a process that is known to be a zombie, so the
// lock is not held while waiting.
func (r *Reaper) collect(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status unix.WaitStatus
	var usage unix.Rusage
	if got, err := unix.Wait4(pid, &status, unix.WNOHANG, &usage); err != nil || got != pid {
		return
	}
	exit := exitOf(status, usage)
	r.clock++
	if c := r.children[pid]; c != nil {
		delete(r.children, pid)
		c.endLocked(exit)
	} else if len(r.forks) > 0 {
		r.early[pid] = early{at: r.clock, exit: exit}
	}
}

func (c *Child) endLocked(exit Exit) {
	c.exit = exit
	close(c.done)
}

// markEnv stands for the mark where commands are not hardened, that is in tests.
const markEnv = "SHOAL_MARK"

// MarkVariable returns the environment entry that marks a process for the
// [Unhardened] Table of this Reaper, and for no other one's.
func (r *Reaper) MarkVariable(number int) string {
	return markEnv + "=" + r.scope + "." + strconv.Itoa(number)
}

// Running returns how many children made by Fork have not ended.
func (r *Reaper) Running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.children)
}

// knows says whether pid is a living child that Fork made, or may be about to be one.
func (r *Reaper) knows(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.children[pid] != nil
}

func exitOf(status unix.WaitStatus, usage unix.Rusage) Exit {
	e := Exit{
		CPU:    time.Duration(usage.Utime.Nano() + usage.Stime.Nano()),
		MaxRSS: usage.Maxrss << 10,
	}
	if status.Signaled() {
		e.Signal = status.Signal()
	} else {
		e.Code = status.ExitStatus()
	}
	return e
}

// childInfo is siginfo_t as waitid(2) fills it.
type childInfo struct {
	_   [4]int32
	pid int32
	_   [108]byte
}

// awaitZombie waits until a child has ended and leaves it uncollected: its
// number then stays taken until collect takes it under the lock.
func awaitZombie(idType, id int) (int, error) {
	for {
		var info childInfo
		err := unix.Waitid(idType, id, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOWAIT, nil) //nolint:gosec // same layout and size
		if !errors.Is(err, unix.EINTR) {
			return int(info.pid), err
		}
	}
}

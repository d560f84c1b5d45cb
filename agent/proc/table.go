package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Config says whose processes a Table looks after.
type Config struct {
	// UID is the sandbox's user, above 0.
	UID int
	// Reaper collects the agent's children.
	Reaper *Reaper
}

// Table knows the processes of the sandbox and their marks. Its methods may be
// called from several goroutines.
type Table struct {
	uid       int // -1: only what is marked is ours
	reaper    *Reaper
	fs        procFS
	self      int
	marks     *marks
	subreaper bool // orphans become our children, and the kernel lists them
	handles   bool // the kernel takes a /proc/<pid> directory as a process handle
	buffers   sync.Pool
}

// NewTable opens /proc and makes the process adopt the orphans of its commands,
// where the kernel can.
func NewTable(cfg Config) (*Table, error) {
	if cfg.UID <= 0 || cfg.Reaper == nil {
		return nil, errors.New("proc: UID must be above 0 and Reaper set")
	}
	t, err := newTable(cfg)
	if err != nil {
		return nil, err
	}
	err = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	// gVisor (2022) answers success and does nothing; it lists no children either.
	_, listed := t.adopted()
	t.subreaper = err == nil && listed == nil
	return t, nil
}

// Unhardened returns a Table of what the launcher of the same name started. It
// finds marks in the environment, and knows no runaways: whatever has no mark is
// not the sandbox's. Only tests use it.
func Unhardened(reaper *Reaper) (*Table, error) {
	return newTable(Config{UID: -1, Reaper: reaper})
}

func newTable(cfg Config) (*Table, error) {
	fs, err := openProc()
	if err != nil {
		return nil, fmt.Errorf("proc: %w", err)
	}
	t := &Table{
		uid: cfg.UID, reaper: cfg.Reaper,
		fs: fs, self: os.Getpid(), marks: newMarks(),
	}
	t.buffers.New = func() any { return new([maxStatus]byte) }
	if self, err := fs.handle(t.self); err == nil {
		t.handles = unix.PidfdSendSignal(self, 0, nil, 0) == nil
		_ = unix.Close(self)
	}
	return t, nil
}

// Acquire hands out a mark for a command that is about to start, or returns
// [ErrNoMark].
func (t *Table) Acquire() (Mark, error) {
	if mark, ok := t.marks.take(); ok {
		return mark, nil
	}
	for range quietPasses {
		if _, whole, err := t.scan(); err != nil {
			return Mark{}, err
		} else if whole {
			break
		}
	}
	if mark, ok := t.marks.take(); ok {
		return mark, nil
	}
	return Mark{}, ErrNoMark
}

// Release says that the command has ended. Whatever still carries the mark is a
// runaway from now on.
func (t *Table) Release(mark Mark) { t.marks.set(mark, markResting) }

// Keep says that the command has ended and that its processes may go on. The
// mark stays in use until a scan finds it on none.
func (t *Table) Keep(mark Mark) { t.marks.set(mark, markKept) }

// Kept says whether a process may still carry a mark that was given to Keep, as
// far as the last scan knows.
func (t *Table) Kept(mark Mark) bool { return t.marks.current(mark) }

// Processes returns every process of the sandbox's user and everything marked.
func (t *Table) Processes() ([]Process, error) {
	all, _, err := t.scan()
	return slices.DeleteFunc(all, func(p Process) bool { return !t.ours(&p) }), err
}

// ours says whether a process belongs to the sandbox's commands.
func (t *Table) ours(p *Process) bool {
	return p.Pid != t.self && (p.Mark != 0 || t.uid > 0 && p.ownedBy(t.uid))
}

// scan reads every process once. It is whole when no process vanished between
// being listed and being read: such a one may have left a child that was not listed.
func (t *Table) scan() (all []Process, whole bool, err error) {
	began := t.marks.now()
	pids, err := t.fs.pids()
	if err != nil {
		return nil, false, fmt.Errorf("list processes: %w", err)
	}
	whole = true
	carried := map[int]bool{}
	all = make([]Process, 0, len(pids))
	for _, pid := range pids {
		p, err := t.read(pid)
		if errors.Is(err, errVanished) {
			whole = false
			continue
		}
		if err != nil {
			return nil, false, fmt.Errorf("read process %d: %w", pid, err)
		}
		if p.Mark != 0 && p.Alive() {
			carried[p.Mark] = true
		}
		all = append(all, p)
	}
	if whole {
		t.marks.settle(began, carried)
	}
	return all, whole, nil
}

// kthreadd is the parent of the kernel's threads, which have no environment.
const kthreadd = 2

func (t *Table) read(pid int) (Process, error) {
	buf := t.buffers.Get().(*[maxStatus]byte)
	defer t.buffers.Put(buf)
	p, err := t.fs.process(pid, buf[:])
	if err == nil && t.uid < 0 && pid != t.self && p.Alive() && p.PPid != kthreadd && pid != kthreadd {
		p.Mark, err = t.fs.environMark(pid, t.reaper.scope)
	}
	return p, err
}

// Finish ends what a foreground command left behind and gives its mark back. An
// ordinary end costs no scan: whatever a command leaves has an orphan of it at
// its root, and orphans become our children. (The filter denies CLONE_PARENT,
// which would make a child of ours without an orphan.)
func (t *Table) Finish(ctx context.Context, mark Mark) (Result, error) {
	defer t.Release(mark)
	if t.subreaper {
		orphans, err := t.adopted()
		if err == nil && !slices.ContainsFunc(orphans, func(p Process) bool { return t.leftBy(&p, mark) }) {
			return Result{}, nil
		}
	}
	return t.Kill(ctx, Target{Marks: []Mark{mark}})
}

func (t *Table) leftBy(p *Process, mark Mark) bool {
	return t.ours(p) && p.Alive() && (p.Mark == mark.number || !t.marks.inUse(p.Mark))
}

// adopted returns the children that we did not start. The kernel gives orphans
// to the main thread.
func (t *Table) adopted() ([]Process, error) {
	buf := make([]byte, 64<<10)
	self := strconv.Itoa(t.self)
	text, err := readFile(int(t.fs.root.Fd()), self+"/task/"+self+"/children", buf)
	if err != nil {
		return nil, err
	}
	if len(text) == len(buf) {
		return nil, errors.New("more children than can be looked at one by one")
	}
	var orphans []Process
	for _, pid := range parsePids(text) {
		if t.reaper.knows(pid) {
			continue
		}
		if p, err := t.read(pid); err == nil {
			orphans = append(orphans, p)
		}
	}
	return orphans, nil
}

package proc

import (
	"bytes"
	"context"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The bounds of a kill.
const (
	// KillTime is how long a kill goes on at most.
	KillTime = 4500 * time.Millisecond
	// stopShare is the part of the time in which victims are stopped first.
	stopShare = 2
	// quietPasses is how many scans without a victim end a kill when none of
	// them was whole: a process may be ending and forking all the time.
	quietPasses = 8
	longestRest = 20 * time.Millisecond
)

// Target selects what a kill takes: everything, or what carries one of the
// marks. Runaways, processes of the sandbox's user without a mark in use, are
// always part of it.
type Target struct {
	All   bool
	Marks []Mark
}

// Survivor is a process that a kill could not end.
type Survivor struct {
	Pid   int
	Name  string
	State byte
}

// Result says what a kill did.
type Result struct {
	// Killed is how many processes it found and sent SIGKILL.
	Killed int
	// Survivors is what was left when the time was over.
	Survivors []Survivor
}

// Kill ends the selected processes and returns when none is left, or after
// [KillTime] or the context's end with the survivors. It reports an error when it
// could not look; the kill is then not confirmed. Starts under way are not
// part of it: their contexts must have been cancelled and their Start returned.
func (t *Table) Kill(ctx context.Context, target Target) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, KillTime)
	defer cancel()
	k := killer{table: t, target: target, marks: map[int]bool{}, seen: map[int]bool{}}
	for _, mark := range target.Marks {
		if t.marks.current(mark) { // else the number is another command's by now
			k.marks[mark.number] = true
		}
	}
	if err := k.stop(ctx); err != nil {
		return Result{}, err
	}
	survivors, err := k.kill(ctx)
	return Result{Killed: len(k.seen), Survivors: survivors}, err
}

// killer is one kill under way.
type killer struct {
	table  *Table
	target Target
	marks  map[int]bool
	seen   map[int]bool
}

// wants says whether the kill takes p. A starting command is root's between its
// mark and its uid.
func (k *killer) wants(p *Process) bool {
	switch {
	case !k.table.ours(p) || !p.Alive():
		return false
	case k.target.All || k.marks[p.Mark]:
		return true
	default:
		return k.table.uid > 0 && p.ownedBy(k.table.uid) && !k.table.marks.inUse(p.Mark)
	}
}

func (k *killer) victims() (found []Process, whole bool, err error) {
	all, whole, err := k.table.scan()
	for _, p := range all {
		if k.wants(&p) {
			found = append(found, p)
		}
	}
	return found, whole, err
}

// stop stops victims until a pass finds nothing new. A stopped process keeps its
// number and makes no child, so a fork bomb cannot refill what is killed later:
// fork fails with a restart while a signal is pending.
func (k *killer) stop(ctx context.Context) error {
	limit := time.Now().Add(KillTime / stopShare)
	for ctx.Err() == nil && time.Now().Before(limit) {
		found, _, err := k.victims()
		if err != nil {
			return err
		}
		fresh := 0
		for _, p := range found {
			if !k.seen[p.Pid] && ctx.Err() == nil {
				fresh++
				k.seen[p.Pid] = true
				k.signal(p.Pid, syscall.SIGSTOP)
			}
		}
		if fresh == 0 {
			return nil
		}
	}
	return nil
}

// kill sends SIGKILL to what is left until nothing is.
func (k *killer) kill(ctx context.Context) ([]Survivor, error) {
	quiet, rest := 0, time.Millisecond
	for {
		found, whole, err := k.victims()
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			if quiet++; whole || quiet >= quietPasses {
				return nil, nil
			}
			continue
		}
		quiet = 0
		for _, p := range found {
			k.seen[p.Pid] = true
			k.signal(p.Pid, syscall.SIGKILL)
		}
		if !pause(ctx, rest) {
			return survivors(found), nil
		}
		rest = min(2*rest, longestRest)
	}
}

// signal looks at the process again, through the handle that the signal takes
// too, so that a number given to somebody else meanwhile is not hit. Without
// handles (gVisor) only the look is left.
func (k *killer) signal(pid int, sig syscall.Signal) {
	dir, err := k.table.fs.handle(pid)
	if err != nil {
		return
	}
	defer unix.Close(dir)
	p, err := k.table.read(pid)
	if err != nil || !k.wants(&p) {
		return
	}
	if k.table.handles {
		_ = unix.PidfdSendSignal(dir, sig, nil, 0)
		return
	}
	_ = syscall.Kill(pid, sig)
}

func survivors(found []Process) []Survivor {
	left := make([]Survivor, 0, len(found))
	for _, p := range found {
		left = append(left, Survivor{Pid: p.Pid, Name: p.Name, State: p.State})
	}
	return left
}

// pause waits, or returns false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func parsePids(text []byte) []int {
	var pids []int
	for field := range bytes.FieldsSeq(text) {
		if pid, err := strconv.Atoi(string(field)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

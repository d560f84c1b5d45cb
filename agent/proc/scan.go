package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Process is what /proc/<pid>/status says of a process.
type Process struct {
	Pid, PPid int
	// Name is at most 15 bytes that the process chose itself.
	Name string
	// State is the kernel's letter: R, S, D, T, t, Z, X, I.
	State   byte
	Threads int
	// UIDs are the real, effective, saved and file system user.
	UIDs [4]int
	// Mark is the command's mark, 0 for none.
	Mark int
}

// Alive says whether something of the process can still run: a zombie whose
// other threads live on is alive.
func (p *Process) Alive() bool {
	return p.State != 'X' && (p.State != 'Z' || p.Threads > 1)
}

func (p *Process) ownedBy(uid int) bool { return slices.Contains(p.UIDs[:], uid) }

// maxStatus is enough for the longest line that other processes' groups make.
const maxStatus = 16 << 10

// errVanished says that a process ended while it was looked at.
var errVanished = errors.New("the process vanished")

// procFS reads /proc through one descriptor, which stays open.
type procFS struct{ root *os.File }

func openProc() (procFS, error) {
	root, err := os.Open("/proc")
	return procFS{root}, err
}

// pids lists the numbers in use now.
func (f procFS) pids() ([]int, error) {
	dir, err := os.Open("/proc") // a listing of its own: several may be under way
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// handle opens /proc/<pid>, which stays the same process's whatever becomes of its number.
func (f procFS) handle(pid int) (int, error) {
	return unix.Openat(int(f.root.Fd()), strconv.Itoa(pid), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// readFile reads a file below at into buf, as far as it fits.
func readFile(at int, path string, buf []byte) ([]byte, error) {
	fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, vanished(err)
	}
	defer unix.Close(fd)
	n := 0
	for n < len(buf) {
		k, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, vanished(err)
		}
		n += k
		// The kernel fills a page as far as whole records fit, and these are
		// short: much less than a page is the end, and costs no second read.
		if k < os.Getpagesize()/2 {
			break
		}
	}
	return buf[:n], nil
}

func vanished(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return errVanished
	}
	return err
}

// process reads /proc/<pid>/status.
func (f procFS) process(pid int, buf []byte) (Process, error) {
	text, err := readFile(int(f.root.Fd()), strconv.Itoa(pid)+"/status", buf)
	if err != nil {
		return Process{}, err
	}
	return parseStatus(pid, text)
}

// parseStatus lets the last line of a name win: the process's own name comes
// first and, under gVisor, may hold a line feed and a forged line.
func parseStatus(pid int, text []byte) (Process, error) {
	p := Process{Pid: pid, Threads: 1}
	var haveState, haveUID bool
	for i, line := range bytes.Split(text, []byte{'\n'}) {
		key, value, ok := bytes.Cut(line, []byte{':'})
		if !ok {
			continue
		}
		value = bytes.TrimSpace(value)
		switch string(key) {
		case "Name":
			if i == 0 {
				p.Name = string(value)
			}
		case "State":
			if haveState = len(value) > 0; haveState {
				p.State = value[0]
			}
		case "PPid":
			p.PPid, _ = strconv.Atoi(string(value))
		case "Threads":
			p.Threads, _ = strconv.Atoi(string(value))
		case "Uid":
			p.UIDs, haveUID = parseUIDs(value)
		case "Groups":
			p.Mark = findMark(value)
		}
	}
	if !haveState || !haveUID {
		return Process{}, fmt.Errorf("process %d: its status has no state or no uid", pid)
	}
	return p, nil
}

func parseUIDs(value []byte) (uids [4]int, ok bool) {
	fields := bytes.Fields(value)
	if len(fields) != len(uids) {
		return uids, false
	}
	for i, field := range fields {
		n, err := strconv.ParseUint(string(field), 10, 32)
		if err != nil {
			return uids, false
		}
		uids[i] = int(n)
	}
	return uids, true
}

func findMark(groups []byte) int {
	for field := range bytes.FieldsSeq(groups) {
		if n, err := strconv.Atoi(string(field)); err == nil && isMark(n) {
			return n
		}
	}
	return 0
}

const maxEnviron = 256 << 10

var environs = sync.Pool{New: func() any { return new([maxEnviron]byte) }}

// environMark finds the mark of a process that is not hardened. One in the midst
// of an exec has neither environment nor arguments: that is errVanished, for what
// it was is no more and what it will be cannot be seen yet.
func (f procFS) environMark(pid int, scope string) (int, error) {
	buf := environs.Get().(*[maxEnviron]byte)
	defer environs.Put(buf)
	root, dir := int(f.root.Fd()), strconv.Itoa(pid)
	text, err := readFile(root, dir+"/environ", buf[:])
	if err == nil && len(text) == 0 {
		if text, err = readFile(root, dir+"/cmdline", buf[:]); err == nil && len(text) == 0 {
			return 0, errVanished
		}
		text, err = readFile(root, dir+"/environ", buf[:]) // it may have got one meanwhile
	}
	if errors.Is(err, errVanished) {
		return 0, err
	}
	// Another error says that it is somebody else's.
	for entry := range bytes.SplitSeq(text, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(markEnv+"="+scope+".")); ok {
			return strconv.Atoi(string(value))
		}
	}
	return 0, nil
}

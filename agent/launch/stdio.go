package launch

import (
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stdio is the agent's and the command's ends of a command's descriptors.
type stdio struct {
	child  [3]int // 0, 1, 2 of the command; one number may stand thrice
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	pty    *Terminal
}

// openStdio makes the descriptors that a command asks for. It must run with the
// command's user's rights: who makes a pipe or a terminal owns it, and only the
// owner can open /dev/stderr or his terminal again.
func openStdio(c *Command) (s *stdio, err error) {
	s = &stdio{child: [3]int{-1, -1, -1}}
	defer func() {
		if err != nil {
			s.closeChild()
			s.closeParent()
		}
	}()
	if c.Terminal != nil {
		err = s.openTerminal(*c.Terminal)
		return s, err
	}
	if c.Stdin {
		s.child[0], s.stdin, err = pipeTo("stdin")
	} else {
		s.child[0], err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return s, err
	}
	if s.child[1], s.stdout, err = pipeFrom("stdout"); err != nil {
		return s, err
	}
	s.child[2], s.stderr, err = pipeFrom("stderr")
	return s, err
}

// pipeFrom makes a pipe that the command writes and the agent reads.
func pipeFrom(name string) (child int, parent *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, err
	}
	return p[1], polled(p[0], name), nil
}

// pipeTo makes a pipe that the agent writes and the command reads.
func pipeTo(name string) (child int, parent *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, err
	}
	return p[0], polled(p[1], name), nil
}

// polled makes a file whose reads and writes wait in the runtime's poller, not in a thread.
func polled(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true) // cannot fail for a descriptor just made
	return os.NewFile(uintptr(fd), name)
}

func (s *stdio) openTerminal(size Size) error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.pty = &Terminal{file: polled(master, "terminal")}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return err
	}
	if err := setSize(master, size); err != nil {
		return err
	}
	slave, err := unix.Open("/dev/pts/"+strconv.Itoa(number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.child = [3]int{slave, slave, slave}
	return nil
}

func (s *stdio) closeChild() {
	for i, fd := range s.child {
		if fd >= 0 && (i == 0 || fd != s.child[0]) {
			_ = unix.Close(fd)
		}
	}
	s.child = [3]int{-1, -1, -1}
}

func (s *stdio) closeParent() {
	for _, f := range []*os.File{s.stdin, s.stdout, s.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
	if s.pty != nil {
		_ = s.pty.Close()
	}
}

// Size is a terminal's size in characters.
type Size struct{ Rows, Cols uint16 }

// Terminal is the agent's end of a command's terminal. It may be used from
// several goroutines.
type Terminal struct{ file *os.File }

// Read reads output; the end is io.EOF once no process has the terminal open.
func (t *Terminal) Read(p []byte) (int, error) {
	n, err := t.file.Read(p)
	if errors.Is(err, syscall.EIO) { // what Linux says at a terminal's end
		err = io.EOF
	}
	return n, err
}

// Write writes input.
func (t *Terminal) Write(p []byte) (int, error) { return t.file.Write(p) }

// SetReadDeadline bounds Read; the zero time means no bound.
func (t *Terminal) SetReadDeadline(at time.Time) error { return t.file.SetReadDeadline(at) }

// SetWriteDeadline bounds Write, as [Terminal.SetReadDeadline] does Read.
func (t *Terminal) SetWriteDeadline(at time.Time) error { return t.file.SetWriteDeadline(at) }

// SyscallConn gives access to the descriptor, as [os.File.SyscallConn] does.
func (t *Terminal) SyscallConn() (syscall.RawConn, error) { return t.file.SyscallConn() }

// Resize tells the command the new size.
func (t *Terminal) Resize(size Size) error {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = setSize(int(fd), size) }); err != nil {
		return err
	}
	return failed
}

// Close hangs the terminal up: its processes get SIGHUP.
func (t *Terminal) Close() error { return t.file.Close() }

func setSize(fd int, size Size) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}

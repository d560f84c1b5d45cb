package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"shoal/agent/proc"
)

// endWait bounds the wait for a process that was killed or has failed.
const endWait = time.Second

var errSlow = errors.New("the start took too long")

// report is what the launch program wrote to its status pipe.
type report struct {
	ready bool
	step  Step // of a failure, else 0
	errno syscall.Errno
}

const recordSize = 4 // kind, step, errno as two bytes

// readReport reads to the end of the pipe. No program that follows launch holds
// it, so its end is the execve or the process's end.
func readReport(r io.Reader) (rep report, err error) {
	var b [2 * recordSize]byte
	n, err := io.ReadFull(r, b[:])
	for at := 0; at+recordSize <= n; at += recordSize {
		switch b[at] {
		case 'R':
			rep.ready = true
		case 'E':
			rep.step = Step(b[at+1])
			rep.errno = syscall.Errno(binary.LittleEndian.Uint16(b[at+2:]))
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return rep, err
}

// await returns nil when the program was executed. Otherwise the process has
// ended, unless even SIGKILL did not end it within endWait.
func (l *Launcher) await(ctx context.Context, child *proc.Child, status *os.File) error {
	bounded, cancel := context.WithTimeoutCause(ctx, l.timeout, errSlow)
	defer cancel()
	kill := func() { _ = child.Signal(syscall.SIGKILL) }
	defer context.AfterFunc(bounded, kill)()
	_ = status.SetReadDeadline(time.Now().Add(l.timeout + endWait)) // a pipe takes deadlines

	rep, err := readReport(status)
	if rep.step == 0 && rep.ready && err == nil {
		if ctx.Err() != nil {
			kill()
		}
		return nil
	}
	if err != nil {
		kill()
	}
	waitEnd(child)
	switch {
	case rep.step != 0:
		return &StartError{Step: rep.step, Errno: rep.errno}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil || bounded.Err() != nil:
		return &StartError{Step: StepStopped}
	default:
		return &StartError{Step: StepKilled}
	}
}

func waitEnd(child *proc.Child) {
	timer := time.NewTimer(endWait)
	defer timer.Stop()
	select {
	case <-child.Done():
	case <-timer.C:
	}
}

package agent

import (
	"io"
	"sync"
)

// stdinCredit is how much standard input the agent holds for a program that
// does not read.
const stdinCredit = 256 << 10

// endOfInput is what a terminal turns into an end of file.
const endOfInput = 0x04

// stdinQueue feeds a program's standard input. It takes pieces by their
// offset, the next one only, and never more than its credit.
type stdinQueue struct {
	w       io.WriteCloser
	changed func() // called without the lock when credit has come back

	mu     sync.Mutex // guards what follows
	ready  *sync.Cond
	buf    []byte
	flight int   // bytes that are being written
	next   int64 // offset of the next byte it takes
	eof    bool  // close w when buf is empty
	dead   bool  // nothing is written any more
	closed bool  // the client has closed it
}

func newStdinQueue(w io.WriteCloser, changed func()) *stdinQueue {
	q := &stdinQueue{w: w, changed: changed}
	q.ready = sync.NewCond(&q.mu)
	return q
}

// whole takes all of the input at once, and its end.
func (q *stdinQueue) whole(p []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.buf = p
	q.next = int64(len(p))
	q.eof, q.closed = true, true
	q.ready.Signal()
}

// take appends a piece; one at another offset or beyond the credit is dropped.
func (q *stdinQueue) take(offset int64, p []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || offset != q.next || int64(len(p)) > q.creditLocked() {
		return
	}
	q.next += int64(len(p))
	if !q.dead {
		q.buf = append(q.buf, p...)
		q.ready.Signal()
	}
}

// finish closes the input at its final offset.
func (q *stdinQueue) finish(offset int64, tty bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || offset != q.next {
		return
	}
	q.closed = true
	if tty {
		q.buf = append(q.buf, endOfInput) // a terminal has no other end
	} else {
		q.eof = true
	}
	q.ready.Signal()
}

// state is what an input frame says.
func (q *stdinQueue) state() input {
	q.mu.Lock()
	defer q.mu.Unlock()
	return input{Offset: q.next, Credit: q.creditLocked(), Closed: q.closed || q.dead}
}

func (q *stdinQueue) creditLocked() int64 {
	return int64(max(0, stdinCredit-len(q.buf)-q.flight))
}

// feed writes what comes until the end of the input or close.
func (q *stdinQueue) feed() {
	for {
		p, eof := q.await()
		if p == nil {
			if eof {
				_ = q.w.Close()
			}
			return
		}
		if _, err := q.w.Write(p); err != nil {
			q.kill() // the program reads no more: what comes is thrown away
		}
		q.wrote()
	}
}

// wrote tells a client that had used up half of the credit that it is back.
func (q *stdinQueue) wrote() {
	q.mu.Lock()
	before := q.creditLocked()
	q.flight = 0
	after := q.creditLocked()
	q.mu.Unlock()
	if before < stdinCredit/2 && after >= stdinCredit/2 || after == stdinCredit {
		q.changed()
	}
}

// await returns the next piece, or nil at the end.
func (q *stdinQueue) await() (p []byte, eof bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flight = 0
	for len(q.buf) == 0 && !q.eof && !q.dead {
		q.ready.Wait()
	}
	if len(q.buf) == 0 || q.dead {
		return nil, q.eof
	}
	n := min(len(q.buf), largeBuffer)
	p, q.buf, q.flight = q.buf[:n], q.buf[n:], n
	return p, false
}

// kill throws away what is there and what comes.
func (q *stdinQueue) kill() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dead, q.buf = true, nil
	q.ready.Broadcast()
}

package agent

import (
	"encoding/binary"
	"io"
	"sync"
	"time"
)

// companyFor bounds how long a frame that nobody waits for may wait for company.
const companyFor = 5 * time.Millisecond

// batch joins what yamux writes in pieces: a frame's header and its body, and
// the frames that open, accept and end a stream, each by a call of its own.
// Between a worker and an agent every call wakes four processes in turn, which
// costs more than all the work of a short command. A body goes out at once,
// with everything before it; an opening, an acceptance or an end alone waits
// for the next body, at most companyFor.
type batch struct {
	w io.WriteCloser

	mu    sync.Mutex
	held  []byte      // guarded by mu
	body  int         // guarded by mu: bytes of the present frame's body to come
	timer *time.Timer // guarded by mu: runs while only held frames wait
	err   error       // guarded by mu: of a write that nobody waited for
}

func newBatch(w io.WriteCloser) *batch {
	b := &batch{w: w}
	b.timer = time.AfterFunc(time.Hour, b.late)
	b.timer.Stop()
	return b
}

// Write takes one header or (a part of) one body, as yamux's one sending
// goroutine gives them. An error may be that of an earlier frame.
func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	first := len(b.held) == 0
	b.held = append(b.held, p...)
	if b.body > 0 {
		b.body -= len(p)
		return len(p), b.flushLocked()
	}
	switch kind, flags := p[1], binary.BigEndian.Uint16(p[2:]); {
	case kind == muxData:
		b.body = int(binary.BigEndian.Uint32(p[muxLenOffset:]))
		return len(p), nil // yamux sends no data frame without a body
	case kind == muxWindow && flags != 0:
		if first {
			b.timer.Reset(companyFor)
		}
		return len(p), nil
	}
	return len(p), b.flushLocked()
}

// late sends what has found no company.
func (b *batch) late() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.body == 0 && b.err == nil {
		_ = b.flushLocked() // the next Write returns it
	}
}

func (b *batch) flushLocked() error {
	if len(b.held) == 0 {
		return nil
	}
	b.timer.Stop()
	_, b.err = b.w.Write(b.held)
	b.held = b.held[:0]
	return b.err
}

// Close closes the writer below; what is held is lost with it.
func (b *batch) Close() error {
	b.timer.Stop()
	return b.w.Close()
}

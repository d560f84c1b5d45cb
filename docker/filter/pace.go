package filter

import (
	"errors"
	"io"
	"syscall"
	"time"
)

// The buffers of one direction of a stream, in bytes: of one that is quiet, and of
// one in bulk, which takes all that a unix socket holds (some 230 KiB on Linux).
const (
	quietBuffer = 32 << 10
	bulkBuffer  = 256 << 10
)

// A stream is in bulk from 64 KiB a millisecond on. Then pieces are let come
// together, up to about half of what a socket holds, so that the sender seldom
// waits; when it does, it is the quicker one, and is not kept.
const (
	paceWindow = time.Millisecond
	longestNap = time.Millisecond
	together   = 128 << 10
	nearlyFull = 192 << 10
)

// A pace says how long to wait before the next read. An engine sends output in
// pieces of up to 32 KiB, and to be woken for each of them costs more than to copy
// it: without a pace, a stream through a filter on two busy cores has about 0.8 of
// the rate it has without one, and with it no less than that.
type pace struct {
	since time.Time // the window's beginning
	got   int64     // bytes in it
	nap   time.Duration
}

// read takes note that n bytes were read at this time, and returns how long to
// wait: not at all when the stream is not in bulk.
func (p *pace) read(n int, now time.Time) time.Duration {
	p.got += int64(n)
	if passed := now.Sub(p.since); passed >= paceWindow {
		p.nap = 0
		if each := time.Duration(together * int64(passed) / max(p.got, 1)); each <= 2*longestNap {
			p.nap = min(each, longestNap)
		}
		p.since, p.got = now, 0
	}
	if n >= nearlyFull {
		return 0
	}
	return p.nap
}

// inBulk says whether the last window was one of bulk.
func (p *pace) inBulk() bool { return p.nap > 0 }

// pump copies src to dst until its end.
func pump(dst io.Writer, src io.Reader) error {
	quiet := make([]byte, quietBuffer)
	buf, p := quiet, pace{since: time.Now()}
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if nap := p.read(n, time.Now()); nap > 0 {
			// Not time.Sleep: its timers go by whole milliseconds when a
			// program has nothing else to do.
			_ = syscall.Nanosleep(&syscall.Timespec{Nsec: int64(nap)}, nil)
		}
		switch {
		case !p.inBulk():
			buf = quiet
		case len(buf) < bulkBuffer:
			buf = make([]byte, bulkBuffer)
		}
	}
}

package agent

import (
	"errors"
	"os"
	"sync"
	"time"

	"shoal/sandbox"
)

const (
	// A pump waits with a small buffer and takes a large one only while there
	// is more to read: two waiting pumps per command must cost next to nothing.
	smallBuffer = 1 << 10
	largeBuffer = 32 << 10
	// drainSlack is how much the ring may outgrow its size by the rest of the
	// output once the main process has ended: two full pipes.
	drainSlack = 2 * 64 << 10
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// pump moves one output of a process into the ring until its end or, once the
// main process has ended, until the drain is over; it reports whether the end
// was reached.
func (k *command) pump(stream sandbox.Stream, pipe Pipe) (eof bool) {
	small := make([]byte, smallBuffer)
	for {
		n, err := pipe.Read(small)
		if !k.put(stream, small[:n]) {
			return false
		}
		if err == nil && n == len(small) {
			err = k.pumpLarge(stream, pipe)
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return k.pumpRest(stream, pipe)
		default: // io.EOF, or an error that is as final
			return true
		}
	}
}

// pumpLarge reads while there is more.
func (k *command) pumpLarge(stream sandbox.Stream, pipe Pipe) error {
	if pipe.Pending() == 0 {
		return nil
	}
	buf := largeBuffers.Get().(*[largeBuffer]byte) //nolint:forcetypeassert // only such are put
	defer largeBuffers.Put(buf)
	for {
		n, err := pipe.Read(buf[:])
		if !k.put(stream, buf[:n]) {
			return os.ErrDeadlineExceeded
		}
		if err != nil || n < smallBuffer && pipe.Pending() == 0 {
			return err
		}
	}
}

// pumpRest takes what stands in the pipe when the drain is over. The main
// process's own words are among it, however long a reader kept us waiting.
func (k *command) pumpRest(stream sandbox.Stream, pipe Pipe) (eof bool) {
	_ = pipe.SetReadDeadline(time.Time{})
	buf := make([]byte, smallBuffer)
	for left := pipe.Pending(); left > 0; {
		n, err := pipe.Read(buf[:min(left, len(buf))])
		if !k.put(stream, buf[:n]) {
			return false
		}
		if err != nil {
			return true
		}
		left -= n
	}
	// Whoever held it open may have gone while we waited for room.
	_ = pipe.SetReadDeadline(time.Now().Add(drainFor / 10))
	n, err := pipe.Read(buf)
	return k.put(stream, buf[:n]) && err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// put appends p to the ring. It waits for room as the command's overflow
// choice says; false means that the rest of the output has no room any more.
func (k *command) put(stream sandbox.Stream, p []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	p = k.capLocked(p)
	for len(p) > 0 {
		n := k.roomLocked(stream, len(p))
		if n == 0 {
			k.lost = true
			return false
		}
		n = min(n, len(p))
		k.ring.write(stream, p[:n])
		p = p[n:]
		k.wakeLocked()
	}
	return true
}

// capLocked cuts p at the command's MaxOutput.
func (k *command) capLocked(p []byte) []byte {
	most := k.request.MaxOutput
	if most == 0 || k.ring.next+int64(len(p)) <= most {
		return p
	}
	k.lost = true
	return p[:max(0, most-k.ring.next)]
}

// roomLocked makes or awaits room for some of n bytes; 0 = there will be none.
func (k *command) roomLocked(stream sandbox.Stream, n int) int {
	for {
		if room := k.ring.room(stream); room > 0 {
			return room
		}
		switch {
		case k.growLocked():
		case k.dropping:
			k.ring.drop(min(n, k.ring.size))
		case k.draining:
			return k.slackLocked(stream, n)
		default:
			k.waitLocked()
		}
	}
}

// growLocked doubles the ring's size if the pool has it.
func (k *command) growLocked() bool {
	more := min(k.ring.size, ringMost-k.ring.size)
	if more <= 0 || !k.server.pool.grow(more) {
		return false
	}
	k.charged += more
	k.ring.resize(k.ring.size + more)
	return true
}

// slackLocked lets the ring outgrow its size for the last bytes, so that the
// end does not wait for a reader; 0 when that is used up.
func (k *command) slackLocked(stream sandbox.Stream, n int) int {
	n = min(n, drainSlack-k.slack)
	if n <= 0 {
		return 0
	}
	k.slack += n
	k.server.pool.force(n)
	k.charged += n
	k.ring.resize(k.ring.size + n)
	return k.ring.room(stream)
}

// waitLocked waits until a reader has taken something.
func (k *command) waitLocked() {
	k.blocked++
	k.watchSilenceLocked()
	k.room.Wait()
	k.blocked--
}

// discardAll reads a pipe that is no longer part of any output, so that who
// writes to it lives on.
func discardAll(pipe Pipe) {
	buf := make([]byte, smallBuffer)
	for {
		if _, err := pipe.Read(buf); err != nil {
			return
		}
	}
}

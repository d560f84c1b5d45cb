package agent

import (
	"sort"

	"shoal/sandbox"
)

const (
	ringLeast = 64 << 10
	ringMost  = 2 << 20
	// segmentShare is how many bytes of ring one segment counts for, so that a
	// program that alternates between its outputs byte by byte cannot make the
	// list of segments outgrow the bytes.
	segmentShare = 64
)

// segment is a stretch of one stream that ends before offset end.
type segment struct {
	end    int64
	stream sandbox.Stream
}

// ring keeps the newest output of one command: stdout and stderr together in
// the order of arrival, addressed by one offset. Bytes below acked may be
// overwritten, others only by drop. It belongs to whoever holds the command's
// lock.
type ring struct {
	buf      []byte // circular: the byte at offset o is buf[o % len]
	size     int    // the room it may take; buf grows up to it
	start    int64  // of the oldest byte kept
	next     int64  // of the byte that comes
	acked    int64
	segments []segment // that cover [start, next)
}

// room is how many bytes of a stream can be written without losing
// unacknowledged ones.
func (r *ring) room(s sandbox.Stream) int {
	r.trim()
	if len(r.segments) >= r.size/segmentShare && r.segments[len(r.segments)-1].stream != s {
		return 0
	}
	return r.size - int(r.next-max(r.acked, r.start))
}

// trim forgets acknowledged bytes only when their segments crowd the list.
func (r *ring) trim() {
	if len(r.segments) >= r.size/segmentShare && r.acked > r.start {
		r.forget(r.acked)
	}
}

// write appends p, at most room bytes, overwriting acknowledged ones.
func (r *ring) write(s sandbox.Stream, p []byte) {
	end := r.next + int64(len(p))
	if over := end - int64(r.size); over > r.start {
		r.forget(over)
	}
	r.fit(int(end - r.start))
	for at := r.next; len(p) > 0; {
		n := copy(r.buf[at%int64(len(r.buf)):], p)
		p, at = p[n:], at+int64(n)
	}
	r.next = end
	if last := len(r.segments) - 1; last >= 0 && r.segments[last].stream == s {
		r.segments[last].end = end
		return
	}
	r.segments = append(r.segments, segment{end, s})
}

// fit makes the buffer hold n bytes, doubling it up to size.
func (r *ring) fit(n int) {
	if n <= len(r.buf) {
		return
	}
	want := max(4<<10, len(r.buf))
	for want < n {
		want *= 2
	}
	r.move(min(want, r.size))
}

// move copies what is kept into a buffer of n bytes.
func (r *ring) move(n int) {
	if n == 0 {
		r.buf = nil
		return
	}
	fresh := make([]byte, n)
	for at := r.start; at < r.next; {
		from := r.buf[at%int64(len(r.buf)):]
		from = from[:min(int64(len(from)), r.next-at)]
		at += int64(copy(fresh[at%int64(n):], from))
	}
	r.buf = fresh
}

// resize changes the room. It drops the oldest bytes when they no longer fit.
func (r *ring) resize(n int) {
	r.size = n
	if over := r.next - int64(n); over > r.start {
		r.forget(over)
	}
	if len(r.buf) > n {
		r.move(n)
	}
}

// forget gives up everything below offset.
func (r *ring) forget(offset int64) {
	r.start = min(max(r.start, offset), r.next)
	gone := sort.Search(len(r.segments), func(i int) bool { return r.segments[i].end > r.start })
	// The list creeps forward in its array; the next append that finds it full
	// copies what is left.
	r.segments = r.segments[gone:]
}

// drop gives up the oldest n bytes, acknowledged or not, and one segment at
// least, so that there is room for any stream afterwards.
func (r *ring) drop(n int) {
	offset := r.start + int64(n)
	if len(r.segments) > 0 && len(r.segments) >= r.size/segmentShare {
		offset = max(offset, r.segments[len(r.segments)/2].end)
	}
	r.forget(offset)
}

// ack marks everything below offset as consumed and reports whether that made room.
func (r *ring) ack(offset int64) bool {
	if offset <= r.acked || offset > r.next {
		return false
	}
	r.acked = offset
	return true
}

// read copies at most len(p) bytes of one stream from offset on, which must be
// in [start, next).
func (r *ring) read(offset int64, p []byte) (int, sandbox.Stream) {
	i := sort.Search(len(r.segments), func(i int) bool { return r.segments[i].end > offset })
	end := min(r.segments[i].end, offset+int64(len(p)))
	n := 0
	for offset < end {
		from := r.buf[offset%int64(len(r.buf)):]
		from = from[:min(int64(len(from)), end-offset)]
		c := copy(p[n:], from)
		n, offset = n+c, offset+int64(c)
	}
	return n, r.segments[i].stream
}

// kept is how many bytes of memory it needs to keep what it has.
func (r *ring) kept() int { return int(r.next-r.start) + 16*len(r.segments) }

// seal gives back all room that the kept bytes do not need.
func (r *ring) seal() {
	n := int(r.next - r.start)
	r.move(n)
	r.size = n
	r.segments = append([]segment(nil), r.segments...)
}

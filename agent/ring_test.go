package agent

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"shoal/sandbox"
)

// model is a ring without a bound.
type model struct {
	bytes   []byte
	streams []sandbox.Stream
}

// TestRing writes, acknowledges, drops, reads and resizes at random and compares
// with a model that keeps everything.
func TestRing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := ring{size: rapid.SampledFrom([]int{64, 100, 1 << 10, 8 << 10}).Draw(t, "size")}
		var m model
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			ringStep(t, &r, &m)
			ringCheck(t, &r, &m)
			if len(r.segments) > r.size/segmentShare+1 {
				t.Fatalf("%d segments for a size of %d", len(r.segments), r.size)
			}
		}
		r.seal()
		ringCheck(t, &r, &m)
		if len(r.buf) != int(r.next-r.start) {
			t.Fatalf("sealed %d bytes in a buffer of %d", r.next-r.start, len(r.buf))
		}
	})
}

func ringStep(t *rapid.T, r *ring, m *model) {
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	default:
		stream := rapid.SampledFrom([]sandbox.Stream{sandbox.Stdout, sandbox.Stderr}).Draw(t, "stream")
		n := min(r.room(stream), rapid.IntRange(1, 300).Draw(t, "n"))
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(len(m.bytes) + i)
		}
		if n > 0 {
			r.write(stream, p)
		}
		m.bytes = append(m.bytes, p...)
		for range p {
			m.streams = append(m.streams, stream)
		}
	case 0:
		r.ack(rapid.Int64Range(-1, r.next+1).Draw(t, "ack"))
	case 1:
		before := r.start
		r.drop(rapid.IntRange(1, 200).Draw(t, "drop"))
		if r.next > before && r.start == before {
			t.Fatal("a drop made no room")
		}
	case 2:
		r.resize(r.size * 2)
	}
}

func ringCheck(t *rapid.T, r *ring, m *model) {
	if r.next != int64(len(m.bytes)) || r.start > r.next || int(r.next-r.start) > r.size || len(r.buf) > r.size {
		t.Fatalf("[%d, %d) of %d bytes, size %d, buffer %d", r.start, r.next, len(m.bytes), r.size, len(r.buf))
	}
	if r.acked > r.next {
		t.Fatalf("acknowledged %d of %d", r.acked, r.next)
	}
	p := make([]byte, 77)
	for at := r.start; at < r.next; {
		n, stream := r.read(at, p)
		if n == 0 || !bytes.Equal(p[:n], m.bytes[at:at+int64(n)]) {
			t.Fatalf("at %d: %d bytes, not those written", at, n)
		}
		for i := range n {
			if m.streams[at+int64(i)] != stream {
				t.Fatalf("at %d: the wrong stream", at+int64(i))
			}
		}
		at += int64(n)
	}
}

// TestRingKeepsWhatIsNotAcknowledged checks the promise of block: room never
// offers to overwrite an unacknowledged byte.
func TestRingKeepsWhatIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	r := ring{size: 256}
	r.write(sandbox.Stdout, make([]byte, 256))
	if n := r.room(sandbox.Stdout); n != 0 {
		t.Errorf("room for %d in a full ring", n)
	}
	r.ack(100)
	if n := r.room(sandbox.Stdout); n != 100 {
		t.Errorf("room for %d, want 100", n)
	}
	r.write(sandbox.Stdout, make([]byte, 100))
	if r.start != 100 {
		t.Errorf("start %d", r.start)
	}
}

// TestAlternatingStreamsAreBounded writes single bytes by turns, which costs a
// segment each.
func TestAlternatingStreamsAreBounded(t *testing.T) {
	t.Parallel()
	r := ring{size: 1 << 20}
	for i := range 1 << 20 {
		stream := sandbox.Stdout + sandbox.Stream(i%2)
		if r.room(stream) == 0 {
			r.drop(1)
		}
		r.write(stream, []byte{byte(i)})
	}
	if n := cap(r.segments); n > 4*(1<<20)/segmentShare {
		t.Errorf("room for %d segments", n)
	}
}

func TestPool(t *testing.T) {
	t.Parallel()
	p := newPool(128 << 20)
	if p.total != 16<<20 || p.commands() != 256 {
		t.Errorf("pool of %d for %d commands", p.total, p.commands())
	}
	if newPool(0).total != 32<<20 || newPool(1<<40).total != 32<<20 {
		t.Error("the pool's bound")
	}
	if !p.take(16<<20) || p.take(1) || p.grow(1) {
		t.Error("more was taken than there is")
	}
	p.give(8 << 20)
	if !p.grow(4<<20) || p.grow(1) || !p.take(4<<20) {
		t.Error("a quarter does not stay for commands to come")
	}
}

func TestDigests(t *testing.T) {
	t.Parallel()
	var d digests
	now := testTime
	for i := range maxDigests + 1000 {
		d.add(digestOf(fmt.Append(nil, i)), now)
	}
	if len(d.known) != maxDigests || d.has(digestOf([]byte("0"))) || !d.has(digestOf([]byte("1000"))) {
		t.Errorf("%d digests", len(d.known))
	}
	d.expire(now.Add(digestsFor))
	if len(d.known) != maxDigests {
		t.Error("forgotten too early")
	}
	d.expire(now.Add(digestsFor + 1))
	if d.known != nil || d.queue != nil {
		t.Error("not forgotten")
	}
}

// TestCredit checks that a gap costs no credit, whenever the acknowledgement of
// what came before it arrives.
func TestCredit(t *testing.T) {
	t.Parallel()
	c := newCredit(100, 50)
	if c.limit() != 150 {
		t.Errorf("limit %d", c.limit())
	}
	c.gap(150, 1150)
	if c.limit() != 1150 {
		t.Errorf("after a gap: %d", c.limit())
	}
	c.ack(150)
	if c.limit() != 1200 {
		t.Errorf("acknowledged up to the gap: %d", c.limit())
	}
	c.ack(120)
	if c.limit() != 1200 {
		t.Errorf("an old acknowledgement: %d", c.limit())
	}
	c.ack(1150)
	if c.limit() != 1200 || len(c.gaps) != 0 {
		t.Errorf("acknowledged with the gap: %d", c.limit())
	}
	for at := int64(2000); !c.full(); at += 2 {
		c.gap(at, at+1)
	}
	if len(c.gaps) != maxGaps {
		t.Errorf("%d gaps wait", len(c.gaps))
	}
}

package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"
)

// pieces records each write by itself.
type pieces struct {
	writes chan []byte
	err    error
}

func (p *pieces) Write(b []byte) (int, error) {
	if p.err != nil {
		return 0, p.err
	}
	p.writes <- bytes.Clone(b)
	return len(b), nil
}

func (p *pieces) Close() error { return nil }

func muxHead(kind byte, flags uint16, length uint32) []byte {
	h := make([]byte, muxHeader)
	h[1] = kind
	binary.BigEndian.PutUint16(h[2:], flags)
	binary.BigEndian.PutUint32(h[muxLenOffset:], length)
	return h
}

func TestBatch(t *testing.T) {
	const fin = 4
	out := &pieces{writes: make(chan []byte, 10)}
	b := newBatch(out)
	defer b.Close()
	write := func(p []byte) {
		t.Helper()
		if n, err := b.Write(p); n != len(p) || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
	}
	next := func() []byte {
		t.Helper()
		select {
		case p := <-out.writes:
			return p
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was written")
			return nil
		}
	}

	opening, head, body := muxHead(muxWindow, muxSYN, 0), muxHead(muxData, 0, 5), []byte("hello")
	write(opening)
	write(head)
	write(body)
	if want := bytes.Join([][]byte{opening, head, body}, nil); !bytes.Equal(next(), want) {
		t.Error("an opening, a header and its body did not go out in one write")
	}
	write(muxHead(muxWindow, 0, 99))
	if len(next()) != muxHeader {
		t.Error("a window's update is not sent at once")
	}
	write(muxHead(muxWindow, fin, 0))
	write(muxHead(muxWindow, muxSYN, 0))
	if len(next()) != 2*muxHeader {
		t.Error("an end and an opening without company did not go out together")
	}
	write(head)
	write(body[:2])
	write(body[2:])
	if got := append(next(), next()...); !bytes.Equal(got, append(head, body...)) {
		t.Errorf("a body in two pieces became %q", got)
	}
}

// What fails where nobody waits is told by the next write.
func TestBatchError(t *testing.T) {
	broken := errors.New("broken")
	b := newBatch(&pieces{err: broken})
	defer b.Close()
	if _, err := b.Write(muxHead(muxWindow, muxSYN, 0)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err := b.Write(muxHead(muxWindow, muxSYN, 0))
		if errors.Is(err, broken) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the error was not told: %v", err)
		}
	}
}

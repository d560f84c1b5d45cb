package agent

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// farewell bounds the wait of a Close for a peer that takes nothing.
const farewell = time.Second

// tunnel is a connection over one stream: raw bytes in frames, with an end of
// each direction of its own, so that a stream never has to stay half closed.
type tunnel struct {
	stream *yamux.Stream
	frames *frameReader
	writer *frameWriter
	onEnd  func() // called once at Close

	rest  []byte // read, not yet returned; the reading goroutine's
	eof   bool   // the reading goroutine's
	once  sync.Once
	wrEnd sync.Once
}

var _ net.Conn = (*tunnel)(nil)

func newTunnel(stream *yamux.Stream, onEnd func()) *tunnel {
	return &tunnel{stream: stream, frames: newFrameReader(stream, maxBytes), writer: newFrameWriter(stream), onEnd: onEnd}
}

// Read returns bytes of the peer; io.EOF after its end.
func (t *tunnel) Read(p []byte) (int, error) {
	for len(t.rest) == 0 {
		if t.eof {
			return 0, io.EOF
		}
		k, body, err := t.frames.next()
		switch {
		case err != nil:
			return 0, netError(endOf(err, false)) // an orderly end is a frame
		case k == kindBytes:
			t.rest = body
		case k == kindEOF:
			t.eof = true
		}
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

// Write sends p; it waits while the peer does not take it.
func (t *tunnel) Write(p []byte) (int, error) {
	if err := t.writer.bytes(p); err != nil {
		return 0, netError(err)
	}
	return len(p), nil
}

// CloseWrite tells the peer that no more bytes come; reading goes on.
func (t *tunnel) CloseWrite() (err error) {
	t.wrEnd.Do(func() { err = t.writer.write(kindEOF, nil) })
	return err
}

// Close ends both directions; what was written still arrives, with its end. It
// may be called twice.
func (t *tunnel) Close() error {
	t.once.Do(func() {
		_ = t.stream.SetWriteDeadline(time.Now().Add(farewell))
		_ = t.CloseWrite()
		_ = t.stream.Close()
		// A reader of this end does not learn of its own close from yamux.
		_ = t.stream.SetDeadline(past)
		if t.onEnd != nil {
			t.onEnd()
		}
	})
	return nil
}

// awaitClose waits until the peer has closed.
func (t *tunnel) awaitClose() {
	for {
		if _, _, err := t.frames.next(); err != nil {
			return
		}
	}
}

func (t *tunnel) LocalAddr() net.Addr                { return t.stream.LocalAddr() }
func (t *tunnel) RemoteAddr() net.Addr               { return t.stream.RemoteAddr() }
func (t *tunnel) SetDeadline(at time.Time) error     { return t.stream.SetDeadline(at) }
func (t *tunnel) SetReadDeadline(at time.Time) error { return t.stream.SetReadDeadline(at) }
func (t *tunnel) SetWriteDeadline(at time.Time) error {
	return t.stream.SetWriteDeadline(at)
}

// netError makes a yamux time-out the one that programs know.
func netError(err error) error {
	if errors.Is(err, yamux.ErrTimeout) {
		return os.ErrDeadlineExceeded
	}
	return err
}

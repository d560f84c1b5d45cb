package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/vmihailenco/msgpack/v5"

	"shoal/sandbox/wellformed"
)

// kind says what a frame's body is.
type kind uint8

// The kinds of frames. New ones are added at the end; a receiver skips what it
// does not know.
const (
	kindRequest kind = 1 + iota // request: opens every stream
	kindAnswer                  // the body of the operation's own answer type
	kindError                   // sandbox.Error: the last frame of its stream
	kindOutput                  // output
	kindGap                     // gap
	kindEnd                     // ended
	kindInput                   // input: what the agent takes of stdin
	kindRole                    // role
	kindAck                     // ack
	kindStdin                   // stdin
	kindSignal                  // signal
	kindResize                  // resize
	kindBytes                   // raw bytes of a file or tunnel, no msgpack
	kindEOF                     // no more bytes in this direction; empty
)

const (
	frameHeader = 5
	// maxRequest bounds frames that the agent reads. A start may carry 1 MiB
	// of arguments, 512 KiB of input and an environment.
	maxRequest = 4 << 20
	// maxAnswer bounds frames that the worker reads: a page of 1000 directory
	// entries or the list of commands.
	maxAnswer = 2 << 20
	// maxBytes bounds the payload of a kindBytes frame and of output.
	maxBytes = 64 << 10
	// maxDepth bounds the nesting of msgpack values.
	maxDepth = 16
	// trustedLength is how much memory a frame's length field alone may claim;
	// more is allocated as the bytes arrive.
	trustedLength = 64 << 10
)

// errFrame is wrapped by every error about a peer that breaks the framing.
var errFrame = errors.New("malformed frame")

// appendFrame appends a frame with body v in msgpack. v nil is an empty body.
func appendFrame(dst []byte, k kind, v any) ([]byte, error) {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0, byte(k))
	if v != nil {
		w := (*appender)(&dst)
		if err := encode(w, v); err != nil {
			return dst[:at], fmt.Errorf("encode frame %d: %w", k, err)
		}
	}
	return sealFrame(dst, at)
}

// appendBytes appends a kindBytes frame with the raw payload p.
func appendBytes(dst, p []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(p)))
	dst = append(dst, byte(kindBytes))
	return append(dst, p...)
}

func sealFrame(dst []byte, at int) ([]byte, error) {
	n := len(dst) - at - frameHeader
	if n > maxRequest {
		return dst[:at], fmt.Errorf("a frame of %d bytes: %w", n, errFrame)
	}
	binary.BigEndian.PutUint32(dst[at:], uint32(n))
	return dst, nil
}

// appender is an io.Writer over a byte slice.
type appender []byte

func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}

func encode(w io.Writer, v any) error {
	e := msgpack.GetEncoder()
	defer msgpack.PutEncoder(e)
	e.Reset(w)
	e.SetCustomStructTag("json")
	e.SetOmitEmpty(false)
	e.SetSortMapKeys(true)
	e.UseCompactInts(true)
	return e.Encode(v)
}

// decode reads body into v after checking that it is one well-formed value
// whose lengths are covered by its bytes.
func decode(body []byte, v any) error {
	if err := wellformed.Check(body, maxDepth); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	d := msgpack.GetDecoder()
	defer msgpack.PutDecoder(d)
	d.Reset(bytes.NewReader(body))
	d.SetCustomStructTag("json")
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	return nil
}

// frameReader reads frames. A read that ends early (a deadline) keeps what has
// arrived, so that the next call continues the same frame. It belongs to one
// goroutine.
type frameReader struct {
	r     io.Reader
	limit int // of a body, in bytes

	header [frameHeader]byte
	got    int // of the header
	body   []byte
	want   int // of the body
}

func newFrameReader(r io.Reader, limit int) *frameReader {
	return &frameReader{r: r, limit: limit}
}

// next returns the next frame. The body is valid until the next call. A clean
// end between two frames is io.EOF.
func (f *frameReader) next() (kind, []byte, error) {
	if err := f.readHeader(); err != nil {
		return 0, nil, err
	}
	for len(f.body) < f.want {
		if err := f.readBody(); err != nil {
			return 0, nil, err
		}
	}
	f.got = 0
	return kind(f.header[4]), f.body, nil
}

func (f *frameReader) readHeader() error {
	if f.got == frameHeader {
		return nil
	}
	for f.got < frameHeader {
		n, err := f.r.Read(f.header[f.got:])
		f.got += n
		if f.got == frameHeader {
			break
		}
		if err != nil {
			return endOf(err, f.got == 0)
		}
	}
	n := binary.BigEndian.Uint32(f.header[:4])
	if n > uint32(f.limit) {
		return fmt.Errorf("a frame of %d bytes, at most %d are allowed: %w", n, f.limit, errFrame)
	}
	f.want = int(n)
	if cap(f.body) > trustedLength && f.want <= trustedLength {
		f.body = nil // do not keep the room of one large frame
	}
	f.body = f.body[:0]
	return nil
}

// readBody reads once, growing the body by at most trustedLength.
func (f *frameReader) readBody() error {
	have := len(f.body)
	room := min(f.want-have, trustedLength)
	if cap(f.body)-have < room {
		grown := make([]byte, have, min(max(2*cap(f.body), have+room), max(f.want, have+room)))
		copy(grown, f.body)
		f.body = grown
	}
	n, err := f.r.Read(f.body[have : have+room])
	f.body = f.body[:have+n]
	if err != nil && len(f.body) < f.want {
		return endOf(err, false)
	}
	return nil
}

// endOf maps an end of file inside a frame to io.ErrUnexpectedEOF.
func endOf(err error, clean bool) error {
	if errors.Is(err, io.EOF) && !clean {
		return io.ErrUnexpectedEOF
	}
	return err
}

// frameWriter writes whole frames, one at a time; safe for several goroutines.
type frameWriter struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte // guarded by mu: what is held, to go out with the next frame
}

func newFrameWriter(w io.Writer) *frameWriter { return &frameWriter{w: w} }

// write sends one frame with body v.
func (f *frameWriter) write(k kind, v any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := appendFrame(f.buf, k, v)
	if err != nil {
		return err
	}
	return f.flushLocked(b)
}

// bytes sends p as one or more kindBytes frames.
func (f *frameWriter) bytes(p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytesLocked(p)
}

// hold is bytes for who surely sends another frame soon: few bytes wait for it,
// so that both go out in one write.
func (f *frameWriter) hold(p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.buf)+len(p) >= largeBuffer {
		return f.bytesLocked(p)
	}
	f.buf = appendBytes(f.buf, p)
	return nil
}

func (f *frameWriter) bytesLocked(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), maxBytes)
		if err := f.flushLocked(appendBytes(f.buf, p[:n])); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// holdFrame holds a frame that is encoded already.
func (f *frameWriter) holdFrame(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = append(f.buf, b...)
}

func (f *frameWriter) flushLocked(b []byte) error {
	f.buf = nil
	if cap(b) <= trustedLength+4<<10 {
		f.buf = b[:0]
	}
	_, err := f.w.Write(b)
	return err
}

package docker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"shoal/sandbox"
)

const (
	streamBuffer = 64 << 10
	maxWords     = 1 << 10 // of what the attach program says on stderr
)

// The engine multiplexes an exec's outputs: each piece has a header of eight
// bytes, its channel, three zeros, and its length (Engine API, "Stream format").
const (
	channelOut = 1
	channelErr = 2
)

// stream is the raw connection of an exec: what is written goes to the
// program's stdin as it is, what is read is its stdout without the headers.
type stream struct {
	conn   net.Conn
	in     *bufio.Reader
	closed func() // told of Close; may be nil
	// Read's state: bytes left of the present piece, bytes read in all, and
	// what came on stderr.
	left  uint32
	total int64
	words []byte
}

func newStream(conn net.Conn, in *bufio.Reader) *stream { return &stream{conn: conn, in: in} }

// Read returns bytes of stdout. io.EOF says that the program has ended or the
// engine cut the stream; the two cannot be told apart here.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for s.left == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n, err := s.in.Read(p[:min(len(p), int(min(s.left, 1<<30)))])
	s.left -= uint32(n) // n is at most s.left
	s.total += int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // in the middle of a piece
	}
	return n, err
}

// next reads headers up to the next piece of stdout.
func (s *stream) next() error {
	var header [8]byte
	if _, err := io.ReadFull(s.in, header[:]); err != nil {
		return s.closing(err)
	}
	size := binary.BigEndian.Uint32(header[4:])
	switch channel := header[0]; {
	case header[1] != 0 || header[2] != 0 || header[3] != 0:
		return engineFault("the engine's stream is not framed as it should be")
	case channel == channelOut:
		s.left = size
		return s.checkWords()
	case channel == channelErr:
		return s.listen(int64(size))
	default:
		return engineFault("the engine's stream is not framed as it should be")
	}
}

// interrupted begins what the engine writes when a program that ran is lost to it.
const interrupted = "exec attach failed: "

// checkWords recognises what the engine itself writes to stdout, of all places,
// when the exec fails: a line of its own ending in CR LF (measured on Engine
// 20.10). An agent's first byte is never a letter, so a line that comes first
// is the engine's, whatever it says; later only the one known line is.
func (s *stream) checkWords() error {
	if s.left < 2 || s.left > maxWords {
		return nil
	}
	if first, _ := s.in.Peek(1); len(first) == 0 || !isLetter(first[0]) { // a stream that breaks says so at the next read
		return nil
	}
	text, _ := s.in.Peek(int(s.left))
	switch {
	case len(text) < int(s.left) || !bytes.HasSuffix(text, []byte("\r\n")):
		return nil
	case s.total > 0 && !bytes.HasPrefix(text, []byte(interrupted)):
		return nil
	}
	said := errors.New(strings.ToValidUTF8(string(text), "?"))
	if bytes.HasPrefix(text, []byte(interrupted)) {
		return sandbox.Errorf(sandbox.OutcomeUnknown, "the engine lost the stream to the sandbox; attach again and follow").
			Because("detached").From(sandbox.FromEngine).Wrap(said)
	}
	return unentered(said)
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// listen keeps the beginning of what comes on stderr and drops the rest.
func (s *stream) listen(size int64) error {
	keep := min(size, int64(maxWords-len(s.words)))
	text, err := io.ReadAll(io.LimitReader(s.in, keep))
	s.words = append(s.words, text...)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, s.in, size-int64(len(text))); err != nil {
		return s.closing(err)
	}
	return nil
}

// closing explains the end of a stream on which nothing ever came.
func (s *stream) closing(err error) error {
	if s.total > 0 || len(s.words) == 0 || !errors.Is(err, io.EOF) {
		return err
	}
	return sandbox.Errorf(sandbox.Engine, "the agent of the sandbox does not answer").Because("agent").From(sandbox.FromSandbox).
		Wrap(fmt.Errorf("attach program: %q", s.words))
}

// Write sends p to the program's stdin.
func (s *stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// Close ends both directions; the program sees the end of its input. A second
// call returns an error and does nothing.
func (s *stream) Close() error {
	if s.closed != nil {
		s.closed()
	}
	return s.conn.Close()
}

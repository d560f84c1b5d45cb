package agent

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// streamWindow is yamux's least window. Command output has a credit of its
	// own above it; a larger one was no faster (256 KiB: 149–169 MiB/s, 4 MiB:
	// 170, measured) and would let an idle stream pin more memory.
	streamWindow = 256 << 10
	guardBuffer  = 16 << 10
	backlog      = 256
	// maxStreams bounds the streams of one session, both directions together,
	// closed ones that the peer has not closed yet included.
	maxStreams = 768

	writeTimeout = 60 * time.Second
	openTimeout  = 30 * time.Second
	// closeTimeout is how long a stream that one side has closed may linger
	// until the other has read what was sent and closes it, too. yamux then
	// resets it and what is unread is lost, so it is long.
	closeTimeout = 5 * time.Minute
)

func muxConfig() *yamux.Config {
	return &yamux.Config{
		AcceptBacklog:          backlog,
		EnableKeepAlive:        false, // the fleet's heartbeat decides who is dead
		KeepAliveInterval:      time.Minute,
		ConnectionWriteTimeout: writeTimeout,
		MaxStreamWindowSize:    streamWindow,
		StreamOpenTimeout:      openTimeout,
		StreamCloseTimeout:     closeTimeout,
		Logger:                 log.New(io.Discard, "", 0), // it prints what the peer sends
	}
}

// yamux header: version 1, type 1, flags 2, stream 4, length 4 (its spec.md).
const (
	muxHeader    = 12
	muxData      = 0
	muxWindow    = 1
	muxGoAway    = 3
	muxSYN       = 1
	muxIDOffset  = 4
	muxLenOffset = 8
)

// guard passes a peer's bytes to yamux after checking each header. yamux
// answers every ping with a goroutine of its own that waits up to the write
// time-out, so a peer that floods pings and reads nothing would grow us
// without bound; it also accepts stream ids of our own parity. Neither is part
// of this protocol.
type guard struct {
	io.WriteCloser

	r      *bufio.Reader
	parity uint32       // of the peer's stream ids: 1 for a client, 0 for a server
	heard  atomic.Int64 // when the peer last sent something, in Unix nanoseconds

	// Only the session's reading goroutine touches these.
	header  [muxHeader]byte
	pending []byte // header bytes not yet passed on
	payload int    // payload bytes still to pass on
}

func newGuard(rwc io.ReadWriteCloser, parity uint32) *guard {
	g := &guard{WriteCloser: newBatch(rwc), r: bufio.NewReaderSize(rwc, guardBuffer), parity: parity}
	g.heard.Store(time.Now().UnixNano())
	return g
}

func (g *guard) Read(p []byte) (int, error) {
	if len(g.pending) == 0 && g.payload == 0 {
		if err := g.nextHeader(); err != nil {
			return 0, err
		}
	}
	if len(g.pending) > 0 {
		n := copy(p, g.pending)
		g.pending = g.pending[n:]
		return n, nil
	}
	n, err := g.r.Read(p[:min(len(p), g.payload)])
	g.payload -= n
	return n, err
}

func (g *guard) nextHeader() error {
	if _, err := io.ReadFull(g.r, g.header[:]); err != nil {
		return err
	}
	g.heard.Store(time.Now().UnixNano())
	id := binary.BigEndian.Uint32(g.header[muxIDOffset:])
	length := binary.BigEndian.Uint32(g.header[muxLenOffset:])
	switch g.header[1] {
	case muxGoAway:
	case muxData:
		if length > streamWindow {
			return fmt.Errorf("a mux frame of %d bytes: %w", length, errFrame)
		}
		g.payload = int(length)
		fallthrough
	case muxWindow:
		syn := binary.BigEndian.Uint16(g.header[2:])&muxSYN != 0
		if syn && id%2 != g.parity || id == 0 {
			return fmt.Errorf("a mux stream with the id %d: %w", id, errFrame)
		}
	default:
		return fmt.Errorf("a mux frame of type %d: %w", g.header[1], errFrame)
	}
	g.pending = g.header[:]
	return nil
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"shoal/sandbox"
)

// requestTimeout bounds the wait for the first frame of a stream.
const requestTimeout = 30 * time.Second

// claimTimeout is how long a session may stay without a claim.
const claimTimeout = 60 * time.Second

// link is the agent's end of one session.
type link struct {
	server *Server
	mux    *yamux.Session
	ctx    context.Context //nolint:containedctx // ends with the session
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

// errLinkClosed is the cause of what ends with a session.
var errLinkClosed = errors.New("the session has ended")

func newLink(s *Server, rwc io.ReadWriteCloser) (*link, error) {
	mux, err := yamux.Server(newGuard(rwc, 1), muxConfig())
	if err != nil {
		return nil, fmt.Errorf("set up a session: %w", err)
	}
	l := &link{server: s, mux: mux}
	l.ctx, l.cancel = context.WithCancelCause(s.ctx)
	return l, nil
}

// close ends the session's streams and its byte stream.
func (l *link) close() {
	l.cancel(errLinkClosed)
	_ = l.mux.Close()
}

// serve handles streams until the session ends, and waits for their handlers.
func (l *link) serve() {
	defer l.wg.Wait()
	defer l.close()
	unclaimed := time.AfterFunc(claimTimeout, func() {
		if l.server.fence(l) != nil {
			l.close()
		}
	})
	defer unclaimed.Stop()
	for {
		stream, err := l.mux.AcceptStream()
		if err != nil || l.mux.NumStreams() > maxStreams {
			return
		}
		l.wg.Go(func() { l.handle(stream) })
	}
}

// handle serves one stream. A panic ends the stream, not the agent.
func (l *link) handle(stream *yamux.Stream) {
	defer func() { _ = stream.Close() }()
	defer func() {
		if r := recover(); r != nil {
			l.server.log.Error("handler panicked", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	c := &channel{link: l, stream: stream, reader: newFrameReader(stream, maxRequest), writer: newFrameWriter(stream)}
	_ = stream.SetReadDeadline(time.Now().Add(requestTimeout))
	k, body, err := c.reader.next()
	if err != nil || k != kindRequest {
		return
	}
	_ = stream.SetReadDeadline(time.Time{})
	var q request
	if decode(body, &q) != nil {
		return
	}
	c.reader.body = nil // the request owns it; a long stream must not keep it
	if err := l.dispatch(c, q); err != nil {
		c.fail(err)
	}
	c.linger()
}

// channel is the agent's end of one stream.
type channel struct {
	link   *link
	stream *yamux.Stream
	reader *frameReader
	writer *frameWriter
	closed chan struct{} // see watchClose; nil = nobody watches
}

// linger waits until the worker has closed the stream: it does so when it has
// read what was sent, however slow it is.
func (c *channel) linger() {
	_ = c.stream.SetReadDeadline(time.Now().Add(closeTimeout))
	if c.closed != nil {
		<-c.closed
		return
	}
	c.awaitClose()
}

func (c *channel) awaitClose() {
	for {
		if _, _, err := c.reader.next(); err != nil {
			return
		}
	}
}

// fail sends an error as the last frame.
func (c *channel) fail(err error) {
	e := sandbox.AsError(err)
	if e.Code == sandbox.Internal {
		c.link.server.log.Error("operation failed", "error", err)
	}
	bounded := *e
	bounded.Message = cut(e.Message, maxMessage-len("…"))
	_ = c.writer.write(kindError, &bounded)
}

// answer sends the one answer of a request.
func (c *channel) answer(v any) error {
	if v == nil {
		v = nothing{}
	}
	_ = c.writer.write(kindAnswer, v)
	return nil
}

// handler serves one operation. An error it returns is sent to the worker.
type handler func(c *channel, body []byte) error

// handlers are the operations of a claimed session.
var handlers = map[string]handler{
	opStart:    handleStart,
	opFollow:   handleFollow,
	opWait:     handleWait,
	opKill:     handleKill,
	opCommands: handleCommands,
	opTag:      handleTag,
	opExpire:   handleExpire,
	opHold:     handleHold,
	opRelease:  handleRelease,
	opSuspend:  handleSuspend,
	opStats:    handleStats,
	opTunnel:   handleTunnel,
	opKeep:     handleKeep,
	opForward:  handleForward,
	opRead:     handleRead,
	opWrite:    handleWrite,
	opStat:     handleStat,
	opList:     handleList,
	opMkdir:    handleMkdir,
	opRemove:   handleRemove,
	opRename:   handleRename,
	opPack:     handlePack,
	opUnpack:   handleUnpack,
}

func (l *link) dispatch(c *channel, q request) error {
	switch q.Op {
	case opHello:
		return handleHello(c, q.Body)
	case opClaim:
		return handleClaim(c, q.Body)
	}
	h, ok := handlers[q.Op]
	if !ok {
		return sandbox.Errorf(sandbox.Unsupported, "this agent does not know the operation %s", cut(printable(q.Op), maxWord))
	}
	if err := l.server.fence(l); err != nil {
		return err
	}
	return h(c, q.Body)
}

// read decodes a request's body.
func read[T any](body []byte) (T, error) {
	var v T
	if err := decode(body, &v); err != nil {
		return v, sandbox.InvalidField("body", "the request cannot be read").Wrap(err)
	}
	return v, nil
}

package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"shoal/sandbox"
)

// exchange is the worker's end of one stream after its request was sent.
// Reading belongs to one goroutine, writing to any.
type exchange struct {
	session *Session
	stream  *yamux.Stream
	reader  *frameReader
	writer  *frameWriter
	once    sync.Once
}

func newExchange(s *Session, stream *yamux.Stream) *exchange {
	return &exchange{session: s, stream: stream, reader: newFrameReader(stream, maxAnswer), writer: newFrameWriter(stream)}
}

// close ends the stream in both directions. It may be called twice.
func (x *exchange) close() {
	x.once.Do(func() {
		_ = x.stream.Close()
		_ = x.stream.SetDeadline(past) // wakes a reader of this end
		x.session.own.Release(1)
	})
}

// next returns the next frame; an error frame is returned as its error.
func (x *exchange) next(ctx context.Context) (kind, []byte, error) {
	stop := x.until(ctx)
	k, body, err := x.reader.next()
	stop()
	if err != nil {
		return 0, nil, x.session.failed(ctx, err)
	}
	if k == kindError {
		return 0, nil, x.said(body)
	}
	return k, body, nil
}

// answer reads the one answer of a request into v; nil ignores its body.
func (x *exchange) answer(ctx context.Context, v any) error {
	k, body, err := x.next(ctx)
	if err != nil {
		return err
	}
	if k != kindAnswer {
		return x.session.lied(fmt.Sprintf("frame %d in place of an answer", k))
	}
	if v == nil {
		return nil
	}
	if err := decode(body, v); err != nil {
		return x.session.failed(ctx, err)
	}
	return nil
}

// The bounds of what an agent may write into an error.
const (
	maxMessage = 1024
	maxWord    = 64
)

// said returns the error that the agent sent, within bounds.
func (x *exchange) said(body []byte) error {
	var e sandbox.Error
	if err := decode(body, &e); err != nil {
		return x.session.lied("an error that cannot be read")
	}
	if !e.Code.Known() || len(e.Message) > maxMessage || len(e.Field) > maxWord || len(e.Reason) > maxWord ||
		len(e.Boot) > maxWord || len(e.ID) > maxWord || e.RetryAfter < 0 || e.RetryAfter > sandbox.Millis(time.Hour) {
		return x.session.lied("an error out of bounds")
	}
	e.Message = printable(e.Message)
	return e.From(sandbox.FromSandbox)
}

// send writes one frame, bounded by ctx. An error may have cut the frame, so
// the stream is closed.
func (x *exchange) send(ctx context.Context, k kind, v any) error {
	return x.sent(ctx, func() error { return x.writer.write(k, v) })
}

func (x *exchange) sent(ctx context.Context, write func() error) error {
	stop := interrupt(ctx, x.stream.SetWriteDeadline)
	err := write()
	stop()
	if err != nil {
		x.close()
		return x.session.failed(ctx, err)
	}
	return nil
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// until interrupts both directions of the stream when ctx ends. The returned
// function ends that and must be called.
func (x *exchange) until(ctx context.Context) func() {
	return interrupt(ctx, x.stream.SetDeadline)
}

func interrupt(ctx context.Context, set func(time.Time) error) func() {
	if ctx.Done() == nil {
		return func() {}
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		_ = set(past)
	})
	return func() {
		if !stop() {
			<-fired
			_ = set(time.Time{})
		}
	}
}

// printable replaces what a terminal or a log could misread.
func printable(s string) string {
	clean := []rune(s)
	for i, r := range clean {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			clean[i] = ' '
		}
	}
	return string(clean)
}

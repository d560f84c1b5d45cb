package messaging

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// The times of streams.
const (
	heartbeat    = time.Second
	readerSilent = 60 * time.Second // a reader that owes an acknowledgement says nothing
	endedWait    = 10 * time.Second // for the word that the end has arrived
)

// StreamRequest is the body of ack and cancel.
type StreamRequest struct {
	// Stream is the request id of the exec, follow, read … that opened it.
	Stream string `json:"stream"`
	// Offset up to which everything has been consumed; the same offset again
	// says "alive, not reading".
	Offset int64 `json:"offset"`
	// Ended: the terminal frame has arrived as well.
	Ended bool `json:"ended,omitempty"`
}

// Validate checks every field.
func (r *StreamRequest) Validate() error {
	if err := sandbox.ValidateID("stream", r.Stream); err != nil {
		return err
	}
	if r.Offset < 0 {
		return sandbox.InvalidField("offset", "%d is negative", r.Offset)
	}
	return nil
}

// StreamAnswer answers an acknowledgement that was sent as a request.
type StreamAnswer struct {
	// Next is the offset of the next byte to be sent.
	Next int64 `json:"next"`
}

// Output is the stream of one request to its client. Started, Data and Gap are
// called from the handler's goroutine; the rest may be called from any. What
// the handler returns ends it, unless it has called End before.
type Output struct {
	server *Server
	req    *Request
	key    streamKey
	token  string // of the reply subject of its frames
	window int64
	cancel context.CancelCauseFunc
	acks   chan int64
	room   chan struct{} // signals that acked moved
	ended  chan struct{} // closed when the reader has the end

	mu     sync.Mutex // guards the rest, and the order of what is published
	next   int64      // offset of the next byte to send
	acked  int64
	heard  time.Time // of the last word from the reader
	sent   time.Time
	gone   error
	closed bool // the terminal frame is sent
	sawEnd bool // by the reader
	meta   Meta // a copy for the heartbeats' goroutine
	buf    bytes.Buffer
}

func newOutput(s *Server, r *Request, cancel context.CancelCauseFunc) *Output {
	id := r.ID
	if id == "" {
		id = sandbox.NewID()
	}
	o := &Output{
		server: s, req: r, token: sandbox.NewID(), cancel: cancel, window: DefaultWindow,
		acks: make(chan int64, 1), room: make(chan struct{}, 1), ended: make(chan struct{}), heard: time.Now(),
	}
	o.key = streamKey{r.Tenant, r.about.area, r.Target().Sandbox, id, id}
	switch body := r.Body.(type) {
	case *ExecRequest:
		o.key.id = string(body.Command.ID)
		o.setWindow(body.Window)
	case *FollowRequest:
		o.key.id = string(body.ID)
		o.setWindow(body.Window)
	case *ReadRequest:
		o.setWindow(body.Window)
	case *TarGetRequest:
		o.setWindow(body.Window)
	case *ForwardRequest:
		o.setWindow(body.Window)
	}
	return o
}

func (o *Output) setWindow(w int64) {
	if w != 0 {
		o.window = w
	}
}

// Window returns how many bytes may be under way, for the agent's credit.
func (o *Output) Window() int64 { return o.window }

// Acks delivers the offset that the reader has consumed, the newest only. The
// same offset again means that the reader lives and does not read.
func (o *Output) Acks() <-chan int64 { return o.acks }

// Started sends the first frame; the stream begins at offset from. Of a
// command, info is a [Started]; else [Done].
func (o *Output) Started(from int64, info any) error {
	answer := o.req.answer(info, nil)
	body, err := encode(answer, o.req.JSON)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next, o.acked, o.meta = from, from, answer.Meta
	return o.sendLocked(Frame{Kind: FrameStarted, Offset: from, Answer: body})
}

// Data sends p, in chunks, and waits for room in the reader's window. The
// bytes must follow what was sent before. It fails when the reader is gone,
// says nothing for 60 s while it owes an acknowledgement, or ctx ends.
func (o *Output) Data(ctx context.Context, stream sandbox.Stream, p []byte) error {
	for len(p) > 0 {
		n, err := o.waitRoom(ctx, min(len(p), MaxChunk))
		if err != nil {
			return err
		}
		o.mu.Lock()
		err = o.sendLocked(Frame{Kind: FrameData, Offset: o.next, Stream: stream, Data: p[:n]})
		o.next += int64(n)
		o.mu.Unlock()
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// Gap tells the reader that n bytes from here on are lost; they move the
// offset and need no credit.
func (o *Output) Gap(n int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.sendLocked(Frame{Kind: FrameGap, Offset: o.next, Lost: n})
	if o.acked == o.next { // nothing is under way, so the reader owes nothing for the gap
		o.acked += n
	}
	o.next += n
	return err
}

// End sends the end frame with result and waits until the reader has said that
// it arrived: only then may what it tells be forgotten. It fails with
// [ErrReaderGone] when the reader does not say so within 10 s. What the handler
// returns afterwards is not sent.
func (o *Output) End(ctx context.Context, result any) error {
	body, err := encode(o.req.answer(result, nil), o.req.JSON)
	if err != nil {
		return err
	}
	o.finish(Frame{Kind: FrameEnd, Answer: body})
	late := time.NewTimer(endedWait)
	defer late.Stop()
	select {
	case <-o.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late.C:
		return ErrReaderGone
	}
}

// Next returns the offset of the next byte to send.
func (o *Output) Next() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.next
}

// Heard returns when the reader last said something.
func (o *Output) Heard() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.heard
}

// waitRoom returns how many of want bytes may be sent now.
func (o *Output) waitRoom(ctx context.Context, want int) (int, error) {
	for {
		o.mu.Lock()
		room, silent, gone := o.window-(o.next-o.acked), time.Since(o.heard), o.gone
		o.mu.Unlock()
		switch {
		case gone != nil:
			return 0, gone
		case room >= int64(want) || room >= MaxChunk:
			return want, nil
		case silent > readerSilent:
			o.end(ErrReaderGone)
			return 0, ErrReaderGone
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-o.room:
		case <-time.After(readerSilent - silent + time.Millisecond):
		}
	}
}

// ack takes the reader's word; offsets that were never sent are ignored.
func (o *Output) ack(offset int64, ended bool) (next int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ended && o.closed && !o.sawEnd {
		o.sawEnd = true
		close(o.ended)
	}
	o.heard = time.Now()
	if offset > o.acked && offset <= o.next {
		o.acked = offset
		notify(o.room, struct{}{})
	}
	notify(o.acks, o.acked)
	return o.next
}

// notify replaces what waits in a channel of one; the caller holds the lock
// that makes it the only sender.
func notify[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	select {
	case c <- v:
	default:
	}
}

// end makes the stream useless and tells the handler why.
func (o *Output) end(why error) {
	o.mu.Lock()
	if o.gone == nil {
		o.gone = why
	}
	o.mu.Unlock()
	o.cancel(why)
}

// beat tells an idle reader that the worker lives.
func (o *Output) beat(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone == nil && now.Sub(o.sent) > heartbeat/2 {
		_ = o.sendLocked(Frame{Kind: FrameBeat, Offset: o.next}) // noticed by whoever sends data
	}
}

// finish sends the terminal frame.
func (o *Output) finish(f Frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone == nil && !o.closed {
		f.Offset = o.next
		_ = o.sendLocked(f) // nobody is left to be told
	}
	o.closed = true
}

func (o *Output) sendLocked(f Frame) error {
	if o.gone != nil {
		return o.gone
	}
	if o.closed {
		return errors.New("the stream has ended")
	}
	f.Command, f.Epoch, f.json = o.key.id, o.meta.Epoch, o.req.JSON
	o.buf.Reset()
	if err := f.encode(&o.buf); err != nil {
		return err
	}
	o.sent = time.Now()
	m := &nats.Msg{Subject: o.req.replies[0], Reply: o.server.inbox + "." + o.token, Data: o.buf.Bytes()}
	if o.req.JSON {
		m.Header = nats.Header{HeaderContent: {contentType(true)}}
	}
	if err := o.server.cfg.Conn.PublishMsg(m); err != nil {
		// Our own connection is away: to the reader this stream is broken, and
		// an error frame that came later would be taken for the command's.
		o.gone = ErrReaderGone
		o.cancel(ErrReaderGone)
	}
	return o.gone
}

// respondFrame ends a stream, also one whose handler never ran.
func (r *Request) respondFrame(result any, err error) {
	out := r.output
	if out == nil {
		out = newOutput(r.server, r, func(error) {})
	}
	if errors.Is(err, ErrMoved) {
		out.finish(Frame{Kind: FrameMoved})
		return
	}
	kind := FrameEnd
	if err != nil {
		kind = FrameFailed
	}
	body, eerr := encode(r.answer(result, err), r.JSON)
	if eerr != nil {
		kind = FrameFailed
		body, _ = encode(r.answer(nil, eerr), r.JSON) // an Answer without a result can always be encoded
	}
	out.finish(Frame{Kind: kind, Answer: body})
}

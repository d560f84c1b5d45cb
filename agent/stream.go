package agent

import (
	"context"
	"fmt"
	"io"
	"sync"

	"shoal/sandbox"
)

// MaxWindow is the most unacknowledged output that a stream carries, and the
// default.
const MaxWindow = 1 << 20

// MaxChunk is the most output of one event, in bytes.
const MaxChunk = 32 << 10

// maxOffset bounds every offset, far below an overflow.
const maxOffset = 1 << 50

// EventKind says what an [Event] is.
type EventKind uint8

// The kinds of events.
const (
	EventOutput EventKind = 1 + iota // Offset, Stream, Data
	EventGap                         // Offset, Bytes: output that is lost
	EventEnd                         // End: the last one
	EventInput                       // Offset, Credit, Closed: what stdin takes next
	EventRole                        // Primary: this reader governs the command or does not any more
)

// Event is one thing that a command's stream says.
type Event struct {
	Kind   EventKind
	Offset int64
	Stream sandbox.Stream
	// Data is valid until the next Recv.
	Data    []byte
	Bytes   int64
	Credit  int64
	Closed  bool
	Primary bool
	End     *sandbox.End
}

// Stream follows one command. Recv belongs to one goroutine; the other methods
// may be called from any. It must be closed.
type Stream struct {
	x       *exchange
	started Started

	out  output // Recv's own, reused
	next int64  // Recv's own: the offset that must come
	over bool   // Recv's own: the end has come

	mu     sync.Mutex
	credit credit // guarded by mu: what the agent may send
}

// Start starts a command, or follows the one that the same request started
// already, as its primary reader from its oldest kept byte. It returns when
// the program is being executed. Codes: Restarted, Conflict, Fenced, Busy,
// StartFailed; OutcomeUnknown when the stream broke before the answer.
func (s *Session) Start(ctx context.Context, r StartRequest) (*Stream, error) {
	if err := r.Command.Validate(); err != nil {
		return nil, err
	}
	r.Window = window(r.Window)
	return s.stream(ctx, opStart, r, r.Command.ID, r.Window, -1)
}

// Follow attaches to a running or recently ended command. Code NotFound when
// the sandbox does not know it (any more).
func (s *Session) Follow(ctx context.Context, r FollowRequest) (*Stream, error) {
	if err := r.ID.Validate(); err != nil {
		return nil, err
	}
	if r.Offset < -1 || r.Offset > maxOffset {
		return nil, sandbox.InvalidField("offset", "%d is out of bounds", r.Offset)
	}
	r.Window = window(r.Window)
	return s.stream(ctx, opFollow, r, r.ID, r.Window, r.Offset)
}

func window(n int64) int64 {
	if n <= 0 || n > MaxWindow {
		return MaxWindow
	}
	return max(n, MaxChunk)
}

func (s *Session) stream(ctx context.Context, op string, body any, id sandbox.CommandID, width, from int64) (*Stream, error) {
	x, err := s.open(ctx, op, body)
	if err != nil {
		return nil, err
	}
	st := &Stream{x: x}
	if err := x.answer(ctx, &st.started); err != nil {
		x.close()
		return nil, err
	}
	if err := st.check(id, from); err != nil {
		x.close()
		return nil, err
	}
	st.next = st.started.Offset
	st.credit = newCredit(st.next, width)
	return st, nil
}

func (st *Stream) check(id sandbox.CommandID, from int64) error {
	i := &st.started.Info
	switch {
	case i.ID != id:
		return st.lied("it answers for another command")
	case st.started.Boot != st.x.session.hello.Boot:
		return st.lied("it changed its boot")
	case st.started.Offset < 0 || st.started.Offset > maxOffset || from >= 0 && st.started.Offset != from:
		return st.lied("it follows from another offset")
	}
	return checkInfo(i, st.lied)
}

func (st *Stream) lied(how string) error { return st.x.session.lied(how) }

// Started returns how the stream began.
func (st *Stream) Started() Started { return st.started }

// Recv returns the next event. After EventEnd it returns io.EOF. A ctx that
// ends does not harm the stream: Recv may be called again.
func (st *Stream) Recv(ctx context.Context) (Event, error) {
	if st.over {
		return Event{}, io.EOF
	}
	for {
		k, body, err := st.x.next(ctx)
		if err != nil {
			return Event{}, err
		}
		e, known, err := st.event(k, body)
		if err != nil {
			return Event{}, err
		}
		if known {
			return e, nil
		}
	}
}

func (st *Stream) event(k kind, body []byte) (e Event, known bool, err error) {
	switch k {
	case kindOutput:
		e, err = st.output(body)
	case kindGap:
		e, err = st.gap(body)
	case kindEnd:
		e, err = st.end(body)
	case kindInput:
		var in input
		if err = st.read(body, &in); err == nil && (in.Offset < 0 || in.Offset > maxOffset || in.Credit < 0 || in.Credit > MaxWindow) {
			err = st.lied("a credit out of bounds")
		}
		e = Event{Kind: EventInput, Offset: in.Offset, Credit: in.Credit, Closed: in.Closed}
	case kindRole:
		var r role
		err = st.read(body, &r)
		e = Event{Kind: EventRole, Primary: r.Primary}
	default:
		return e, false, nil
	}
	return e, true, err
}

func (st *Stream) read(body []byte, v any) error {
	if err := decode(body, v); err != nil {
		return st.lied("a malformed frame")
	}
	return nil
}

func (st *Stream) output(body []byte) (Event, error) {
	st.out.Stream, st.out.Offset, st.out.Data = 0, -1, st.out.Data[:0]
	if err := st.read(body, &st.out); err != nil {
		return Event{}, err
	}
	o := &st.out
	n := int64(len(o.Data))
	switch {
	case n == 0 || n > maxBytes || o.Stream != sandbox.Stdout && o.Stream != sandbox.Stderr:
		return Event{}, st.lied("a malformed piece of output")
	case o.Offset != st.next:
		return Event{}, st.lied(fmt.Sprintf("output at offset %d in place of %d", o.Offset, st.next))
	case !st.within(o.Offset + n):
		return Event{}, st.lied("more output than its credit")
	}
	st.next += n
	return Event{Kind: EventOutput, Offset: o.Offset, Stream: o.Stream, Data: o.Data}, nil
}

func (st *Stream) within(end int64) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return end <= st.credit.limit()
}

func (st *Stream) gap(body []byte) (Event, error) {
	var g gap
	if err := st.read(body, &g); err != nil {
		return Event{}, err
	}
	if g.Offset != st.next || g.Bytes <= 0 || g.Bytes > maxOffset-st.next {
		return Event{}, st.lied("a gap that does not fit")
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.credit.full() {
		return Event{}, st.lied("too many gaps")
	}
	st.credit.gap(st.next, st.next+g.Bytes)
	st.next += g.Bytes
	return Event{Kind: EventGap, Offset: g.Offset, Bytes: g.Bytes}, nil
}

func (st *Stream) end(body []byte) (Event, error) {
	var e ended
	if err := st.read(body, &e); err != nil {
		return Event{}, err
	}
	if err := checkEnd(&e.End, st.lied); err != nil {
		return Event{}, err
	}
	if e.End.Bytes != st.next {
		return Event{}, st.lied(fmt.Sprintf("an end at %d bytes after %d", e.End.Bytes, st.next))
	}
	st.over = true
	return Event{Kind: EventEnd, Offset: st.next, End: &e.End}, nil
}

// Ack says that everything below offset was consumed: the agent may forget it
// and send as much more. The same offset again says "alive, not reading".
func (st *Stream) Ack(ctx context.Context, offset int64) error {
	st.mu.Lock()
	st.credit.ack(offset)
	st.mu.Unlock()
	return st.x.send(ctx, kindAck, ack{Offset: offset})
}

// AckEnd says that the end was consumed, with everything before it: the agent
// may forget the command. It closes the stream.
func (st *Stream) AckEnd(ctx context.Context, offset int64) error {
	defer st.x.close()
	return st.x.send(ctx, kindAck, ack{Offset: offset, End: true})
}

// Stdin sends standard input at its offset, within the credit of the last
// EventInput. A piece at another offset than the next is dropped; EventInput
// answers each with what is next.
func (st *Stream) Stdin(ctx context.Context, offset int64, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), MaxChunk)
		if err := st.x.send(ctx, kindStdin, stdin{Offset: offset, Data: data[:n]}); err != nil {
			return err
		}
		offset, data = offset+int64(n), data[n:]
	}
	return nil
}

// CloseStdin closes standard input, whose length is offset.
func (st *Stream) CloseStdin(ctx context.Context, offset int64) error {
	return st.x.send(ctx, kindStdin, stdin{Offset: offset, Close: true})
}

// Signal sends a signal to the command's process group. seq counts the signals
// and resizes of this command upwards; one that is not above the last is
// dropped, so that repeats do no harm.
func (st *Stream) Signal(ctx context.Context, seq uint64, number int) error {
	return st.x.send(ctx, kindSignal, signal{Seq: seq, Signal: number})
}

// Resize sets the terminal's size; seq as in [Stream.Signal].
func (st *Stream) Resize(ctx context.Context, seq uint64, size sandbox.TTY) error {
	return st.x.send(ctx, kindResize, resize{Seq: seq, Rows: size.Rows, Cols: size.Cols})
}

// Close ends the following, not the command. It may be called twice.
func (st *Stream) Close() { st.x.close() }

// The bounds of what an agent may say about a command.
const (
	maxSurvivors = 4096
	maxPreview   = 4 << 10
)

var reasons = map[sandbox.EndReason]bool{
	sandbox.Exited: true, sandbox.Signaled: true, sandbox.TimedOut: true, sandbox.Killed: true,
	sandbox.OutOfMemory: true, sandbox.Disconnected: true, sandbox.Suspended: true, sandbox.SandboxRestarted: true,
}

func checkEnd(e *sandbox.End, lied func(string) error) error {
	switch {
	case !reasons[e.Reason], (e.Code != nil) != (e.Reason == sandbox.Exited):
		return lied("an end without a sense")
	case e.Code != nil && (*e.Code < 0 || *e.Code > 255), e.Signal < 0 || e.Signal > 64:
		return lied("an exit code or signal out of bounds")
	case len(e.By) > maxWord, len(e.Survivors) > maxSurvivors, e.Bytes < 0, e.Bytes > maxOffset:
		return lied("an end out of bounds")
	}
	e.By = printable(e.By)
	return nil
}

func checkInfo(i *sandbox.CommandInfo, lied func(string) error) error {
	argv := 0
	for _, a := range i.Argv {
		argv += len(a) + 1
	}
	switch {
	case i.ID.Validate() != nil, i.Tag != "" && i.Tag.Validate() != nil:
		return lied("a command with a malformed id or tag")
	case i.State != sandbox.CommandRunning && i.State != sandbox.CommandEnded, (i.End != nil) != (i.State == sandbox.CommandEnded):
		return lied("a command without a state")
	case len(i.Shell) > maxPreview, argv > maxPreview:
		return lied("a command line out of bounds")
	case i.Oldest < 0, i.Next < i.Oldest, i.Next > maxOffset:
		return lied("a command with impossible offsets")
	}
	if i.End != nil {
		return checkEnd(i.End, lied)
	}
	return nil
}

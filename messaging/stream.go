package messaging

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// The times of a stream at the client.
const (
	probeAfter  = 300 * time.Millisecond // without a message: are you there?
	deadAfter   = 3 * time.Second        // a worker that says nothing is given up
	ackEvery    = 5 * time.Second        // "alive, not reading"
	reopenEvery = 200 * time.Millisecond // at most
	reopenFor   = 60 * time.Second       // without success the outcome is unknown
)

// Segment is a piece of a stream.
type Segment struct {
	Offset int64
	Stream sandbox.Stream
	Data   []byte
	// Lost, when positive, is a gap: so many bytes were not kept, Data is empty.
	Lost int64
}

// end is the offset after the segment.
func (g *Segment) end() int64 { return g.Offset + int64(len(g.Data)) + g.Lost }

// stream receives one stream, from whichever worker serves it. One goroutine,
// run, owns everything that is not behind mu.
type stream struct {
	c    *Client
	area Area
	name sandbox.Name
	id   string // of the command, or of the first request
	// open makes the request that opens the stream: the first one, and after
	// it has started the one that carries on from an offset; nil when it
	// cannot be carried on.
	open     func(s *stream, silent WorkerID) (Op, request)
	deadline time.Time // for starting
	window   int64

	opening  *time.Timer // next copy or reopening
	renew    bool        // the next opening needs a new token
	token    string      // request id of the present opening
	tokens   []func()    // forget the inbox tokens
	opened   bool        // the present opening has been answered by a frame
	copies   int         // of the first opening that may have reached somebody
	silent   WorkerID    // found silent since the stream last started
	heard    bool        // somebody has the present opening
	lastOpen time.Time
	lastMsg  time.Time
	lastAck  time.Time
	lostAt   time.Time // since when there is no worker; zero = there is one
	epoch    uint64
	recv     int64 // offset of the next byte to receive
	acked    int64

	wake chan struct{} // something changed for run
	news chan struct{} // something changed for the reader
	up   chan struct{} // closed when started or failed
	done chan struct{} // closed when run has returned

	mu      sync.Mutex // guards the rest
	queue   []*nats.Msg
	queued  int
	segs    []Segment
	given   int64 // offset after what the reader has got; its goroutine's own
	used    int64 // offset up to which the reader has consumed
	worker  WorkerID
	started bool
	info    Meta
	body    []byte // of the started answer
	result  []byte // of the terminal answer
	err     error  // io.EOF after a whole stream
	closed  bool
}

// newStream prepares a stream; start runs it.
func (c *Client) newStream(area Area, name sandbox.Name, id string, deadline time.Time, open func(*stream, WorkerID) (Op, request)) *stream {
	return &stream{
		c: c, area: area, name: name, id: id, open: open, deadline: deadline, window: c.window(),
		worker: c.place(name).worker,
		wake:   make(chan struct{}, 1), news: make(chan struct{}, 1), up: make(chan struct{}), done: make(chan struct{}),
	}
}

// start opens the stream and waits until it has started, failed, or ctx ended,
// which closes it. With a ctx that has ended already nothing is sent.
func (s *stream) start(ctx context.Context) error {
	if ctx.Err() != nil {
		close(s.done)
		return clientError(ctx)
	}
	go s.run()
	select {
	case <-s.up:
	case <-ctx.Done():
		s.close()
		return s.notStarted(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started && s.err != nil {
		return s.err
	}
	return nil
}

// notStarted: the caller gave up; whether the command started is not known
// once a request is out.
func (s *stream) notStarted(ctx context.Context) error {
	if s.area == AreaCommand && s.copies > 0 {
		return sandbox.Errorf(sandbox.OutcomeUnknown, "the wait ended before the command was seen to start; look at it by its id").From(sandbox.FromClient).Wrap(context.Cause(ctx))
	}
	return clientError(ctx)
}

// deliver is called by the client's subscription. What exceeds any honest
// window is dropped, and noticed by its offset.
func (s *stream) deliver(m *nats.Msg) {
	const most = 2*DefaultWindow + 1<<20
	s.mu.Lock()
	if s.queued+len(m.Data) <= most && len(s.queue) < 16384 {
		s.queue = append(s.queue, m)
		s.queued += len(m.Data) + 64
	}
	s.mu.Unlock()
	notify2(s.wake)
}

// notify2 wakes the receiver of c, from any goroutine.
func notify2(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// next returns the next segment; the one before counts as consumed. The data
// belongs to the caller.
func (s *stream) next(ctx context.Context) (Segment, error) {
	for {
		s.mu.Lock()
		if len(s.segs) > 0 {
			seg := s.segs[0]
			s.segs[0] = Segment{}
			s.segs = s.segs[1:]
			s.given = seg.end()
			s.mu.Unlock()
			return seg, nil
		}
		err := s.err
		s.mu.Unlock()
		if err != nil {
			return Segment{}, err
		}
		select {
		case <-s.news:
		case <-ctx.Done():
			return Segment{}, clientError(ctx)
		}
	}
}

// consumed moves the acknowledged offset.
func (s *stream) consumed(to int64) {
	s.mu.Lock()
	move := to - s.used
	s.used = max(s.used, to)
	s.mu.Unlock()
	if move > 0 {
		notify2(s.wake)
	}
}

// close leaves the stream and waits for its goroutine.
func (s *stream) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	notify2(s.wake)
	<-s.done
}

// state returns where the stream is served and whether it has ended.
func (s *stream) state() (WorkerID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.worker, s.err
}

// run serves the stream until it ends.
func (s *stream) run() {
	defer close(s.done)
	defer s.forgetTokens()
	s.lastMsg, s.lostAt = time.Now(), time.Now()
	s.reopen()
	tick := time.NewTicker(probeAfter / 3)
	defer tick.Stop()
	for !s.over() {
		select {
		case <-s.wake:
			s.takeQueue()
			s.ackIfDue()
		case now := <-tick.C:
			s.watch(now)
		}
	}
}

// over reports whether the stream is finished, and says goodbye when the
// reader left early.
func (s *stream) over() bool {
	s.mu.Lock()
	closed, err := s.closed, s.err
	s.mu.Unlock()
	if closed && err == nil {
		s.sayCancel()
		s.finish(nil, sandbox.Errorf(sandbox.Canceled, "the stream was closed by its reader").From(sandbox.FromClient))
	}
	return closed || err != nil
}

// finish records how the stream ended.
func (s *stream) finish(result []byte, err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err, s.result = err, result
	}
	s.mu.Unlock()
	select {
	case <-s.up:
	default:
		close(s.up)
	}
	notify2(s.news)
}

func (s *stream) takeQueue() {
	s.mu.Lock()
	queue := s.queue
	s.queue, s.queued = nil, 0
	s.mu.Unlock()
	for _, m := range queue {
		s.take(m)
	}
}

// consumeAll acknowledges everything that next has returned.
func (s *stream) consumeAll() { s.consumed(s.given) }

// decodeEnd decodes the terminal answer into a.
func (s *stream) decodeEnd(a any) error {
	s.mu.Lock()
	body, err := s.result, s.err
	s.mu.Unlock()
	switch {
	case body != nil:
		return decodeAnswer(body, false, a)
	case err != nil:
		return err
	}
	return sandbox.Errorf(sandbox.Internal, "the stream has not ended yet")
}

// errEnded is what next returns after the last byte of a whole stream.
var errEnded = io.EOF

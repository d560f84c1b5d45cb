package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// gather is how long the first bytes wait for company, so that what is
	// written together travels in one request. It is longer than the session
	// above holds back an end that finds no company (5 ms).
	gather = 8 * time.Millisecond
	// maxInput bounds one SendInput; the limit of the cloud's proxy is unverified.
	maxInput = 256 << 10
	// maxPending bounds what is written but not yet sent; then Write waits.
	maxPending = maxInput
	// closeWait bounds the whole of Close.
	closeWait = 5 * time.Second
	// maxStderr is how much of the process's complaints is kept.
	maxStderr = 512
)

// errSilent ends a stream on which not even a keepalive arrived.
var errSilent = errors.New("the stream is silent for too long")

// stream is the stdio of one process in a sandbox as a byte stream. A failure
// in either direction ends it for good: what was lost on the way is unknown,
// so nothing is ever continued. Read and Write may be called from one
// goroutine each, Close from any.
type stream struct {
	envd *envd
	pid  uint32
	body io.ReadCloser

	// Owned by the reader.
	buf    []byte // the payload of the last envelope, reused
	out    []byte // decoded bytes that were not taken yet
	stderr []byte
	end    error // why there is nothing more to read

	mu      sync.Mutex
	room    sync.Cond // pending was taken, or failed is set
	more    sync.Cond // pending has bytes, or failed or closed is set
	pending []byte
	failed  error // why nothing more can be written
	closed  bool

	done chan struct{} // the sender is gone
	once sync.Once
	stop context.CancelFunc // ends a SendInput in progress
}

// newStream takes over body and starts the sender, which ends with Close.
func newStream(e *envd, body io.ReadCloser, pid uint32) *stream {
	ctx, stop := context.WithCancel(context.Background())
	s := &stream{envd: e, pid: pid, body: body, done: make(chan struct{}), stop: stop}
	s.room.L, s.more.L = &s.mu, &s.mu
	go func() {
		defer close(s.done)
		s.sendLoop(ctx)
	}()
	return s
}

// runToEnd runs a process without input and drops its output. The error is nil
// only when it exited with code 0.
func (e *envd) runToEnd(ctx context.Context, p process) error {
	body, pid, err := e.startProcess(ctx, p, false)
	if err != nil {
		return err
	}
	s := newStream(e, body, pid)
	defer s.Close()
	_, err = io.Copy(io.Discard, s)
	return err
}

// Read returns output of the process. io.EOF means that it exited by itself
// with code 0; every other end is an error that says what is known.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.out) == 0 && s.end == nil {
		if s.end = s.next(); s.end != nil {
			s.fail(s.end)
		}
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	return 0, s.end
}

// next reads one envelope. The wait is bounded only while somebody reads:
// a reader that takes its time must not end the stream.
func (s *stream) next() error {
	var silent atomic.Bool
	watch := time.AfterFunc(maxSilence, func() {
		silent.Store(true)
		_ = s.body.Close()
	})
	flags, payload, err := readEnvelope(s.body, s.buf)
	watch.Stop()
	if silent.Load() {
		return errSilent
	}
	if err != nil {
		return err
	}
	s.buf = payload
	if flags&flagEnd != 0 {
		if err := endError(payload, s.envd.token); err != nil {
			return err
		}
		return errors.New("the stream ended before the process did")
	}
	var ev event
	if err := json.Unmarshal(payload, &ev); err != nil {
		return fmt.Errorf("an event is not JSON: %w", err)
	}
	return s.take(ev)
}

func (s *stream) take(ev event) error {
	switch {
	case ev.Event.Data != nil:
		s.out = ev.Event.Data.Stdout
		room := maxStderr - len(s.stderr)
		s.stderr = append(s.stderr, ev.Event.Data.Stderr[:min(room, len(ev.Event.Data.Stderr))]...)
	case ev.Event.End != nil:
		return s.exited(*ev.Event.End)
	}
	return nil // keepalive, or an event of a newer version
}

// exitError says how the process of a stream ended.
type exitError struct {
	ended
	Stderr string // bounded and without control characters
}

func (e *exitError) Error() string {
	text := "the process ended: " + e.Status
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

func (s *stream) exited(end ended) error {
	if end.Exited && end.ExitCode == 0 {
		return io.EOF
	}
	end.Status = clean(s.envd.token.scrub(end.Status))
	return &exitError{ended: end, Stderr: clean(s.envd.token.scrub(string(s.stderr)))}
}

// Write queues p for the process and returns when all of it is queued; a
// failure to deliver comes with a later Write or Read.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(p) {
		for len(s.pending) >= maxPending && s.failed == nil {
			s.room.Wait()
		}
		if s.failed != nil {
			return n, s.failed
		}
		if s.closed {
			return n, io.ErrClosedPipe
		}
		k := min(len(p)-n, maxPending-len(s.pending))
		s.pending = append(s.pending, p[n:n+k]...)
		n += k
		s.more.Signal()
	}
	return n, nil
}

// sendLoop sends what is pending, one request after another: two at once would
// arrive in any order.
func (s *stream) sendLoop(ctx context.Context) {
	for {
		data := s.takePending(ctx)
		if data == nil {
			return
		}
		if err := s.envd.sendInput(ctx, s.pid, data); err != nil {
			s.fail(fmt.Errorf("write to the sandbox: %w", err))
			_ = s.body.Close()
			return
		}
	}
}

// takePending waits for bytes and returns all that came together; nil when
// there will be none.
func (s *stream) takePending(ctx context.Context) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.pending) == 0 && s.failed == nil && !s.closed {
		s.more.Wait()
	}
	if len(s.pending) > 0 && len(s.pending) < maxPending && !s.closed {
		s.mu.Unlock()
		sleep(ctx, gather)
		s.mu.Lock()
	}
	if s.failed != nil || len(s.pending) == 0 {
		return nil
	}
	data := s.pending
	s.pending = nil
	s.room.Broadcast()
	return data
}

// fail ends writing with err; the first error stays.
func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = err
	}
	s.room.Broadcast()
	s.more.Broadcast()
}

// Close sends what is pending, gives the process EOF, at which the attach
// program exits, and ends both directions. It takes at most closeWait.
func (s *stream) Close() error {
	s.once.Do(s.shut)
	return nil
}

func (s *stream) shut() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	s.mu.Lock()
	s.closed = true
	broken := s.failed
	s.more.Broadcast()
	s.mu.Unlock()
	select {
	case <-s.done:
	case <-ctx.Done():
	}
	s.stop()
	s.fail(io.ErrClosedPipe)
	<-s.done
	s.dismiss(ctx, broken)
	_ = s.body.Close()
}

// dismiss tells the process to go. It is best effort: the agent drops the
// stream at the next claim anyway, so a broken one gets less time.
func (s *stream) dismiss(ctx context.Context, broken error) {
	if _, exited := errors.AsType[*exitError](broken); exited || errors.Is(broken, io.EOF) {
		return
	}
	if broken != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Second)
		defer cancel()
	}
	_ = s.envd.closeStdin(ctx, s.pid)
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sync/semaphore"

	"shoal/sandbox"
)

// ClientConfig is how a worker talks to an agent.
type ClientConfig struct {
	// Egress serves one connection that a program in the sandbox opened to the
	// proxy address, on a goroutine of its own, and closes it. It must return
	// when its connection or the session ends. Nil: Claim.Tunnel must not be set.
	// An agent opens at most 256 at once.
	Egress func(net.Conn)
	// HelloTimeout bounds the wait for the agent's first word; 0 = 10 s.
	HelloTimeout time.Duration
}

const (
	maxEgress      = 256
	defaultHello   = 10 * time.Second
	maxOwnStreams  = maxStreams - maxEgress
	maxConcurrOpen = 64
	// egressSlack: the agent may open the next connection before this end has
	// finished with the last.
	egressSlack = 2
)

// Session is a worker's end of one attachment to an agent. All methods may be
// called from several goroutines. Every error is a [sandbox.Error]: origin
// "sandbox" when the agent said it, "worker" when the stream broke (then
// OutcomeUnknown for what may have happened).
//
// The agent is not trusted: what it sends is bounded in size, number and
// nesting, and an agent that contradicts itself ends the session.
type Session struct {
	mux    *yamux.Session
	guard  *guard
	cfg    ClientConfig
	hello  Hello
	own    *semaphore.Weighted // streams opened by this end
	opens  *semaphore.Weighted // opening at once: yamux cannot be interrupted there
	egress *semaphore.Weighted
	wg     sync.WaitGroup

	once   sync.Once
	done   chan struct{}
	err    error // why it ended; written before done is closed
	unread error // what ended the reading; acceptLoop's, until wg is done
}

// errClosed is the cause of a session that this end closed.
var errClosed = errors.New("the session was closed")

// Connect speaks to the agent at the other end of rwc and reads its hello. On
// an error rwc is closed; otherwise the session owns it. The ctx bounds the
// connecting only.
func Connect(ctx context.Context, rwc io.ReadWriteCloser, cfg ClientConfig) (*Session, error) {
	if cfg.HelloTimeout <= 0 {
		cfg.HelloTimeout = defaultHello
	}
	below := newGuard(rwc, 0)
	mux, err := yamux.Client(below, muxConfig())
	if err != nil {
		_ = rwc.Close()
		return nil, sandbox.Errorf(sandbox.Internal, "set up the stream to the agent").Wrap(err)
	}
	s := &Session{
		mux:    mux,
		guard:  below,
		cfg:    cfg,
		own:    semaphore.NewWeighted(maxOwnStreams),
		opens:  semaphore.NewWeighted(maxConcurrOpen),
		egress: semaphore.NewWeighted(egressSlack * maxEgress),
		done:   make(chan struct{}),
	}
	s.wg.Go(s.acceptLoop)
	ctx, cancel := context.WithTimeout(ctx, cfg.HelloTimeout)
	defer cancel()
	if err := s.greet(ctx); err != nil {
		s.end(err)
		s.wg.Wait()
		if e, ok := errors.AsType[*sandbox.Error](s.unread); ok { // what carries the stream says why
			return nil, e
		}
		return nil, err
	}
	return s, nil
}

func (s *Session) greet(ctx context.Context) error {
	err := s.call(ctx, opHello, helloRequest{Newest: Protocol, Oldest: oldestProtocol}, &s.hello)
	if err != nil {
		return fmt.Errorf("greet the agent: %w", err)
	}
	h := s.hello
	switch {
	case h.Protocol < oldestProtocol || h.Protocol > Protocol:
		return sandbox.Errorf(sandbox.Unsupported, "the agent picked protocol %d of %d to %d", h.Protocol, oldestProtocol, Protocol)
	case sandbox.ValidateID("boot", h.Boot) != nil || h.Epoch > MaxEpoch || len(h.Version) > 64:
		return s.lied("its hello is out of bounds")
	}
	return nil
}

// Hello returns what the agent said at first.
func (s *Session) Hello() Hello { return s.hello }

// Heard returns when the agent last sent something.
func (s *Session) Heard() time.Time { return time.Unix(0, s.guard.heard.Load()) }

// Ask waits until the agent answers, which it does at once whatever its commands
// do. The stream below may stay open though the sandbox has ended, so whoever waits
// for a session on which nothing is heard asks now and then.
func (s *Session) Ask(ctx context.Context) error {
	var h Hello
	if err := s.call(ctx, opHello, helloRequest{Newest: Protocol, Oldest: oldestProtocol}, &h); err != nil {
		return err
	}
	if h.Boot != s.hello.Boot {
		return s.lied("it is another one than it was")
	}
	return nil
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err says why the session ended; nil while it has not.
func (s *Session) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Close ends the session, its streams and the byte stream below, and waits for
// everything it started. It may be called twice. Commands go on in the sandbox.
func (s *Session) Close() error {
	s.end(errClosed)
	s.wg.Wait()
	return nil
}

func (s *Session) end(cause error) {
	s.once.Do(func() {
		s.err = cause
		close(s.done)
		_ = s.mux.Close()
	})
}

// lied ends the session: an agent that contradicts itself is not asked again.
func (s *Session) lied(how string) error {
	err := sandbox.Errorf(sandbox.Engine, "the sandbox's agent broke the protocol: %s; it may be taken over, destroy the sandbox", how).
		Because("protocol").From(sandbox.FromWorker)
	s.end(err)
	return err
}

// acceptLoop takes the streams that the agent opens: egress connections.
func (s *Session) acceptLoop() {
	for {
		stream, err := s.mux.AcceptStream()
		if err != nil {
			s.unread = err
			s.end(s.broken(err))
			return
		}
		switch {
		case s.cfg.Egress == nil:
			_ = s.lied("it opened a stream that nobody asked for")
			return
		case !s.egress.TryAcquire(1):
			_ = s.lied("it opened too many streams")
			return
		}
		s.wg.Go(func() {
			defer s.egress.Release(1)
			s.serveEgress(stream)
		})
	}
}

func (s *Session) serveEgress(stream *yamux.Stream) {
	t := newTunnel(stream, nil)
	defer t.Close()
	_ = stream.SetReadDeadline(time.Now().Add(defaultHello))
	var q request
	k, body, err := t.frames.next()
	switch {
	case err != nil && !errors.Is(err, errFrame): // it gave up, or the session ended
		return
	case err != nil || k != kindRequest || decode(body, &q) != nil || q.Op != opEgress:
		_ = s.lied("it opened a stream for nothing")
		return
	}
	_ = stream.SetReadDeadline(time.Time{})
	s.cfg.Egress(t)
}

// open opens a stream and sends the request that begins it.
func (s *Session) open(ctx context.Context, op string, body any) (*exchange, error) {
	x, first, err := s.openHeld(ctx, op, body)
	if err != nil {
		return nil, err
	}
	stop := x.until(ctx)
	_, err = x.stream.Write(first)
	stop()
	if err != nil {
		x.close()
		return nil, s.failed(ctx, err)
	}
	return x, nil
}

// openHeld opens a stream and returns the request that must begin it.
func (s *Session) openHeld(ctx context.Context, op string, body any) (x *exchange, first []byte, err error) {
	if err := s.own.Acquire(ctx, 1); err != nil {
		return nil, nil, sandbox.AsError(err)
	}
	x, first, err = s.openOwned(ctx, op, body)
	if err != nil {
		s.own.Release(1)
	}
	return x, first, err
}

func (s *Session) openOwned(ctx context.Context, op string, body any) (*exchange, []byte, error) {
	first, err := requestFrame(op, body)
	if err != nil {
		return nil, nil, sandbox.Errorf(sandbox.Internal, "encode the request %s", op).Wrap(err)
	}
	stream, err := s.openStream(ctx)
	if err != nil {
		return nil, nil, err
	}
	return newExchange(s, stream), first, nil
}

func requestFrame(op string, body any) ([]byte, error) {
	q := request{Op: op}
	if err := encode((*appender)(&q.Body), body); err != nil {
		return nil, err
	}
	return appendFrame(nil, kindRequest, q)
}

// openStream opens a stream. yamux waits there for the peer without regard to
// a ctx, so it runs beside; at most maxConcurrOpen at once, each bounded by
// the session's end and the write time-out.
func (s *Session) openStream(ctx context.Context) (*yamux.Stream, error) {
	if s.mux.NumStreams() > maxStreams {
		return nil, s.lied("it does not close its streams")
	}
	if err := s.opens.Acquire(ctx, 1); err != nil {
		return nil, sandbox.AsError(err)
	}
	type opened struct {
		stream *yamux.Stream
		err    error
	}
	ch := make(chan opened)
	s.wg.Go(func() {
		defer s.opens.Release(1)
		stream, err := s.mux.OpenStream()
		select {
		case ch <- opened{stream, err}:
		case <-ctx.Done():
			if err == nil {
				_ = stream.Close()
			}
		}
	})
	select {
	case o := <-ch:
		if o.err != nil {
			return nil, s.failed(ctx, o.err)
		}
		return o.stream, nil
	case <-ctx.Done():
		return nil, sandbox.AsError(context.Cause(ctx))
	}
}

// call makes one request with one answer.
func (s *Session) call(ctx context.Context, op string, body, answer any) error {
	x, err := s.open(ctx, op, body)
	if err != nil {
		return err
	}
	defer x.close()
	return x.answer(ctx, answer)
}

// failed turns an error of the stream into one of the contract.
func (s *Session) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return sandbox.AsError(context.Cause(ctx))
	}
	if errors.Is(err, errFrame) {
		return s.lied("a malformed frame")
	}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e
	}
	return s.broken(err)
}

// broken says that the stream to the agent is no more.
func (s *Session) broken(err error) error {
	select {
	case <-s.done:
		if e, ok := errors.AsType[*sandbox.Error](s.err); ok {
			return e
		}
	default:
	}
	return sandbox.Errorf(sandbox.OutcomeUnknown, "the stream to the sandbox's agent broke; attach again and follow").
		Because("detached").From(sandbox.FromWorker).Wrap(brokenError{err})
}

// brokenError is how a stream broke. Unlike its cause it is never io.EOF: a
// stream that the agent closed in the middle, as it does when a newer session
// has claimed the sandbox, must not pass for the end of what was read.
type brokenError struct{ cause error }

func (e brokenError) Error() string { return e.cause.Error() }

// Is passes on what the cause is, but for an end of file.
func (e brokenError) Is(target error) bool {
	return target != io.EOF && target != io.ErrUnexpectedEOF && errors.Is(e.cause, target)
}

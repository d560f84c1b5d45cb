package messaging

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// ErrNoOwner is returned by [Server.Forward] when the other worker does not
// take the request: it is gone or stuck.
var ErrNoOwner = errors.New("the other worker does not answer")

// The times of forwarding.
const (
	forwardAgain = 100 * time.Millisecond // after "no responders", once
	// ForwardWait is how long the owner may take to accept, and
	// ForwardWaitSilent when the client has found it silent already.
	ForwardWait       = 2 * time.Second
	ForwardWaitSilent = 500 * time.Millisecond
)

// Forward hands r to another worker as a request of this one and returns when
// that worker has accepted it; the handler then returns [ErrForwarded]. The
// other worker answers the client itself. A request is forwarded once: of one
// that came from a worker Forward returns an Internal error.
func (s *Server) Forward(ctx context.Context, r *Request, to WorkerID, wait time.Duration) error {
	if r.From != "" {
		return sandbox.Errorf(sandbox.Internal, "a forwarded request is not forwarded again")
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for range 2 {
		_, err := s.cfg.Conn.RequestMsgWithContext(ctx, s.forwarded(r, to))
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, nats.ErrNoResponders):
			return errors.Join(ErrNoOwner, err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ErrNoOwner, ctx.Err())
		case <-time.After(forwardAgain):
		}
	}
	return errors.Join(ErrNoOwner, nats.ErrNoResponders)
}

// forwarded is r as it goes to another worker.
func (s *Server) forwarded(r *Request, to WorkerID) *nats.Msg {
	m := nats.NewMsg(FleetSubject(to, r.Op))
	m.Data = r.msg.Data
	for _, key := range []string{HeaderRequest, HeaderDeadline, HeaderProtocol, HeaderAccept, HeaderContent, HeaderTraceParent, HeaderTraceState} {
		if v := r.msg.Header.Get(key); v != "" {
			m.Header.Set(key, v)
		}
	}
	left := max(time.Until(r.Deadline), 0)
	m.Header.Set(HeaderTimeout, strconv.FormatInt(int64(sandbox.Millis(left)), 10))
	m.Header.Set(HeaderTenant, string(r.Tenant))
	m.Header.Set(HeaderReply, r.msg.Reply)
	m.Header.Set(HeaderFrom, string(s.cfg.Worker))
	return m
}

// Ask sends a request of this worker to another one and decodes its answer
// into result, a pointer to the type that the operation names.
func (s *Server) Ask(ctx context.Context, to WorkerID, op Op, body, result any) error {
	data, err := encode(body, false)
	if err != nil {
		return err
	}
	m := nats.NewMsg(FleetSubject(to, op))
	m.Data = data
	m.Header.Set(HeaderFrom, string(s.cfg.Worker))
	reply, err := s.cfg.Conn.RequestMsgWithContext(ctx, m)
	if err != nil {
		if errors.Is(err, nats.ErrNoResponders) {
			return errors.Join(ErrNoOwner, err)
		}
		return err
	}
	a := Answer{Result: result}
	if err := decodeAnswer(reply.Data, false, &a); err != nil {
		return err
	}
	if a.Error != nil {
		return a.Error
	}
	return nil
}

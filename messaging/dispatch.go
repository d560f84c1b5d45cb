package messaging

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"shoal/sandbox"
)

// takeQueued takes a request from the queue group.
func (s *Server) takeQueued(m micro.Request) {
	s.take(&nats.Msg{Subject: m.Subject(), Reply: m.Reply(), Header: nats.Header(m.Headers()), Data: m.Data()})
}

// take looks at a message just far enough to hand it on; it runs in the
// subscription's goroutine and must not wait.
func (s *Server) take(m *nats.Msg) {
	arrived := time.Now()
	a, err := parseSubject(m.Subject, s.cfg.Worker)
	r := &Request{Op: a.op, Tenant: a.tenant, Direct: a.direct, Received: arrived, server: s, msg: m, about: operations[a.op]}
	r.replies = append(r.replies, m.Reply)
	r.JSON, _ = contentJSON(m.Header) // so that every error can be read; judged below
	if err == nil {
		err = r.readHeaders()
	}
	if err == nil && s.cfg.CheckReply && !r.peer() && r.replies[0] != "" && !strings.HasPrefix(r.replies[0], InboxPrefix(r.Tenant)+".") {
		// Answering would let a tenant write to another's inbox.
		s.cfg.Log.Warn("request with a foreign reply subject", "tenant", r.Tenant, "op", r.Op)
		return
	}
	switch {
	case err == nil && r.replies[0] == "" && (a.op != "" || a.verb == ""):
		s.cfg.Log.Debug("request without a reply subject", "op", r.Op)
	case err != nil:
		r.respond(nil, err)
	case a.op == "":
		s.takeVerb(a, r)
	case !r.peer() && s.pulse.missed():
		s.cfg.Log.Debug("request dropped after a standstill", "op", r.Op)
	default:
		s.admit(a, r)
	}
}

// admit says the word of acceptance and starts the handler, or answers Busy.
func (s *Server) admit(a address, r *Request) {
	r.accept()
	slots := s.requests
	if r.about.stream {
		slots = s.streams
	}
	select {
	case slots <- struct{}{}:
	default:
		r.respond(nil, sandbox.Errorf(sandbox.Busy, "this worker serves as many requests as it may; try again").After(250*time.Millisecond))
		return
	}
	if !s.handlers.enter() {
		<-slots
		r.respond(nil, sandbox.Errorf(sandbox.Draining, "this worker is stopping; ask again"))
		return
	}
	go func() {
		defer s.handlers.leave()
		defer func() { <-slots }()
		s.serve(a, r)
	}()
}

// serve decodes the request, runs the handler and answers.
func (s *Server) serve(a address, r *Request) {
	r.Timing.Queue = time.Since(r.Received).Microseconds()
	if err := r.decode(a); err != nil {
		r.respond(nil, err)
		return
	}
	if known, err := s.repeats.begin(r); known || err != nil {
		if err != nil {
			r.respond(nil, err)
		}
		return
	}
	ctx, cancel := r.context()
	defer cancel(nil)
	if !s.openStreams(r, cancel) {
		s.repeats.drop(r)
		return // a copy of a stream that is being served already
	}
	result, err := s.call(ctx, r)
	s.closeStreams(r)
	if errors.Is(err, ErrForwarded) {
		s.repeats.drop(r)
		return
	}
	r.respond(result, s.cause(ctx, err))
}

// cause replaces a bare context error by what ended the context.
func (s *Server) cause(ctx context.Context, err error) error {
	if err == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	if errors.Is(context.Cause(ctx), ErrStopping) {
		return sandbox.Errorf(sandbox.Draining, "this worker is stopping; ask again").Wrap(err)
	}
	return err
}

// call runs the handler; a panic becomes an Internal error of this request.
func (s *Server) call(ctx context.Context, r *Request) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = s.fault(fmt.Errorf("panic in %s: %v\n%s", r.Op, p, debug.Stack()), slog.String("op", string(r.Op)))
		}
	}()
	return s.cfg.Handler(ctx, r)
}

// openStreams registers the output that the operation has.
func (s *Server) openStreams(r *Request, cancel context.CancelCauseFunc) bool {
	if r.about.stream {
		out := newOutput(s, r, cancel)
		if !s.outputs.add(out.key, out) {
			return false
		}
		r.output = out
	}
	return true
}

func (s *Server) closeStreams(r *Request) {
	if r.output != nil {
		s.outputs.remove(r.output.key)
	}
	if r.input != nil {
		s.inputs.remove(r.input.key)
		r.input.Close()
	}
}

// takeVerb handles what belongs to a running stream, in order of arrival.
func (s *Server) takeVerb(a address, r *Request) {
	var result any
	err := s.verb(a, r, &result)
	if errors.Is(err, errLater) || r.replies[0] == "" {
		return
	}
	r.respond(result, err)
}

func (s *Server) verb(a address, r *Request, result *any) error {
	if a.verb == VerbData {
		return s.takeData(a, r)
	}
	var body StreamRequest
	if err := decodeRequest(r.msg.Data, r.JSON, &body); err != nil {
		return err
	}
	if err := body.Validate(); err != nil {
		return err
	}
	out, ok := s.outputs.get(streamKey{a.tenant, a.area, a.name, a.id, body.Stream})
	if !ok {
		return sandbox.Errorf(sandbox.NotFound, "this worker has no such stream; follow again").Because("stream")
	}
	if a.verb == VerbCancel {
		out.end(ErrReaderLeft)
		*result = Done{}
		return nil
	}
	*result = StreamAnswer{Next: out.ack(body.Offset, body.Ended)}
	return nil
}

func (s *Server) takeData(a address, r *Request) error {
	var body DataRequest
	if err := decodeRequest(r.msg.Data, r.JSON, &body); err != nil {
		return err
	}
	if err := body.Validate(); err != nil {
		return err
	}
	in, ok := s.inputs.get(streamKey{a.tenant, a.area, a.name, a.id, ""})
	if !ok {
		return sandbox.Errorf(sandbox.NotFound, "this worker takes no such input").Because("stream")
	}
	in.feed(body, r)
	return errLater
}

// unread is told by NATS that nobody subscribes to a stream's inbox.
func (s *Server) unread(m *nats.Msg) {
	if m.Header.Get("Status") != "503" {
		return
	}
	token := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	for _, out := range s.outputs.all() {
		if out.token == token {
			out.end(ErrReaderGone)
		}
	}
}

// sum is what tells a copy of a request from another with the same id.
func (r *Request) sum() [sha256.Size]byte {
	var b bytes.Buffer
	b.WriteString(string(r.Op))
	b.WriteByte(0)
	b.Write(r.msg.Data)
	return sha256.Sum256(b.Bytes())
}

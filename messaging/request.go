package messaging

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// Request is one request as a handler sees it.
type Request struct {
	Op     Op
	Tenant sandbox.Tenant
	// ID is the client's request id; "" when it gave none, and then nothing
	// recognises a copy.
	ID string
	// Body is the decoded and valid request: a pointer to the type that the
	// operation names, such as *ExecRequest.
	Body any
	// JSON: the answer goes out as JSON.
	JSON bool
	// Received and Deadline are this worker's own clock.
	Received time.Time
	Deadline time.Time
	// Direct: the request named this worker.
	Direct bool
	// From is the worker that forwarded the request; "" = it came from the client.
	From WorkerID
	// Trace holds the trace context as it came.
	Trace map[string]string
	// Meta goes into the answer and every frame; the handler fills it in from
	// its own goroutine as soon as it knows, at the latest before it returns.
	Meta

	server *Server
	msg    *nats.Msg
	about  operation
	output *Output
	input  *Input

	mu      sync.Mutex // guards replies
	replies []string   // where the answer goes; copies may add more
}

// Target returns the sandbox that the request names; the zero Target for
// operations that name none.
func (r *Request) Target() Target {
	switch body := r.Body.(type) {
	case interface{ target() Target }:
		return body.target()
	case *CreateRequest:
		return Target{Sandbox: body.Name}
	}
	return Target{}
}

// Output returns the stream to the client. It is nil unless the operation
// answers with one.
func (r *Request) Output() *Output { return r.output }

// Input returns what the client sends: an upload, or the bytes for a forwarded
// port. It is nil unless the operation takes one. The first call opens it: only
// the worker that serves the request may take its input. Call it from the
// handler's goroutine.
func (r *Request) Input() *Input {
	if r.input == nil && r.about.input {
		r.input = newInput(r)
		r.server.inputs.add(r.input.key, r.input)
	}
	return r.input
}

// peer reports whether a worker asks on its own account.
func (r *Request) peer() bool { return r.about.fleet }

// readHeaders fills in what the headers say.
func (r *Request) readHeaders() (err error) {
	h := r.msg.Header
	if r.JSON, err = contentJSON(h); err != nil {
		return err
	}
	if err := checkProtocol(h); err != nil {
		return err
	}
	if r.ID = h.Get(HeaderRequest); r.ID != "" {
		if err := sandbox.ValidateID(HeaderRequest, r.ID); err != nil {
			return err
		}
	}
	if r.Tenant == "" && !r.peer() {
		r.Tenant, r.From = sandbox.Tenant(h.Get(HeaderTenant)), WorkerID(h.Get(HeaderFrom))
		r.replies[0] = h.Get(HeaderReply)
		if err := errors.Join(r.Tenant.Validate(), r.From.Validate()); err != nil {
			return err
		}
	}
	left, err := remaining(h, r.Received)
	if err != nil {
		return err
	}
	r.Deadline = r.Received.Add(left)
	r.Trace = traceOf(h)
	return nil
}

func traceOf(h nats.Header) map[string]string {
	var trace map[string]string
	for _, key := range []string{HeaderTraceParent, HeaderTraceState} {
		if v := h.Get(key); v != "" && len(v) <= 512 {
			if trace == nil {
				trace = map[string]string{}
			}
			trace[key] = v
		}
	}
	return trace
}

// decode reads and checks the body.
func (r *Request) decode(a address) error {
	body := r.about.request()
	if err := decodeRequest(r.msg.Data, r.JSON, body); err != nil {
		return err
	}
	if v, ok := body.(interface {
		setTarget(sandbox.Name, sandbox.CommandID)
	}); ok {
		v.setTarget(a.name, sandbox.CommandID(a.id))
	}
	if err := body.Validate(); err != nil {
		return err
	}
	r.Body = body
	return nil
}

// context is the handler's: a stream has no end by time.
func (r *Request) context() (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(r.server.ctx)
	if r.about.stream {
		return ctx, cancel
	}
	timed, stop := context.WithDeadline(ctx, r.Deadline)
	return timed, func(cause error) {
		cancel(cause)
		stop()
	}
}

// accept says at once that the request has arrived: to the worker that
// forwarded it always, to the client when it asks for that.
func (r *Request) accept() {
	if r.From != "" && r.msg.Reply != "" {
		r.server.publish(acceptedMsg(r.msg.Reply, r.server.cfg.Worker))
	}
	if r.msg.Header.Get(HeaderAccept) != "" {
		r.server.publish(acceptedMsg(r.replies[0], r.server.cfg.Worker))
	}
}

func acceptedMsg(to string, worker WorkerID) *nats.Msg {
	m := nats.NewMsg(to)
	m.Header.Set(HeaderWord, wordAccepted)
	m.Header.Set(HeaderWorker, string(worker))
	return m
}

// respond sends the one answer, or the one terminal frame of a stream.
func (r *Request) respond(result any, err error) {
	if r.about.stream {
		r.respondFrame(result, err)
		return
	}
	a := r.answer(result, err)
	body, eerr := encode(a, r.JSON)
	if eerr == nil && len(body) > maxBody-4096 {
		eerr = sandbox.Errorf(sandbox.TooLarge, "the answer has %d bytes; ask for less at once", len(body))
	}
	if eerr != nil {
		a = r.answer(nil, eerr)
		body, _ = encode(a, r.JSON) // an Answer without a result can always be encoded
	}
	for _, to := range r.server.repeats.finish(r, a.Error, body) {
		r.server.publish(r.message(to, a.Error, body))
	}
}

// message is the answer as it goes out.
func (r *Request) message(to string, failed *sandbox.Error, body []byte) *nats.Msg {
	m := nats.NewMsg(to)
	m.Data = body
	m.Header.Set(HeaderContent, contentType(r.JSON))
	m.Header.Set(HeaderWorker, string(r.server.cfg.Worker))
	if failed != nil {
		m.Header.Set(HeaderError, string(failed.Code))
		m.Header.Set(HeaderErrorText, headerText(failed.Message))
	}
	return m
}

func (r *Request) answer(result any, err error) Answer {
	r.Meta.Worker = r.server.cfg.Worker
	r.Timing.Total = time.Since(r.Received).Microseconds()
	a := Answer{Meta: r.Meta}
	if err == nil {
		a.Result = result
		return a
	}
	a.Error = r.server.fault(err, slog.String("op", string(r.Op)), slog.String("sandbox", string(r.Target().Sandbox)))
	return a
}

func contentType(asJSON bool) string {
	if asJSON {
		return "application/json"
	}
	return "application/msgpack"
}

// headerText keeps a message on one line, as headers need it.
func headerText(s string) string {
	const most = 200
	clean := make([]byte, 0, most)
	for i := 0; i < len(s) && len(clean) < most; i++ {
		if c := s[i]; c >= ' ' && c < 0x7f {
			clean = append(clean, c)
		}
	}
	return string(clean)
}

// publish hands a message to the connection; what cannot be sent is noticed by
// the client's own silence rules.
func (s *Server) publish(m *nats.Msg) {
	if m.Subject == "" {
		return
	}
	if err := s.cfg.Conn.PublishMsg(m); err != nil {
		s.cfg.Log.Debug("answer not sent", "error", err)
	}
}

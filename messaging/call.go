package messaging

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// The times of a client's requests.
const (
	copyAfter     = 3 * time.Second // without a word a copy is sent
	maxCopies     = 10 * time.Minute
	noWorkerTries = 4
	// silentCopies to the worker that accepted, each answered at once by one that
	// runs, are sent before another is asked.
	silentCopies = 2
)

// pendingCall is one request from its first sending to its answer.
type pendingCall struct {
	c        *Client
	op       Op
	about    operation
	name     sandbox.Name
	id       string
	body     []byte
	deadline time.Time
	answers  chan *nats.Msg
	onAccept func(WorkerID)

	first    time.Time
	last     time.Time // of the last word
	worker   WorkerID  // where the last copy went, or who accepted it
	accepted WorkerID
	copies   int
	unheard  int // copies since the last word
	refused  int // times that no worker was there
}

// inputHook joins a request with the sending of its input.
type inputHook struct {
	id       string // of the request
	accepted func(WorkerID)
}

// call sends a request and returns its answer. With a ctx that has ended already
// nothing is sent.
func call[T any](ctx context.Context, c *Client, op Op, body request) (T, error) {
	result, _, err := callMeta[T](ctx, c, op, body, nil)
	return result, err
}

func callMeta[T any](ctx context.Context, c *Client, op Op, body request, input *inputHook) (T, Meta, error) {
	var a answer[T]
	if ctx.Err() != nil {
		return a.Result, a.Meta, clientError(ctx)
	}
	p, err := c.newCall(op, body)
	if err != nil {
		return a.Result, a.Meta, err
	}
	if input != nil {
		p.id, p.onAccept = input.id, input.accepted
	}
	ctx, cancel := p.bound(ctx)
	defer cancel()
	defer c.wait(p.id, p.deliver)()
	for {
		m, err := p.await(ctx)
		if err != nil {
			return a.Result, a.Meta, err
		}
		a = answer[T]{}
		if err := decodeAnswer(m.Data, false, &a); err != nil {
			return a.Result, a.Meta, badFrame(err)
		}
		if a.Error == nil {
			c.learn(p.name, a.Meta)
			return a.Result, a.Meta, nil
		}
		if !p.again(ctx, a.Error) {
			return a.Result, a.Meta, p.judge(a.Error)
		}
	}
}

func (c *Client) newCall(op Op, body request) (*pendingCall, error) {
	if err := body.Validate(); err != nil {
		return nil, sandbox.AsError(err).From(sandbox.FromClient)
	}
	data, err := encode(body, false)
	if err != nil {
		return nil, err
	}
	p := &pendingCall{
		c: c, op: op, about: operations[op], id: sandbox.NewID(), body: data,
		answers: make(chan *nats.Msg, 16),
	}
	switch b := body.(type) {
	case interface{ target() Target }:
		p.name = b.target().Sandbox
	case *CreateRequest:
		p.name = b.Name
	}
	p.worker = c.place(p.name).worker
	return p, nil
}

// bound gives ctx an end when it has none.
func (p *pendingCall) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(defaultRequestTime)
	}
	p.deadline = deadline
	return context.WithDeadline(ctx, deadline)
}

func (p *pendingCall) deliver(m *nats.Msg) {
	select {
	case p.answers <- m:
	default: // more words than any honest worker says
	}
}

// await sends the request if it has to, and returns the answer.
func (p *pendingCall) await(ctx context.Context) (*nats.Msg, error) {
	if err := p.send(ctx); err != nil {
		return nil, err
	}
	tick := time.NewTicker(copyAfter / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, p.gaveUp(ctx)
		case now := <-tick.C:
			if now.Sub(p.last) < p.patience() || now.Sub(p.first) > maxCopies {
				continue
			}
			if err := p.silent(ctx); err != nil {
				return nil, err
			}
		case m := <-p.answers:
			p.last = time.Now()
			switch {
			case m.Header.Get("Status") == "503":
				if err := p.noResponders(ctx); err != nil {
					return nil, err
				}
			case m.Header.Get(HeaderWord) == wordAccepted:
				p.accept(WorkerID(m.Header.Get(HeaderWorker)))
			default:
				return m, nil
			}
		}
	}
}

// patience is how long to wait for a word. The queue group may give a copy to
// the same silent worker again, so later ones follow sooner.
func (p *pendingCall) patience() time.Duration {
	if p.copies > 1 && p.accepted == "" {
		return copyAfter / 4
	}
	return copyAfter
}

func (p *pendingCall) accept(worker WorkerID) {
	p.worker, p.accepted, p.unheard = worker, worker, 0
	if p.onAccept != nil {
		p.onAccept(worker)
	}
}

// send publishes one copy: to the worker that is known to serve the sandbox,
// else to any.
func (p *pendingCall) send(ctx context.Context) error {
	subject := Subject(p.c.tenant, p.op)
	if p.worker != "" {
		subject = WorkerSubject(p.c.tenant, p.worker, p.op)
	}
	p.last = time.Now()
	if p.copies == 0 {
		p.first = p.last
	}
	if err := p.c.publish(ctx, p.c.message(subject, p.id, p.body, p.deadline)); err != nil {
		if p.copies > 0 {
			return p.unknown("the connection to NATS was lost before an answer came")
		}
		return err
	}
	p.copies++
	return nil
}

// silent sends a copy: nobody has said a word for a while. The worker that
// accepted the request recognises it. When that one is gone NATS says so; one that is
// stopped, or whose machine is, says nothing any more, and another is asked unless
// the request may not be done twice.
func (p *pendingCall) silent(ctx context.Context) error {
	p.unheard++
	if p.accepted == "" || p.unheard > silentCopies && !p.about.once {
		p.c.forgetWorker(p.name, p.worker)
		p.worker, p.accepted = "", ""
	}
	return p.send(ctx)
}

// noResponders: the worker that was addressed is gone, or there is none.
func (p *pendingCall) noResponders(ctx context.Context) error {
	if p.accepted != "" && p.about.once {
		return p.unknown("the worker that took the request is gone")
	}
	if p.worker != "" {
		p.c.forgetWorker(p.name, p.worker)
		p.worker, p.accepted = "", ""
		return p.send(ctx)
	}
	p.refused++
	if p.refused >= noWorkerTries {
		return sandbox.Errorf(sandbox.Unavailable, "no worker answers; start one (shoal-worker) on this NATS server").From(sandbox.FromClient).Because("no_worker")
	}
	if err := pause(ctx, time.Duration(100<<(2*(p.refused-1)))*time.Millisecond); err != nil {
		return p.gaveUp(ctx)
	}
	return p.send(ctx)
}

// again waits when the answer says "later" and reports whether to send again.
func (p *pendingCall) again(ctx context.Context, e *sandbox.Error) bool {
	wait := e.RetryAfter.Duration()
	switch {
	case e.Code == sandbox.Busy && wait > 0:
	case e.Code == sandbox.Draining:
		p.c.forgetWorker(p.name, p.worker)
		wait = 50 * time.Millisecond
	default:
		return false
	}
	p.worker, p.accepted = "", ""
	return pause(ctx, wait+rand.N(wait)) == nil //nolint:gosec // to spread the repeats, not to keep a secret
}

// judge keeps a repeated request from reporting its own first copy's doing as
// a failure.
func (p *pendingCall) judge(e *sandbox.Error) error {
	if p.about.once && p.copies > 1 && (e.Code == sandbox.NotFound || e.Code == sandbox.Exists || e.Code == sandbox.Conflict) {
		return p.unknown("a repeated request was answered " + string(e.Code))
	}
	return e
}

func (p *pendingCall) gaveUp(ctx context.Context) error {
	if p.about.once && p.copies > 0 {
		return p.unknown("no answer came in time")
	}
	return clientError(ctx)
}

func (p *pendingCall) unknown(why string) error {
	return sandbox.Errorf(sandbox.OutcomeUnknown, "%s: %s; look before you repeat it", p.op, why).From(sandbox.FromClient)
}

// pause waits d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

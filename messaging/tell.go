package messaging

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// tell sends a verb to the worker that serves the command now, again after a
// takeover, until it is answered or the command has ended. Offsets and
// sequence numbers make repeats harmless.
func tell[T any](ctx context.Context, p *Process, verb Verb, body request) (T, error) {
	var none T
	if err := body.Validate(); err != nil {
		return none, sandbox.AsError(err).From(sandbox.FromClient)
	}
	data, err := encode(body, false)
	if err != nil {
		return none, err
	}
	for {
		worker, ended := p.s.state()
		if ended != nil {
			return none, sandbox.Errorf(sandbox.Gone, "the command has ended").From(sandbox.FromClient).Because("ended").Wrap(ended)
		}
		a, err := tellOnce[T](ctx, p, worker, verb, data)
		if err == nil && a.Error == nil {
			return a.Result, nil
		}
		if err == nil && !elsewhere(a.Error) {
			return none, a.Error
		}
		if perr := pause(ctx, 50*time.Millisecond); perr != nil {
			return none, clientError(ctx)
		}
	}
}

// elsewhere reports whether another worker serves the command by now.
func elsewhere(e *sandbox.Error) bool {
	return e.Code == sandbox.Draining || e.Code == sandbox.Fenced || e.Code == sandbox.Unavailable ||
		e.Code == sandbox.Busy && e.RetryAfter > 0 || e.Code == sandbox.NotFound && e.Reason == "stream"
}

var errNoWorker = errors.New("no worker serves the command now")

func tellOnce[T any](ctx context.Context, p *Process, worker WorkerID, verb Verb, data []byte) (answer[T], error) {
	var a answer[T]
	if worker == "" {
		return a, errNoWorker
	}
	ctx, cancel := context.WithTimeout(ctx, copyAfter)
	defer cancel()
	m := nats.NewMsg(StreamSubject(p.c.tenant, worker, AreaCommand, p.target.Sandbox, string(p.id), verb))
	m.Data = data
	reply, err := p.c.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return a, err
	}
	return a, decodeAnswer(reply.Data, false, &a)
}

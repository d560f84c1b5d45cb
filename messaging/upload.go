package messaging

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// errInputClosed: whoever takes the input wants no more; the answer to the
// request says why.
var errInputClosed = errors.New("the input is closed")

// noStreamFor is how long a worker may say that it knows nothing of an input:
// the request may still be on its way to it.
const noStreamFor = 5 * time.Second

// inputWriter sends the input of one request, one message at a time.
type inputWriter struct {
	c      *Client
	area   Area
	name   sandbox.Name
	id     string
	at     chan WorkerID // the newest worker that accepted the request
	worker WorkerID
	offset int64
}

// callUpload is call with the writer's id as the request's.
func callUpload[T any](ctx context.Context, c *Client, op Op, w *inputWriter, body request) (T, error) {
	result, _, err := callMeta[T](ctx, c, op, body, &inputHook{id: w.id, accepted: func(worker WorkerID) { notify(w.at, worker) }})
	return result, err
}

// copy sends r whole.
func (w *inputWriter) copy(ctx context.Context, r io.Reader) error {
	buf := make([]byte, MaxUpload)
	for {
		n, err := readFull(r, buf)
		final := errors.Is(err, io.EOF)
		if err != nil && !final {
			return err
		}
		if err := w.send(ctx, DataRequest{Offset: w.offset, Data: buf[:n], Final: final}); err != nil || final {
			return err
		}
	}
}

// readFull fills buf from r. Unlike io.ReadFull it returns r's own error as it
// is: io.EOF with the last bytes, and an error such as io.ErrUnexpectedEOF,
// which says that r was cut off, is no end.
func readFull(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// send sends one message until it is taken whole.
func (w *inputWriter) send(ctx context.Context, d DataRequest) error {
	end := d.Offset + int64(len(d.Data))
	var missing time.Time
	for {
		a, err := w.sendOnce(ctx, d)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && a.Error == nil && a.Result.Closed:
			return errInputClosed
		case err == nil && a.Error == nil && a.Result.Offset >= end:
			w.offset = end
			return nil
		case err == nil && a.Error != nil && a.Error.Code != sandbox.NotFound:
			return a.Error
		case err == nil && a.Error == nil && a.Result.Offset < d.Offset:
			return sandbox.Errorf(sandbox.Unavailable, "the worker that took the input has changed; nothing was changed, send it again").From(sandbox.FromClient)
		case missing.IsZero():
			missing = time.Now()
		case time.Since(missing) > noStreamFor:
			return errInputClosed // the answer to the request says why
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return context.Cause(ctx)
		}
	}
}

func (w *inputWriter) sendOnce(ctx context.Context, d DataRequest) (answer[InputAnswer], error) {
	var a answer[InputAnswer]
	if err := w.locate(ctx); err != nil {
		return a, err
	}
	data, err := encode(&d, false)
	if err != nil {
		return a, err
	}
	// The answer waits for room; repeating the message meanwhile tells the
	// worker that the sender lives.
	ctx, cancel := context.WithTimeout(ctx, ackEvery)
	defer cancel()
	m := nats.NewMsg(StreamSubject(w.c.tenant, w.worker, w.area, w.name, w.id, VerbData))
	m.Data = data
	reply, err := w.c.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return a, err
	}
	return a, decodeAnswer(reply.Data, false, &a)
}

// locate waits for the first worker and takes note of a newer one.
func (w *inputWriter) locate(ctx context.Context) error {
	if w.worker != "" {
		select {
		case w.worker = <-w.at:
		default:
		}
		return nil
	}
	select {
	case w.worker = <-w.at:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// abort gives the input up, so that the worker need not wait for more.
func (w *inputWriter) abort() {
	if w.worker == "" {
		return
	}
	data, err := encode(&DataRequest{Offset: w.offset, Abort: true}, false)
	if err != nil {
		return
	}
	// One try: without it the worker gives up by itself a little later.
	_ = w.c.nc.Publish(StreamSubject(w.c.tenant, w.worker, w.area, w.name, w.id, VerbData), data)
}

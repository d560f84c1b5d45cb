package messaging

import (
	"errors"
	"io"
	"sync"
	"time"

	"shoal/sandbox"
)

// errLater says that the answer to a message is given elsewhere.
var errLater = errors.New("answered later")

// inputSilent is how long an upload's sender may say nothing; the library
// repeats its last word every few seconds when its source is slow.
const inputSilent = 60 * time.Second

// Input is what a client sends for one request, in order: an [io.Reader] with
// a buffer of [UploadCredit] bytes. Read is called from one goroutine.
type Input struct {
	key   streamKey
	ready chan struct{} // signals a change to Read
	idle  time.Duration // 0 = wait for ever
	done  <-chan struct{}

	mu      sync.Mutex // guards the rest
	buf     []byte
	next    int64 // offset of the next byte wanted
	final   bool
	closed  bool
	aborted bool
	pending *Request // a data message that is answered when there is room
}

func newInput(r *Request) *Input {
	id := r.ID
	if id == "" {
		id = sandbox.NewID() // nobody can send to it, and nobody needs to: the data is in the request
	}
	in := &Input{
		key:   streamKey{r.Tenant, r.about.area, r.Target().Sandbox, id, ""},
		ready: make(chan struct{}, 1), done: r.server.ctx.Done(), idle: inputSilent,
	}
	if r.about.stream { // a port's life is that of its output
		in.idle = 0
	}
	return in
}

// Read returns the next bytes; io.EOF after the final one.
func (in *Input) Read(p []byte) (int, error) {
	for {
		if n, err := in.readNow(p); n > 0 || err != nil {
			return n, err
		}
		var silent <-chan time.Time
		if in.idle > 0 {
			silent = time.After(in.idle)
		}
		select {
		case <-in.ready:
		case <-in.done:
			return 0, ErrStopping
		case <-silent:
			return 0, sandbox.Errorf(sandbox.Timeout, "the sender said nothing for %s; nothing was changed", in.idle)
		}
	}
}

func (in *Input) readNow(p []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.aborted:
		return 0, sandbox.Errorf(sandbox.Canceled, "the sender gave the upload up; nothing was changed")
	case in.closed:
		return 0, io.ErrClosedPipe
	}
	n := copy(p, in.buf)
	in.buf = in.buf[n:]
	if len(in.buf) == 0 {
		in.buf = nil
		if in.final && n == 0 {
			return 0, io.EOF
		}
	}
	in.answerLocked()
	return n, nil
}

// Close refuses what still comes. The server calls it when the handler has
// returned; a handler may call it earlier, from any goroutine.
func (in *Input) Close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.buf = nil
	notify(in.ready, struct{}{})
	in.answerLocked()
}

// feed takes one data message; the answer goes out when there is room for the
// next. What has been taken already is skipped, what lies ahead is refused by
// the offset in the answer.
func (in *Input) feed(d DataRequest, r *Request) {
	in.mu.Lock()
	defer in.mu.Unlock()
	end := d.Offset + int64(len(d.Data))
	if !in.closed && !in.final && d.Offset <= in.next && end >= in.next {
		fresh := d.Data[in.next-d.Offset:]
		if len(in.buf)+len(fresh) <= UploadCredit {
			in.buf = append(in.buf, fresh...)
			in.next += int64(len(fresh))
			in.final = d.Final
		}
	}
	if d.Abort && !in.final {
		in.aborted, in.buf = true, nil
	}
	in.pending = r
	notify(in.ready, struct{}{})
	in.answerLocked()
}

// answerLocked answers the waiting message as soon as another fits.
func (in *Input) answerLocked() {
	room := UploadCredit - len(in.buf)
	if in.pending == nil || room < MaxUpload && !in.closed && !in.final {
		return
	}
	r := in.pending
	in.pending = nil
	if r.replies[0] != "" {
		r.respond(InputAnswer{Offset: in.next, Credit: int64(room), Closed: in.closed}, nil)
	}
}

package messaging

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"shoal/sandbox"
)

// Dial opens a connection to a port on the sandbox's loopback. ctx bounds the
// dialling only. A worker's death breaks the connection.
func (c *Client) Dial(ctx context.Context, t Target, port int) (net.Conn, error) {
	r := &ForwardRequest{Target: t, Port: port}
	if err := r.Validate(); err != nil {
		return nil, sandbox.AsError(err).From(sandbox.FromClient)
	}
	s := c.newStream(AreaPort, t.Sandbox, "", startDeadline(ctx), func(s *stream, _ WorkerID) (Op, request) {
		if s.begun() || s.copies > 0 {
			return OpForward, nil
		}
		r.Window = s.window
		return OpForward, r
	})
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	worker, _ := s.state()
	p := &portConn{
		s: s, addr: portAddr{t.Sandbox, port},
		w: inputWriter{c: c, area: AreaPort, name: t.Sandbox, id: s.token, at: make(chan WorkerID, 1), worker: worker},
	}
	p.readBy.init()
	p.writeBy.init()
	return p, nil
}

// portConn is a forwarded port as a net.Conn.
type portConn struct {
	s    *stream
	addr portAddr

	readMu sync.Mutex // serialises readers
	rest   []byte
	readBy deadline

	writeMu sync.Mutex // serialises writers
	w       inputWriter
	closed  bool // for writing
	writeBy deadline
}

// Read returns the next bytes from the port.
func (p *portConn) Read(b []byte) (int, error) {
	p.readMu.Lock()
	defer p.readMu.Unlock()
	ctx, cancel := p.readBy.context()
	defer cancel()
	for len(p.rest) == 0 {
		p.s.consumeAll()
		g, err := p.s.next(ctx)
		if err != nil {
			return 0, connError(ctx, err)
		}
		p.rest = g.Data
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// Write sends b and returns when the worker has taken it.
func (p *portConn) Write(b []byte) (n int, err error) {
	p.writeMu.Lock()
	defer p.writeMu.Unlock()
	ctx, cancel := p.writeBy.context()
	defer cancel()
	if p.closed {
		return 0, net.ErrClosed
	}
	for n < len(b) && err == nil {
		part := b[n:min(len(b), n+MaxUpload)]
		err = p.w.send(ctx, DataRequest{Offset: p.w.offset, Data: part})
		if err == nil {
			n += len(part)
		}
	}
	if errors.Is(err, errInputClosed) {
		err = io.ErrClosedPipe
	}
	return n, connError(ctx, err)
}

// CloseWrite ends the sending side, as a TCP connection's does.
func (p *portConn) CloseWrite() error {
	p.writeMu.Lock()
	defer p.writeMu.Unlock()
	ctx, cancel := p.writeBy.context()
	defer cancel()
	if p.closed {
		return nil
	}
	p.closed = true
	err := p.w.send(ctx, DataRequest{Offset: p.w.offset, Final: true})
	if errors.Is(err, errInputClosed) {
		err = nil
	}
	return connError(ctx, err)
}

// Close ends the connection both ways.
func (p *portConn) Close() error {
	p.readBy.close()
	p.writeBy.close()
	p.s.close()
	return nil
}

func connError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && !errors.Is(err, io.EOF) && cause != nil {
		return cause
	}
	return err
}

func (p *portConn) LocalAddr() net.Addr  { return portAddr{name: p.addr.name} }
func (p *portConn) RemoteAddr() net.Addr { return p.addr }

// SetDeadline sets both deadlines.
func (p *portConn) SetDeadline(t time.Time) error {
	return errors.Join(p.SetReadDeadline(t), p.SetWriteDeadline(t))
}

// SetReadDeadline also ends a Read that waits.
func (p *portConn) SetReadDeadline(t time.Time) error { return p.readBy.set(t) }

// SetWriteDeadline also ends a Write that waits.
func (p *portConn) SetWriteDeadline(t time.Time) error { return p.writeBy.set(t) }

// portAddr is a port of a sandbox.
type portAddr struct {
	name sandbox.Name
	port int
}

func (a portAddr) Network() string { return "shoal" }
func (a portAddr) String() string  { return net.JoinHostPort(string(a.name), strconv.Itoa(a.port)) }

// deadline ends the waits of one direction of a connection.
type deadline struct {
	mu     sync.Mutex // guards the rest
	timer  *time.Timer
	ctx    context.Context //nolint:containedctx // replaced whenever the deadline is
	cancel context.CancelCauseFunc
	closed bool
}

func (d *deadline) init() { d.ctx, d.cancel = context.WithCancelCause(context.Background()) }

// context returns one that ends at the deadline that holds now, or at one that
// is set meanwhile.
func (d *deadline) context() (context.Context, context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return context.WithCancel(d.ctx)
}

// set moves the deadline. One that has passed already ends only the waits that
// begin before the next set.
func (d *deadline) set(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.ctx.Err() != nil {
		d.init()
	}
	if t.IsZero() {
		return nil
	}
	cancel := d.cancel
	d.timer = time.AfterFunc(time.Until(t), func() { cancel(os.ErrDeadlineExceeded) })
	return nil
}

func (d *deadline) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.timer != nil {
		d.timer.Stop()
	}
	d.cancel(net.ErrClosed)
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"shoal/sandbox"
)

// ProxyAddress is where programs in the sandbox find the proxy. It is bound at
// boot in every mode, so that no command can sit there.
const ProxyAddress = "127.0.0.1:3128"

const (
	// workerFor is how long a connection waits for a worker.
	workerFor = 10 * time.Second
	dialFor   = 5 * time.Second
	lingerFor = time.Second
)

// ServeEgress passes each connection of l to the session that is served, as a
// stream of its own, until ctx ends. While egress is off it answers 403, and 503
// when no worker comes in 10 s.
func (s *Server) ServeEgress(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept an egress connection: %w", err)
		}
		select {
		case s.tunnels <- struct{}{}:
			s.wg.Go(func() {
				defer func() { <-s.tunnels }()
				s.carry(conn)
			})
		default: // without a goroutine: there are too many
			_ = conn.Close()
		}
	}
}

var (
	errEgressOff = errors.New("egress is off for this sandbox")
	errNoWorker  = errors.New("no worker serves this sandbox now")
)

func (s *Server) carry(conn net.Conn) {
	defer conn.Close()
	l, err := s.awaitWorker()
	if err != nil {
		refuse(conn, err)
		return
	}
	stream, err := l.mux.OpenStream()
	if err != nil {
		refuse(conn, errNoWorker)
		return
	}
	t := newTunnel(stream, nil)
	defer t.Close()
	first, err := requestFrame(opEgress, nothing{})
	if err != nil {
		return
	}
	if _, err := stream.Write(first); err != nil {
		refuse(conn, errNoWorker)
		return
	}
	splice(conn, t)
}

// awaitWorker returns the session through which egress goes.
func (s *Server) awaitWorker() (*link, error) {
	timeout := time.NewTimer(workerFor)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		l, off, arrival := s.current, s.claimed && !s.tunnel, s.arrival
		s.mu.Unlock()
		switch {
		case off:
			return nil, errEgressOff
		case l != nil:
			return l, nil
		}
		select {
		case <-arrival:
		case <-timeout.C:
			return nil, errNoWorker
		case <-s.ctx.Done():
			return nil, errNoWorker
		}
	}
}

// refuse answers as a proxy does and lets the client read it.
func refuse(conn net.Conn, why error) {
	status := "503 Service Unavailable"
	if errors.Is(why, errEgressOff) {
		status = "403 Forbidden"
	}
	_ = conn.SetDeadline(time.Now().Add(lingerFor))
	body := why.Error() + "\n"
	_, err := fmt.Fprintf(conn, "HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, len(body), body)
	if err != nil {
		return
	}
	// Closing with the request unread would reset the connection under the answer.
	closeWrite(conn)
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, maxBytes))
}

// splice copies both ways until both have ended or one is broken, and then until
// the worker has closed, which it does when it has read everything.
func splice(conn net.Conn, t *tunnel) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := io.Copy(t, struct{ io.Reader }{conn}); err != nil {
			_ = t.Close()
			return
		}
		_ = t.CloseWrite()
	}()
	if _, err := io.Copy(struct{ io.Writer }{conn}, t); err == nil {
		closeWrite(conn)
		t.awaitClose()
	} else if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset: what was cut must not look like a whole answer
	}
	_ = conn.Close()
	<-done
}

func closeWrite(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
		return
	}
	_ = conn.Close()
}

func handleTunnel(c *channel, body []byte) error {
	q, err := read[tunnelRequest](body)
	if err != nil {
		return err
	}
	s := c.link.server
	err = s.underFence(c.link, func() {
		s.tunnel = q.On
		s.announceLocked()
	})
	if err != nil {
		return err
	}
	return c.answer(nil)
}

func handleForward(c *channel, body []byte) error {
	q, err := read[forwardRequest](body)
	if err != nil {
		return err
	}
	if q.Port == 0 {
		return sandbox.InvalidField("port", "0; allowed are 1 to 65535")
	}
	dialer := net.Dialer{Timeout: dialFor}
	conn, err := dialer.DialContext(c.link.ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(q.Port))))
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "nothing answers on port %d of the sandbox's 127.0.0.1", q.Port).Because("refused").Wrap(err)
	}
	defer conn.Close()
	if err := c.answer(nil); err != nil {
		return err
	}
	t := newTunnel(c.stream, nil)
	t.frames, t.writer = c.reader, c.writer
	defer t.Close()
	stop := context.AfterFunc(c.link.ctx, func() { _ = conn.Close() })
	defer stop()
	splice(conn, t)
	return nil
}

package fleet

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"shoal/agent"
	"shoal/messaging"
	"shoal/sandbox"
)

// forwardPort carries one connection between the client and a port inside the
// sandbox.
func (w *Worker) forwardPort(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.ForwardRequest](r)
	starting, cancel := context.WithDeadline(ctx, r.Deadline)
	defer cancel()
	b, err := w.owned(starting, r)
	if err != nil {
		return nil, err
	}
	b.holds.Add(1)
	defer b.holds.Add(-1)
	var conn net.Conn
	err = b.free(starting, func(ctx context.Context, s *agent.Session) (err error) {
		conn, err = s.Forward(ctx, uint16(req.Port))
		return err
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	b.moving.Add(1)
	defer b.moving.Add(-1)
	b.fill(r)
	if err := r.Output().Started(0, messaging.Done{}); err != nil {
		return nil, err
	}
	return messaging.Done{}, b.splice(ctx, r, conn)
}

// splice copies both ways until the sandbox's side ends or the client leaves.
func (b *box) splice(ctx context.Context, r *messaging.Request, conn net.Conn) error {
	life := b.life()
	stopLife := context.AfterFunc(life, func() { _ = conn.Close() })
	defer stopLife()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer r.Input().Close()
	wg.Go(func() {
		if _, err := io.Copy(conn, r.Input()); err != nil {
			return
		}
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // the other direction tells what is wrong
		}
	})
	buf := make([]byte, messaging.MaxChunk)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := r.Output().Data(ctx, sandbox.Stdout, buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && life.Err() != nil:
			return sandbox.Errorf(sandbox.Unavailable, "the worker let go of the sandbox; connect again").From(sandbox.FromWorker).Wrap(context.Cause(life))
		case err != nil:
			return err
		}
	}
}

package e2b

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"shoal/sandbox"
)

// attachTries is how often an attach wakes a sandbox that is paused again.
const attachTries = 3

// Attach implements [sandbox.Provider]. While the stream is open the sandbox's
// end is pushed back, so that it does not pause under a command; a closed or
// broken stream is never continued.
func (p *Provider) Attach(ctx context.Context, h sandbox.Handle, wake bool) (io.ReadWriteCloser, error) {
	op := "attach to sandbox " + string(h.Name)
	id, err := p.idOf(ctx, h)
	if err != nil {
		return nil, err
	}
	for range attachTries {
		var r reach
		if wake {
			r, err = p.wake(ctx, id, h.Name)
		} else {
			r, err = p.reachRunning(ctx, id, h.Name)
		}
		if err != nil {
			return nil, err
		}
		var s *stream
		if s, err = p.open(ctx, p.envdOf(id, r)); err == nil {
			return p.hold(s, id, !wake), nil
		}
		if e := asEnvd(err); !wake || e == nil || !e.notRunning() {
			break
		}
	}
	return nil, translate(op, err)
}

// reachRunning is for background attaching, which never wakes.
func (p *Provider) reachRunning(ctx context.Context, id string, name sandbox.Name) (reach, error) {
	op := "attach to sandbox " + string(name)
	d, err := p.api.get(ctx, id)
	if err != nil {
		return reach{}, p.settle(ctx, op, id, err)
	}
	if d.State != stateRunning {
		return reach{}, suspended(op)
	}
	return p.remember(id, d.AccessToken, d.Domain, name)
}

// open starts the attach program. Its stream outlives ctx, which bounds the
// start alone.
func (p *Provider) open(ctx context.Context, e *envd) (*stream, error) {
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	body, pid, err := e.startProcess(life, p.attach, true)
	if !stop() && err == nil {
		_ = body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel(err)
		return nil, err
	}
	return newStream(e, &cancelBody{ReadCloser: body, cancel: cancel}, pid), nil
}

// held is an open stream whose sandbox is kept from its end.
type held struct {
	*stream

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Close ends the stream and what keeps the sandbox running.
func (a *held) Close() error {
	a.stop()
	err := a.stream.Close()
	a.wg.Wait()
	return err
}

// hold pushes the sandbox's end back now and then; now means at once, too.
func (p *Provider) hold(s *stream, id string, now bool) *held {
	ctx, stop := context.WithCancel(context.Background())
	a := &held{stream: s, stop: stop}
	every := p.pushBack() / 2
	a.wg.Go(func() {
		if !now && !sleep(ctx, every) {
			return
		}
		for {
			p.refresh(ctx, id)
			if !sleep(ctx, every) {
				return
			}
		}
	})
	return a
}

func (p *Provider) refresh(ctx context.Context, id string) {
	err := p.api.refresh(ctx, id, p.pushBack())
	if err == nil || ctx.Err() != nil {
		return
	}
	level := slog.LevelWarn
	if e := asAPI(err); e != nil && (e.Status == http.StatusNotFound || e.Status == http.StatusConflict) {
		level = slog.LevelDebug // paused or gone meanwhile; the stream tells
	}
	p.log.LogAttrs(ctx, level, "e2b sandbox's end was not pushed back",
		slog.String("ref", id), slog.String("error", err.Error()), slog.Duration("by", p.pushBack().Truncate(time.Second)))
}

package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// errInterrupted is the cause of a context that Ctrl-C ended.
var errInterrupted = errors.New("interrupted")

// interrupts hands Ctrl-C to whoever is interested: by default it ends the
// context of the command line; while a command runs it kills the command.
type interrupts struct {
	mu      sync.Mutex // guards the rest
	cancel  context.CancelCauseFunc
	handler func()
}

// interruptible returns a context that the first interrupt ends while nobody
// handles it; a second one within a moment ends the process by itself.
func (a *app) interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	a.cancel = cancel
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-signals:
				a.interrupt()
			case <-done:
				return
			}
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		wg.Wait()
		cancel(nil)
	}
}

func (a *app) interrupt() {
	a.mu.Lock()
	handler := a.handler
	a.mu.Unlock()
	if handler != nil {
		handler()
		return
	}
	a.cancel(errInterrupted)
}

// onInterrupt makes handler take the interrupts until the returned function is
// called. It must not block.
func (a *app) onInterrupt(handler func()) (restore func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.handler
	a.handler = handler
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.handler = before
	}
}

// after is a context for what has to be done although the command line was
// interrupted.
func (a *app) after(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(a.ctx), d)
}

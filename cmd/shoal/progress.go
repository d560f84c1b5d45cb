package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"shoal/messaging"
	"shoal/sandbox"
)

// contextFor bounds one step of a command line.
func contextFor(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

// showProgress prints what a slow create is doing until stop is called.
func (a *app) showProgress(ctx context.Context, c *messaging.Client, name sandbox.Name) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		last := ""
		_ = c.Events(ctx, name, func(e messaging.Event) error { // progress is a courtesy
			step := e.Data["step"]
			if e.Kind == messaging.EventProgress && step != last {
				last = step
				fmt.Fprintf(a.stderr, "shoal: %s\n", printable(step))
			}
			return nil
		})
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// meter prints how far a copy is, on a terminal and for what takes a while.
type meter struct {
	out   io.Writer
	what  string
	total int64 // -1 = not known
	done  int64
	begun time.Time
	last  time.Time
	shown bool
}

const (
	meterAfter = time.Second
	meterEvery = 200 * time.Millisecond
)

// newMeter returns a meter that prints nothing unless stderr is a terminal.
func (a *app) newMeter(what string, total int64) *meter {
	m := &meter{what: what, total: total, begun: time.Now()}
	if f, ok := a.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		m.out = a.stderr
	}
	return m
}

// Write counts b; it is for io.TeeReader and io.MultiWriter.
func (m *meter) Write(b []byte) (int, error) {
	m.done += int64(len(b))
	now := time.Now()
	if m.out != nil && now.Sub(m.begun) > meterAfter && now.Sub(m.last) > meterEvery {
		m.last, m.shown = now, true
		m.print()
	}
	return len(b), nil
}

func (m *meter) print() {
	rate := size(int64(float64(m.done) / time.Since(m.begun).Seconds()))
	if m.total > 0 {
		fmt.Fprintf(m.out, "\r%s  %s of %s (%d %%)  %s/s\x1b[K", m.what, size(m.done), size(m.total), m.done*100/m.total, rate)
		return
	}
	fmt.Fprintf(m.out, "\r%s  %s  %s/s\x1b[K", m.what, size(m.done), rate)
}

// finish ends the line.
func (m *meter) finish() {
	if m.shown {
		m.print()
		fmt.Fprintln(m.out)
	}
}

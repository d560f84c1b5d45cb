package messaging

import (
	"context"
	"sync/atomic"
	"time"
)

// The times of a standstill.
const (
	pulseEvery = 500 * time.Millisecond
	// stoodStill is a gap between two pulses after which whoever still waits for an
	// answer sends a copy of the request.
	stoodStill = copyAfter
	// drainFor is how long messages that waited may take from the connection to
	// their handlers.
	drainFor = time.Second
)

// pulse notices that this process did not run for a while: it was stopped or frozen.
// The requests that it finds then may be older than their callers' patience, and
// nothing in them says so, since clocks differ: a create that is carried out for
// nobody would leave a sandbox behind. They are dropped, and who still waits sends a
// copy.
type pulse struct {
	began time.Time
	last  atomic.Int64 // the last pulse, in ns since began
	late  atomic.Bool  // what waited has not been read to its end
}

func newPulse() *pulse { return &pulse{began: time.Now()} }

func (p *pulse) beat() { p.last.Store(int64(time.Since(p.began))) }

// missed reports whether what is read now may have waited for a standstill to end.
func (p *pulse) missed() bool { return p.late.Load() || p.gap() > stoodStill }

func (p *pulse) gap() time.Duration { return time.Since(p.began) - time.Duration(p.last.Load()) }

// feel keeps the server's pulse. After a standstill it waits until all that came
// meanwhile has been read: the answer to a flush comes after it.
func (s *Server) feel() {
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		if gap := s.pulse.gap(); gap > stoodStill {
			s.pulse.late.Store(true)
			s.cfg.Log.Warn("this worker stood still; the requests that waited are left to their callers' copies", "for", gap)
			s.readWaiting()
		}
		s.pulse.beat()
		s.pulse.late.Store(false)
	}
}

// readWaiting waits until what came before now has been read. A connection that
// fails meanwhile brings nothing old either.
func (s *Server) readWaiting() {
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	_ = s.cfg.Conn.FlushWithContext(ctx)
	_ = pause(ctx, drainFor)
}

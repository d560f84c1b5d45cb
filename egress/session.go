package egress

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Causes of a connection's end, for errors.Is on the cause of its context.
var (
	errUnlisted      = errors.New("the host is no longer on the list")
	errSessionClosed = errors.New("the session is closed")
)

// Session is the egress of one sandbox: its live policy, its open connections,
// its counters. Make it with [NewSession]; all methods may be called from any
// goroutine.
type Session struct {
	sandbox string

	allowed, denied, failed, closed atomic.Uint64
	up, down                        atomic.Uint64 // bytes from and to the sandbox
	lastTraffic                     atomic.Int64  // unix nanoseconds
	reports                         bucket

	mu      sync.Mutex // guards what follows
	policy  *Policy
	conns   map[*clientConn]struct{}
	flows   map[*flow]struct{}
	stopped bool
}

// flow is one admitted request, from its judgement to its end.
type flow struct {
	target target
	entry  string // of the list that allowed it
	cancel context.CancelCauseFunc
}

// NewSession returns the session of the sandbox with the given id, which names
// it in decisions. A nil policy allows nothing.
func NewSession(sandbox string, policy *Policy) *Session {
	return &Session{
		sandbox: sandbox,
		policy:  policy,
		conns:   make(map[*clientConn]struct{}),
		flows:   make(map[*flow]struct{}),
	}
}

// SetPolicy replaces the list. The next request is judged by p; what is open, or
// being opened, to a host and port that p does not allow is ended at once. A nil
// p allows nothing and so ends everything. It does not wait for the ends.
func (s *Session) SetPolicy(p *Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy = p
	for f := range s.flows {
		if _, refused := p.allow(f.target); refused != "" {
			f.cancel(errUnlisted)
		}
	}
}

// Policy returns the list that holds now.
func (s *Session) Policy() *Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy
}

// Close ends all connections of the session and refuses new ones for good. It
// does not wait; the ServeConn calls return when theirs has ended. It may be
// called more than once.
func (s *Session) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for f := range s.flows {
		f.cancel(errSessionClosed)
	}
	for c := range s.conns {
		c.stop(errSessionClosed)
	}
}

// Stats is what a session has seen. Counters only grow; connections count once,
// requests on them one by one.
type Stats struct {
	Allowed     uint64    // requests connected
	Denied      uint64    // requests refused by a rule
	Failed      uint64    // requests to listed hosts that could not be connected
	Closed      uint64    // requests ended by a change of the list
	BytesUp     uint64    // read from the sandbox
	BytesDown   uint64    // written to the sandbox
	Conns       int       // connections of the sandbox open now
	Tunnels     int       // tunnels open now
	LastTraffic time.Time // of the last byte in either direction; zero before the first
}

// Stats returns the counters.
func (s *Session) Stats() Stats {
	st := Stats{
		Allowed:   s.allowed.Load(),
		Denied:    s.denied.Load(),
		Failed:    s.failed.Load(),
		Closed:    s.closed.Load(),
		BytesUp:   s.up.Load(),
		BytesDown: s.down.Load(),
	}
	if t := s.lastTraffic.Load(); t != 0 {
		st.LastTraffic = time.Unix(0, t)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Conns = len(s.conns)
	st.Tunnels = s.tunnelsLocked()
	return st
}

// Open returns how many requests and tunnels are open or being opened now; a
// connection that waits for its next request is none.
func (s *Session) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.flows)
}

// Active reports whether a byte went either way within the given time. A tunnel
// that is open and silent does not make a session active.
func (s *Session) Active(within time.Duration) bool {
	t := s.lastTraffic.Load()
	return t != 0 && time.Since(time.Unix(0, t)) <= within
}

func (s *Session) tunnelsLocked() int {
	n := 0
	for f := range s.flows {
		if f.target.tunnel {
			n++
		}
	}
	return n
}

// addConn registers c unless the session is closed or has limit connections
// already.
func (s *Session) addConn(c *clientConn, limit int) *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return denied(RuleOff)
	case len(s.conns) >= limit:
		return tooMany()
	}
	s.conns[c] = struct{}{}
	return nil
}

func (s *Session) removeConn(c *clientConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// admit judges t and, when it is allowed, registers the flow in the same critical
// section, so that no change of the list can fall between the two.
func (s *Session) admit(t target, cancel context.CancelCauseFunc) (*flow, Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, RuleOff
	}
	text, refused := s.policy.allow(t)
	if refused != "" {
		return nil, refused
	}
	f := &flow{target: t, entry: text, cancel: cancel}
	s.flows[f] = struct{}{}
	return f, ""
}

func (s *Session) release(f *flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flows, f)
}

func (s *Session) count(v Verdict) {
	switch v {
	case Allowed:
		s.allowed.Add(1)
	case Denied:
		s.denied.Add(1)
	case Failed:
		s.failed.Add(1)
	case Closed:
		s.closed.Add(1)
	}
}

// traffic notes n bytes moved.
func (s *Session) traffic(n int, counter *atomic.Uint64) {
	counter.Add(uint64(n))
	s.lastTraffic.Store(time.Now().UnixNano())
}

// bucket bounds how many decisions are reported: a token bucket that counts what
// it held back.
type bucket struct {
	mu         sync.Mutex // guards what follows
	at         time.Time
	tokens     float64
	suppressed uint64
}

// take returns whether to report one more now, and how many were held back since
// the last report. perSecond is the rate, twice that the burst.
func (b *bucket) take(now time.Time, perSecond float64) (ok bool, suppressed uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	burst := 2 * perSecond
	if b.at.IsZero() {
		b.tokens = burst
	} else {
		b.tokens = min(burst, b.tokens+now.Sub(b.at).Seconds()*perSecond)
	}
	b.at = now
	if b.tokens < 1 {
		b.suppressed++
		return false, 0
	}
	b.tokens--
	suppressed, b.suppressed = b.suppressed, 0
	return true, suppressed
}

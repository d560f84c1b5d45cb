package e2btest

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"shoal/e2b/e2btest/envd"
)

// The states of a sandbox. Pausing reads as paused, killing as absent.
const (
	running = "running"
	pausing = "pausing"
	paused  = "paused"
	killing = "killing"
)

// box is one sandbox. Transitions hold turn, so that they happen one after
// another; everything else is guarded by mu.
type box struct {
	id  string
	cfg createRequest

	turn    sync.Mutex
	machine machine
	proxied *http.Transport
	timer   *time.Timer

	mu      sync.Mutex
	state   string
	token   string
	memory  bool // a paused one keeps its processes
	slow    time.Duration
	meddle  int // pauses that somebody else undoes
	started time.Time
	end     time.Time
	boots   int
	network egress
	life    context.Context // cancelled to break what runs through the proxy
	cutLife context.CancelFunc
}

// egress is the firewall's setting.
type egress struct {
	internet *bool
	allow    []string
	deny     []string
}

func (s *Server) newBox(c createRequest) *box {
	b := &box{id: newID(), cfg: c, state: running, started: time.Now(), boots: 1, network: c.egress()}
	if c.secured {
		b.token = newToken()
	}
	b.end = b.started.Add(time.Duration(c.timeout) * time.Second)
	b.life, b.cutLife = context.WithCancel(context.Background())
	b.proxied = &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return b.machine.dial(ctx) },
		DisableCompression: true,
	}
	b.timer = time.AfterFunc(time.Until(b.end), func() { s.timeUp(b) })
	return b
}

func (s *Server) add(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxes[b.id] = b
}

// make starts the machine of a new sandbox and adds it.
func (s *Server) make(ctx context.Context, c createRequest) (*box, error) {
	b := s.newBox(c)
	m, err := s.cfg.Backend.machine(ctx, b.id, envd.Config{
		Token: b.token, DefaultUser: s.cfg.DefaultUser, Workdir: s.cfg.Workdir, Env: s.cfg.Env,
	})
	if err != nil {
		b.timer.Stop()
		return nil, err
	}
	b.machine = m
	s.add(b)
	return b, nil
}

func (b *box) snapshot() Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Sandbox{
		ID: b.id, State: shown(b.state), Metadata: maps.Clone(b.cfg.metadata), End: b.end,
		AutoPause: b.cfg.autoPause, Secure: b.cfg.secured, PublicTraffic: b.cfg.public,
		MemoryKept: b.memory, Internet: b.network.internet == nil || *b.network.internet,
		AllowOut: b.network.allow, DenyOut: b.network.deny, Boots: b.boots,
	}
}

// shown is the state as listings write it.
func shown(state string) string {
	if state == pausing {
		return paused
	}
	return state
}

func (b *box) now() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *box) set(state string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = state
}

// cut breaks every connection through the proxy.
func (b *box) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cutLife()
	b.life, b.cutLife = context.WithCancel(context.Background())
	b.proxied.CloseIdleConnections()
}

func (b *box) lifetime() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.life
}

// pause suspends a running sandbox. The caller holds turn.
func (b *box) pause(ctx context.Context, memory bool) error {
	b.set(pausing)
	b.cut()
	b.timer.Stop()
	b.mu.Lock()
	slow := b.slow
	b.mu.Unlock()
	time.Sleep(slow)
	err := b.machine.freeze(ctx)
	if err == nil && !memory {
		err = errors.Join(b.machine.thaw(ctx), b.machine.off(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.memory, b.end, b.state = memory, time.Now(), paused
	return err
}

// meddled resumes a sandbox that somebody else wants. The caller holds turn.
func (b *box) meddled(ctx context.Context) error {
	b.mu.Lock()
	wanted := b.meddle > 0
	b.meddle--
	b.mu.Unlock()
	if !wanted {
		return nil
	}
	return b.resume(ctx, time.Hour, false)
}

// resume brings a paused sandbox back, with its memory unless cold. The caller
// holds turn.
func (b *box) resume(ctx context.Context, life time.Duration, cold bool) error {
	var err error
	switch {
	case b.memory && !cold:
		err = b.machine.thaw(ctx)
	case b.memory:
		err = errors.Join(b.machine.thaw(ctx), b.machine.off(ctx), b.reboot(ctx))
	default:
		err = b.reboot(ctx)
	}
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state, b.started, b.memory = running, time.Now(), false
	b.end = b.started.Add(life)
	b.timer.Reset(life)
	return nil
}

func (b *box) reboot(ctx context.Context) error {
	b.mu.Lock()
	b.boots++
	b.mu.Unlock()
	return b.machine.boot(ctx)
}

// extend pushes the end back to at least life from now, within the plan.
func (b *box) extend(life time.Duration, hours int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	end := time.Now().Add(life)
	if most := b.started.Add(time.Duration(hours) * time.Hour); end.After(most) {
		end = most
	}
	if end.After(b.end) {
		b.end = end
		b.timer.Reset(time.Until(end))
	}
}

// timeUp is the timer's; a deadline that moved meanwhile is none.
func (s *Server) timeUp(b *box) {
	b.mu.Lock()
	early := time.Until(b.end) > 0
	b.mu.Unlock()
	if !early {
		s.expire(b)
	}
}

func (s *Server) expire(b *box) {
	b.turn.Lock()
	defer b.turn.Unlock()
	if b.now() != running {
		return
	}
	if b.cfg.autoPause {
		if err := b.pause(context.Background(), b.cfg.autoPauseMemory); err != nil {
			s.t.Errorf("pause at the end of %s: %v", b.id, err)
		}
		return
	}
	if err := s.kill(context.Background(), b); err != nil {
		s.t.Errorf("kill at the end of %s: %v", b.id, err)
	}
}

// kill removes a sandbox. The caller holds turn.
func (s *Server) kill(ctx context.Context, b *box) error {
	b.set(killing)
	b.cut()
	b.timer.Stop()
	err := b.machine.destroy(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.boxes, b.id)
	return err
}

// nowhere is the machine of a clone.
type nowhere struct{}

func (nowhere) dial(context.Context) (net.Conn, error) { return nil, errors.New("no machine") }
func (nowhere) freeze(context.Context) error           { return nil }
func (nowhere) thaw(context.Context) error             { return nil }
func (nowhere) off(context.Context) error              { return nil }
func (nowhere) boot(context.Context) error             { return nil }
func (nowhere) destroy(context.Context) error          { return nil }

package agent

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"sync"

	"shoal/sandbox"
)

func handleHello(c *channel, body []byte) error {
	q, err := read[helloRequest](body)
	if err != nil {
		return err
	}
	version := min(q.Newest, Protocol)
	if version < oldestProtocol || version < q.Oldest {
		return sandbox.Errorf(sandbox.Unsupported, "the agent speaks the protocols %d to %d, the worker %d to %d; use an image of this release",
			oldestProtocol, Protocol, q.Oldest, q.Newest)
	}
	s := c.link.server
	s.mu.Lock()
	h := Hello{Protocol: version, Boot: s.boot, Epoch: s.epoch, Version: s.cfg.Version}
	s.mu.Unlock()
	return c.answer(h)
}

func handleClaim(c *channel, body []byte) error {
	q, err := read[Claim](body)
	if err != nil {
		return err
	}
	a, err := c.link.server.claim(c.link, q)
	if err != nil {
		return err
	}
	return c.answer(a)
}

// claim makes l the session that is served. The former one is closed before it
// returns; one that has not claimed may not act anyway.
func (s *Server) claim(l *link, q Claim) (Claimed, error) {
	if q.Processes < 0 {
		return Claimed{}, sandbox.InvalidField("processes", "%d is negative", q.Processes)
	}
	for tag, token := range q.Locks {
		if err := validateLock(tag, token); err != nil {
			return Claimed{}, err
		}
	}
	older, running, err := s.take(l, q)
	if err != nil {
		return Claimed{}, err
	}
	if older != nil {
		older.close()
	}
	s.clock.release()
	s.host.Limit(q.Processes)
	for _, k := range running {
		k.attachment()
	}
	a := Claimed{Running: len(running)}
	a.Spec, err = s.store.swap(q.Spec)
	return a, err
}

// take is the claim's critical section: from its end on nothing that an older
// session asked for begins.
func (s *Server) take(l *link, q Claim) (older *link, running []*command, err error) {
	s.commits.Lock()
	defer s.commits.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.judgeLocked(q); err != nil {
		return nil, nil, err
	}
	if s.stopping {
		return nil, nil, errSuspending
	}
	if fences && s.current != l {
		older = s.current
	}
	s.current, s.epoch, s.claimed = l, q.Epoch, true
	s.tunnel = q.Tunnel
	s.locks = maps.Clone(q.Locks)
	if s.locks == nil {
		s.locks = map[sandbox.Tag]string{}
	}
	if s.held != nil {
		s.held.Stop()
		s.held = nil
	}
	s.attached.Store(true)
	s.announceLocked()
	return older, s.commandsLocked(), nil
}

func (s *Server) judgeLocked(q Claim) error {
	switch {
	case q.Boot != s.boot:
		return &sandbox.Error{Code: sandbox.Restarted, Boot: s.boot, Message: "the sandbox has restarted; say hello again"}
	case fences && q.Epoch <= s.epoch:
		return sandbox.Errorf(sandbox.Fenced, "epoch %d is not above %d: another worker has the sandbox", q.Epoch, s.epoch)
	case q.Epoch > MaxEpoch, s.claimed && q.Epoch-s.epoch > MaxEpochJump:
		s.log.Error("epoch jumps beyond reason", "epoch", q.Epoch, "highest", s.epoch)
		return sandbox.Errorf(sandbox.Invalid, "epoch %d jumps beyond reason above %d", q.Epoch, s.epoch)
	}
	return nil
}

// announceLocked wakes those who wait for a worker.
func (s *Server) announceLocked() {
	close(s.arrival)
	s.arrival = make(chan struct{})
}

// fence refuses a session that is not, or no longer, the claimed one.
func (s *Server) fence(l *link) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fenceLocked(l)
}

// commit returns the gate through which the steps of l's file operations go.
func (s *Server) commit(l *link) Commit {
	return func(step func() error) error {
		s.commits.RLock()
		defer s.commits.RUnlock()
		if err := s.fence(l); err != nil {
			return err
		}
		return step()
	}
}

func (s *Server) fenceLocked(l *link) error {
	if fences && s.current != l {
		return sandbox.Errorf(sandbox.Fenced, "this session has not claimed the sandbox or another worker has; attach again")
	}
	return nil
}

// specStore keeps the sandbox's spec where only the agent reads it: its
// environment may hold secrets.
type specStore struct {
	path string

	mu   sync.Mutex
	spec *sandbox.Spec // guarded by mu
}

// maxSpec bounds the file.
const maxSpec = 1 << 20

func (t *specStore) load() error {
	if t.path == "" {
		return nil
	}
	info, err := os.Lstat(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSpec {
		return errors.New("it is not a file of a spec")
	}
	b, err := os.ReadFile(t.path)
	if err != nil {
		return err
	}
	var spec sandbox.Spec
	if err := decode(b, &spec); err != nil {
		return err
	}
	t.spec = &spec
	return nil
}

// swap keeps a new spec, if there is one, and returns the one in force.
func (t *specStore) swap(spec *sandbox.Spec) (*sandbox.Spec, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if spec == nil {
		return t.spec, nil
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := t.write(spec); err != nil {
		return nil, sandbox.Errorf(sandbox.NoSpace, "keep the sandbox's spec inside it").From(sandbox.FromSandbox).Wrap(err)
	}
	t.spec = spec
	return spec, nil
}

// change replaces the part of the kept spec that may change. A sandbox that was
// never given a spec keeps none.
func (t *specStore) change(k Kept) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.spec == nil {
		return nil
	}
	spec := *t.spec
	spec.Egress, spec.Pin, spec.TTL = k.Egress, k.Pin, k.TTL
	if err := spec.Validate(); err != nil {
		return err
	}
	if err := t.write(&spec); err != nil {
		return sandbox.Errorf(sandbox.NoSpace, "keep the sandbox's spec inside it").From(sandbox.FromSandbox).Wrap(err)
	}
	t.spec = &spec
	return nil
}

func handleKeep(c *channel, body []byte) error {
	q, err := read[Kept](body)
	if err != nil {
		return err
	}
	s := c.link.server
	if err := s.commit(c.link)(func() error { return s.store.change(q) }); err != nil {
		return err
	}
	return c.answer(nil)
}

func (t *specStore) write(spec *sandbox.Spec) error {
	if t.path == "" {
		return nil
	}
	var b appender
	if err := encode(&b, spec); err != nil {
		return err
	}
	tmp := t.path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, t.path)
}

// env is the environment that the spec gives every command.
func (t *specStore) env() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.spec == nil {
		return nil
	}
	return t.spec.Env
}

// open reports whether the sandbox has a network of its own.
func (t *specStore) open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.spec != nil && t.spec.Egress.Mode == sandbox.EgressOpen
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"shoal/sandbox"
)

// ServerConfig is what an agent is made of.
type ServerConfig struct {
	// Host runs commands and touches files.
	Host Host
	// SpecFile is where the sandbox's spec is kept over a restart, readable by
	// the agent alone; "" keeps it in memory only.
	SpecFile string
	// Memory is the sandbox's limit in bytes, of which an eighth, at most 32
	// MiB, is for output that nobody has taken yet; 0 = 32 MiB.
	Memory int64
	// Home is HOME and the default working directory. Defaults to /workspace.
	Home string
	// User is USER and LOGNAME. Defaults to sandbox.
	User string
	// Version of the program, for logs.
	Version string
	// Log defaults to none.
	Log *slog.Logger
}

// Server is the agent: it runs the commands of one sandbox for whoever has
// claimed it last. Its methods may be called from several goroutines.
type Server struct {
	host  Host
	cfg   ServerConfig
	log   *slog.Logger
	boot  string
	pool  *pool
	clock *clock
	store specStore

	wg       sync.WaitGroup  // commands and all that serves them
	ctx      context.Context //nolint:containedctx // ends with the server; commands outlive the sessions that start them
	cancel   context.CancelCauseFunc
	attached atomic.Bool   // a claimed session is there
	tunnels  chan struct{} // bounds egress connections

	// commits is held for reading around each step that makes a file operation
	// take effect, and for writing by a claim. It is taken before mu.
	commits sync.RWMutex

	mu       sync.Mutex // guards what follows; taken before a command's lock
	links    map[*link]struct{}
	current  *link         // the claimed session, nil = none
	arrival  chan struct{} // closed and replaced when current changes
	epoch    uint64
	claimed  bool // ever, in this boot
	tunnel   bool // egress goes through the session
	locks    map[sandbox.Tag]string
	registry registry
	held     *time.Timer // ends the hold
	stopping bool
}

// errStopped is the cause of everything that ends with the server.
var errStopped = errors.New("the agent has stopped")

// maxLinks bounds the sessions at once, claimed or not.
const maxLinks = 16

// NewServer checks the configuration and takes up a kept spec.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Host == nil {
		return nil, errors.New("agent: ServerConfig.Host must be set")
	}
	if cfg.Home == "" {
		cfg.Home = "/workspace"
	}
	if cfg.User == "" {
		cfg.User = "sandbox"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		host:     cfg.Host,
		cfg:      cfg,
		log:      cfg.Log,
		boot:     sandbox.NewID(),
		pool:     newPool(cfg.Memory),
		clock:    newClock(),
		store:    specStore{path: cfg.SpecFile},
		links:    map[*link]struct{}{},
		arrival:  make(chan struct{}),
		locks:    map[sandbox.Tag]string{},
		registry: newRegistry(),
		tunnels:  make(chan struct{}, maxEgress),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if err := s.store.load(); err != nil {
		return nil, fmt.Errorf("agent: read the kept spec: %w", err)
	}
	return s, nil
}

// Boot identifies this server's life.
func (s *Server) Boot() string { return s.boot }

// Serve serves each connection of l as a session until ctx ends or l fails. It
// also does the server's own housekeeping, so it must run once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	s.wg.Go(func() { s.janitor(ctx) })
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept a session: %w", err)
		}
		s.wg.Go(func() { s.ServeConn(conn) })
	}
}

// ServeConn serves one session over rwc and returns when it has ended.
func (s *Server) ServeConn(rwc io.ReadWriteCloser) {
	l, err := s.newLink(rwc)
	if err != nil {
		s.log.Warn("session refused", "error", err)
		_ = rwc.Close()
		return
	}
	defer s.drop(l)
	l.serve()
}

func (s *Server) newLink(rwc io.ReadWriteCloser) (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.links) >= maxLinks {
		return nil, errors.New("too many sessions")
	}
	l, err := newLink(s, rwc)
	if err == nil {
		s.links[l] = struct{}{}
	}
	return l, err
}

// drop forgets an ended session.
func (s *Server) drop(l *link) {
	l.close()
	s.mu.Lock()
	delete(s.links, l)
	was := s.current == l
	if was {
		s.current = nil
		s.attached.Store(false)
	}
	running := s.commandsLocked()
	s.mu.Unlock()
	if was {
		for _, k := range running {
			k.attachment()
		}
	}
}

// commandsLocked returns the commands that have not ended.
func (s *Server) commandsLocked() []*command {
	all := make([]*command, 0, s.registry.running)
	for _, k := range s.registry.commands {
		if s.registry.position[k] == nil {
			all = append(all, k)
		}
	}
	return all
}

// janitor forgets what is old.
func (s *Server) janitor(ctx context.Context) {
	tick := time.NewTicker(janitorPeriod)
	defer tick.Stop()
	idle := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		gone := s.registry.expire(time.Now())
		for k, p := range s.registry.lingering {
			if !p.Kept() {
				delete(s.registry.lingering, k)
			}
		}
		busy := s.registry.running > 0 || len(gone) > 0
		s.mu.Unlock()
		s.free(gone)
		if !busy && !idle {
			debug.FreeOSMemory() // once per quiet phase
		}
		idle = !busy
	}
}

// free gives the memory of forgotten commands back.
func (s *Server) free(gone []*command) {
	for _, k := range gone {
		s.pool.give(k.charged)
	}
}

// Close ends all sessions and commands by force and waits for them. It is for
// an agent inside another program; one of its own ends by [Server.Suspend].
func (s *Server) Close() {
	s.mu.Lock()
	s.stopping = true
	links := s.links
	s.links = map[*link]struct{}{}
	s.mu.Unlock()
	for l := range links {
		l.close()
	}
	ctx, stop := context.WithTimeout(context.Background(), killBound)
	defer stop()
	_, _ = s.kill(ctx, sandbox.KillRequest{All: true}, cause{reason: sandbox.SandboxRestarted})
	s.cancel(errStopped)
	s.wg.Wait()
}

package messaging

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"shoal/sandbox"
)

// Handler serves one request. What it returns is the answer: the result type
// that the operation names, or an error, best a [sandbox.Error]. For a stream
// the result goes into its end frame.
//
// [ErrForwarded] sends nothing: another worker answers. [ErrMoved] ends a
// stream so that the client follows again elsewhere. The ctx ends with the
// request's time (of a stream: never by time), when the reader of a stream is
// gone ([ErrReaderGone], [ErrReaderLeft] as its cause) and at the end of
// [Server.Shutdown].
type Handler func(ctx context.Context, r *Request) (any, error)

// What a handler's context or result says about a stream.
var (
	// ErrForwarded is returned by a handler whose request another worker serves.
	ErrForwarded = errors.New("forwarded to another worker")
	// ErrMoved is returned by a handler whose stream goes on at another worker.
	ErrMoved = errors.New("the stream goes on elsewhere")
	// ErrReaderGone: the reader's connection is gone or silent.
	ErrReaderGone = errors.New("nobody reads the stream")
	// ErrReaderLeft: the reader said that it leaves.
	ErrReaderLeft = errors.New("the reader left the stream")
	// ErrStopping: the server shuts down and its budget is used up.
	ErrStopping = errors.New("the worker is stopping")
)

// Config is what a [Server] needs.
type Config struct {
	// Conn carries everything: requests, frames and acknowledgements must use
	// one connection, since only then a missing reader is noticed at once.
	Conn   *nats.Conn
	Worker WorkerID
	// Version of the worker, as major.minor.patch.
	Version string
	Handler Handler
	// Requests served at once; more are Busy. Defaults to 1024.
	Requests int
	// Streams open at once; more are Busy. Defaults to 4096.
	Streams int
	// CheckReply refuses reply subjects outside the tenant's own inbox prefix.
	// Set it whenever the server authenticates its clients.
	CheckReply bool
	// Log defaults to none.
	Log *slog.Logger
}

func (c *Config) validate() error {
	switch {
	case c.Conn == nil:
		return errors.New("messaging: Config.Conn is required")
	case c.Handler == nil:
		return errors.New("messaging: Config.Handler is required")
	case c.Requests < 0 || c.Streams < 0:
		return errors.New("messaging: Config.Requests and Config.Streams cannot be negative")
	}
	if err := c.Worker.Validate(); err != nil {
		return fmt.Errorf("messaging: Config.Worker: %w", err)
	}
	if c.Requests == 0 {
		c.Requests = 1024
	}
	if c.Streams == 0 {
		c.Streams = 4096
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Server takes the requests of kernels and of other workers and hands them to
// its handler.
type Server struct {
	cfg      Config
	ctx      context.Context //nolint:containedctx // the life of the server's own goroutines, ended by Shutdown
	stop     context.CancelCauseFunc
	inbox    string // replies to frames; only NATS itself sends there
	requests chan struct{}
	streams  chan struct{}
	outputs  registry[*Output]
	inputs   registry[*Input]
	repeats  repeats
	pulse    *pulse
	handlers gate
	own      sync.WaitGroup // the server's own goroutines

	mu      sync.Mutex // guards the rest
	service micro.Service
	subs    []*nats.Subscription
}

// NewServer checks cfg; nothing is subscribed before [Server.Start].
func NewServer(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, inbox: cfg.Conn.NewInbox(), pulse: newPulse(),
		requests: make(chan struct{}, cfg.Requests), streams: make(chan struct{}, cfg.Streams),
	}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	return s, nil
}

// Worker returns the worker's id.
func (s *Server) Worker() WorkerID { return s.cfg.Worker }

// Start subscribes to everything a worker serves and returns when the NATS
// server knows of it.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.service != nil {
		return errors.New("messaging: the server is started already")
	}
	service, err := micro.AddService(s.cfg.Conn, micro.Config{
		Name: "shoal", Version: s.cfg.Version, QueueGroup: Queue,
		Description: "sandboxes for agent kernels",
		Metadata:    map[string]string{"worker": string(s.cfg.Worker)},
	})
	if err != nil {
		return fmt.Errorf("register the service: %w", err)
	}
	s.service = service
	s.pulse.beat()
	s.own.Go(s.feel)
	if err := s.subscribeLocked(); err != nil {
		return errors.Join(err, s.leaveLocked())
	}
	s.own.Go(s.beat)
	if err := s.cfg.Conn.FlushTimeout(10 * time.Second); err != nil {
		return errors.Join(fmt.Errorf("subscribe to the requests: %w", err), s.leaveLocked())
	}
	return nil
}

func (s *Server) subscribeLocked() error {
	for _, d := range []struct {
		subject string
		handler nats.MsgHandler
	}{
		{s.inbox + ".*", s.unread},
		{atWorker(s.cfg.Worker), s.take},
		{atFleet(s.cfg.Worker), s.take},
	} {
		sub, err := s.cfg.Conn.Subscribe(d.subject, d.handler)
		if err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		s.subs = append(s.subs, sub)
	}
	for op, o := range operations {
		if o.fleet || o.verb {
			continue
		}
		name := strings.ReplaceAll(string(op), ".", "-")
		err := s.service.AddEndpoint(name, micro.HandlerFunc(s.takeQueued), micro.WithEndpointSubject(anyTenant(op)))
		if err != nil {
			return fmt.Errorf("register %s: %w", op, err)
		}
	}
	return nil
}

// Leave makes the worker take no more requests from the queue group; those
// that name it still arrive.
func (s *Server) Leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaveLocked()
}

func (s *Server) leaveLocked() error {
	if s.service == nil || s.service.Stopped() {
		return nil
	}
	return s.service.Stop() // drains its subscriptions; what has arrived is served
}

// Shutdown leaves the queue group, waits for the running handlers until ctx
// ends, then cancels them and waits for their return; what names this worker is
// served meanwhile and Draining afterwards. It may be called twice, and before
// Start.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.Leave()
	if werr := s.handlers.wait(ctx); werr != nil {
		s.cfg.Log.Warn("cancelling requests that still run", "requests", len(s.requests), "streams", len(s.streams))
	}
	s.handlers.close()
	s.stop(ErrStopping)
	err = errors.Join(err, s.handlers.wait(context.WithoutCancel(ctx)))
	s.own.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		if uerr := sub.Unsubscribe(); uerr != nil && !errors.Is(uerr, nats.ErrConnectionClosed) && !errors.Is(uerr, nats.ErrBadSubscription) {
			err = errors.Join(err, uerr)
		}
	}
	s.subs = nil
	return err
}

// Load returns how many requests and streams are being served.
func (s *Server) Load() (requests, streams int) { return len(s.requests), len(s.streams) }

// PublishEvent tells whoever listens what happened; it does not wait.
func (s *Server) PublishEvent(e Event) error {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Worker = s.cfg.Worker
	body, err := encode(e, true)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	return s.cfg.Conn.Publish(EventSubject(e.Tenant, e.Sandbox, e.Kind), body)
}

// beat sends the heartbeats of all streams and forgets old answers.
func (s *Server) beat() {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case now := <-tick.C:
			for _, out := range s.outputs.all() {
				out.beat(now)
			}
			s.repeats.forget(now)
		}
	}
}

// fault makes an Internal error for the caller and a log line with the cause,
// joined by an id.
func (s *Server) fault(err error, attrs ...slog.Attr) *sandbox.Error {
	e := *sandbox.AsError(err)
	if e.Code == sandbox.Internal {
		if e.ID == "" {
			e.ID = sandbox.NewID()[:12]
		}
		attrs = append(attrs, slog.String("id", e.ID), slog.Any("cause", errors.Unwrap(&e)))
		s.cfg.Log.LogAttrs(context.Background(), slog.LevelError, "internal fault", attrs...)
	}
	if e.Origin == "" {
		e.Origin = sandbox.FromWorker
	}
	return &e
}

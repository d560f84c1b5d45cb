package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/docker"
	"shoal/e2b"
	"shoal/egress"
	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// version of this program; releases set it at link time.
var version = "0.1.0" //nolint:gochecknoglobals // set by the linker

// run wires the parts and serves until ctx ends.
func run(ctx context.Context, s *settings, log *slog.Logger) error {
	provider, closeProvider, err := newProvider(ctx, s, log)
	if err != nil {
		return err
	}
	defer closeProvider()
	if s.AllowOpenEgress {
		log.Warn("requests may ask for open egress (--allow-open-egress): such a sandbox reaches everything its network does")
	}
	id := messaging.WorkerID(sandbox.NewID())
	bus, err := connect(s, id, log)
	if err != nil {
		return err
	}
	defer bus.close()
	store, err := bus.store(ctx, s)
	if err != nil {
		return err
	}
	cfg := s.fleet()
	cfg.ID = id
	cfg.Conn, cfg.Store, cfg.Provider, cfg.Log = bus.data, store, provider, log
	cfg.Authenticated = bus.external && !s.AnyReply && bus.data.AuthRequired()
	cfg.Proxy = egress.Config{Log: log, DeniedPrefixes: s.EgressDeny}
	worker, err := fleet.New(cfg)
	if err != nil {
		return err
	}
	stop, err := serveHealth(s.HTTPAddr, worker, bus.data, log)
	if err != nil {
		return err
	}
	defer stop()
	return worker.Run(ctx)
}

// newProvider makes the provider that the settings name, and looks whether its
// engine can be used as configured.
func newProvider(ctx context.Context, s *settings, log *slog.Logger) (p sandbox.Provider, closeProvider func(), err error) {
	if s.Provider != "e2b" {
		d, err := docker.New(s.docker(log))
		if err != nil {
			return nil, nil, err
		}
		if err := d.Check(ctx); err != nil {
			d.Close()
			return nil, nil, err
		}
		return d, d.Close, nil
	}
	f, err := os.Open(s.E2BSettings)
	if err != nil {
		return nil, nil, fmt.Errorf("read the E2B settings: %w", err)
	}
	defer f.Close()
	cfg, err := e2b.ParseConfig(f)
	if err != nil {
		return nil, nil, err
	}
	cfg.Fleet, cfg.Log = s.Fleet, log
	e, err := e2b.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	return e, func() {}, nil
}

// bus is the connection to NATS: one for requests and output, one for the
// records, so that bulk output cannot delay what keeps locks alive.
type bus struct {
	embedded *embedded
	data     *nats.Conn
	records  *nats.Conn
	external bool
}

func connect(s *settings, id messaging.WorkerID, log *slog.Logger) (*bus, error) {
	b := &bus{external: s.NATSURL != ""}
	url := s.NATSURL
	opts, err := natsOptions(s, id, log)
	if err != nil {
		return nil, err
	}
	if !b.external {
		if b.embedded, err = startEmbedded(s.StateDir, s.NATSPort); err != nil {
			return nil, err
		}
		url = b.embedded.creds.URL
		opts = append(opts, nats.UserInfo(b.embedded.creds.User, b.embedded.creds.Password))
		log.Info("embedded NATS server", "url", url, "credentials", b.embedded.path)
	}
	if b.data, err = nats.Connect(url, opts...); err == nil {
		b.records, err = nats.Connect(url, opts...)
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("%w: check --nats-url and its credentials, or leave it out to start a server here", messaging.ConnectError(url, err))
	}
	return b, nil
}

// natsOptions adds the credentials and the log to what every worker needs.
func natsOptions(s *settings, id messaging.WorkerID, log *slog.Logger) ([]nats.Option, error) {
	opts := append(messaging.WorkerConnOptions(id),
		nats.Timeout(5*time.Second), nats.PermissionErrOnSubscribe(true),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn("NATS", "error", err) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("NATS link lost", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("NATS link restored") }),
	)
	if s.NATSCreds != "" {
		opts = append(opts, nats.UserCredentials(s.NATSCreds))
	}
	if s.NATSCA != "" {
		opts = append(opts, nats.RootCAs(s.NATSCA))
	}
	if s.NATSNKey != "" {
		opt, err := nats.NkeyOptionFromSeed(s.NATSNKey)
		if err != nil {
			return nil, fmt.Errorf("read the nkey seed %s: %w", s.NATSNKey, err)
		}
		opts = append(opts, opt)
	}
	return opts, nil
}

// store opens the records; with the embedded server it makes them first.
func (b *bus) store(ctx context.Context, s *settings) (*kv.Store, error) {
	js, err := jetstream.New(b.records, jetstream.WithDefaultTimeout(5*time.Second))
	if err != nil {
		return nil, err
	}
	cfg := kv.Config{Replicas: s.Replicas, PresenceTTL: s.PresenceTTL}
	if !b.external {
		if err := kv.Create(ctx, js, cfg); err != nil {
			return nil, err
		}
	}
	return kv.Open(ctx, js, cfg)
}

func (b *bus) close() {
	for _, nc := range []*nats.Conn{b.data, b.records} {
		if nc != nil {
			_ = nc.FlushTimeout(time.Second) // the last answers
			nc.Close()
		}
	}
	if b.embedded != nil {
		b.embedded.stop()
	}
}

// serveHealth answers /healthz (the process lives) and /readyz (it serves and
// has its NATS link).
func serveHealth(addr string, w *fleet.Worker, nc *nats.Conn, log *slog.Logger) (stop func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", addr) //nolint:noctx // binds at once
	if err != nil {
		return nil, fmt.Errorf("listen for health checks: %w: choose another --http-addr", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		if !w.Sound() || !nc.IsConnected() {
			http.Error(rw, "not ready", http.StatusServiceUnavailable)
			return
		}
		rw.WriteHeader(http.StatusOK)
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 30 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("health checks", "error", err)
		}
	}()
	log.Info("health checks", "addr", l.Addr().String())
	return func() {
		_ = srv.Close()
		<-done
	}, nil
}

package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"shoal/docker"
	"shoal/egress"
	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// originName is what the origin is called where it is measured through a proxy.
const originName = "files.bench.test"

// originAddr is what originName resolves to there: a public address, since a
// proxy refuses others. Nothing is sent to it.
var originAddr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{93, 184, 215, 20}), 443) //nolint:gochecknoglobals // a constant

// origin is an HTTPS server that answers /N with N bytes and ends each
// connection after its answer. It is the internet of a worker's proxy.
type origin struct {
	server *httptest.Server
}

var (
	_ egress.Resolver = (*origin)(nil)
	_ egress.Dialer   = (*origin)(nil)
)

// startOrigin serves at an address of this machine.
func startOrigin(ctx context.Context, host string) (*origin, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fmt.Errorf("serve at the bridge's address, which must be this machine's: %w", err)
	}
	o := &origin{server: &httptest.Server{Listener: l, Config: &http.Server{
		Handler: http.HandlerFunc(answerBytes), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: log.New(io.Discard, "", 0), // a client that leaves early fails by itself
	}}}
	o.server.Config.SetKeepAlivesEnabled(false)
	o.server.StartTLS()
	return o, nil
}

func (o *origin) address() string { return o.server.Listener.Addr().String() }

// close ends the connections first, so that no answer goes on.
func (o *origin) close() {
	o.server.CloseClientConnections()
	o.server.Close()
}

func answerBytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(strings.TrimPrefix(r.URL.Path, "/"), 10, 64)
	if err != nil || n < 0 {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	_, _ = io.CopyN(w, endless{}, n) // a client that leaves early fails by itself
}

// endless reads as zeros.
type endless struct{}

// Read implements [io.Reader].
func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// LookupNetIP implements [egress.Resolver].
func (o *origin) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if strings.TrimSuffix(host, ".") != originName {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return []netip.Addr{originAddr.Addr()}, nil
}

// DialAddr implements [egress.Dialer].
func (o *origin) DialAddr(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	if addr != originAddr {
		return nil, fmt.Errorf("nothing is at %s", addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", o.address())
}

// withProxied lends a worker of the rig's fleet whose proxy finds o behind a
// public address. It runs in this process: the worker program has no setting
// that would bend what its proxy resolves or dials.
func (r *rig) withProxied(ctx context.Context, o *origin, use func(messaging.WorkerID) error) error {
	id := messaging.WorkerID(sandbox.NewID())
	provider, err := docker.New(docker.Config{Fleet: r.fleet, Endpoint: r.settings.endpoint, Image: r.settings.image})
	if err != nil {
		return err
	}
	defer provider.Close()
	nc, err := nats.Connect(r.homeURL, messaging.WorkerConnOptions(id)...)
	if err != nil {
		return fmt.Errorf("connect the second worker: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(5*time.Second))
	if err != nil {
		return err
	}
	store, err := kv.Open(ctx, js, kv.Config{})
	if err != nil {
		return err
	}
	w, err := fleet.New(fleet.Config{
		ID: id, Conn: nc, Store: store, Provider: provider, Image: r.settings.image,
		Proxy: egress.Config{Resolver: o, Dialer: o},
	})
	if err != nil {
		return err
	}
	return whileServing(ctx, w, func() error { return use(id) })
}

// whileServing runs the worker until use returns, and waits for its drain.
func whileServing(ctx context.Context, w *fleet.Worker, use func() error) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, started := errgroup.WithContext(ctx)
	g.Go(func() error { return w.Run(life) })
	select {
	case <-w.Ready():
		g.Go(func() error {
			defer end()
			return use()
		})
	case <-started.Done():
		end()
	}
	return g.Wait()
}

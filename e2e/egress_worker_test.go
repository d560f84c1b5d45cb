package e2e_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/egress"
	fleets "shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// originsEnv makes this test binary a worker whose proxy finds local servers
// behind public addresses. The real worker has no such setting.
const originsEnv = "SHOAL_TEST_ORIGINS"

// origins says what names resolve to, and where a connection to one of these
// addresses really ends.
type origins struct {
	Names map[string][]netip.Addr
	Dial  map[string]string // public address and port → local one
}

// LookupNetIP implements [egress.Resolver].
func (o *origins) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if addrs, ok := o.Names[strings.TrimSuffix(host, ".")]; ok {
		return addrs, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// DialAddr implements [egress.Dialer].
func (o *origins) DialAddr(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	local, ok := o.Dial[addr.String()]
	if !ok {
		return nil, fmt.Errorf("nothing is at %s", addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", local)
}

// egressWorker is the worker's main program with the origins as its internet.
func egressWorker(text string) int {
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if err := runEgressWorker(text, log); err != nil {
		log.Error("worker", "error", err)
		return 1
	}
	return 0
}

func runEgressWorker(text string, log *slog.Logger) error {
	var o origins
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	fs := flag.NewFlagSet("egress-worker", flag.ContinueOnError)
	url, name, image := fs.String("nats-url", "", ""), fs.String("fleet", "", ""), fs.String("image", "", "")
	_, grace, every := fs.String("log-level", "", ""), fs.Duration("sweep-grace", 0, ""), fs.Duration("sweep-every", 0, "")
	runtime, network := fs.String("runtime", "", ""), fs.String("network", "", "")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return err
	}
	provider, err := docker.New(docker.Config{
		Fleet: *name, Endpoint: dockertest.Endpoint(), Image: *image, Runtime: *runtime,
		AllowOpenEgress: *network != "", Network: *network, Logger: log,
	})
	if err != nil {
		return err
	}
	defer provider.Close()
	id := messaging.WorkerID(sandbox.NewID())
	nc, err := nats.Connect(*url, messaging.WorkerConnOptions(id)...)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	store, err := kv.Open(ctx, js, kv.Config{})
	if err != nil {
		return err
	}
	cfg := fleets.Config{
		ID: id, Conn: nc, Store: store, Provider: provider, Log: log, Image: *image,
		SweepEvery: *every, SweepGrace: *grace,
		Proxy: egress.Config{Log: log, Resolver: &o, Dialer: &o},
	}
	if *network != "" {
		cfg.Ceiling = sandbox.EgressOpen
	}
	w, err := fleets.New(cfg)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// newEgressFleet starts workers whose internet is the world.
func newEgressFleet(t *testing.T, w *world, workers int, flags ...string) *fleet {
	t.Helper()
	text, err := json.Marshal(w.origins)
	if err != nil {
		t.Fatal(err)
	}
	return newFleetOf(t, "egress-worker", []string{originsEnv + "=" + string(text)}, workers, flags...)
}

// linkSelf makes this test binary startable as a program of the tests.
func linkSelf(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return os.Symlink(self, filepath.Join(dir, "egress-worker"))
}

// within fails the test when fn takes longer than d, and returns how long it
// took.
func within(t *testing.T, d time.Duration, what string, fn func()) time.Duration {
	t.Helper()
	start := time.Now()
	fn()
	took := time.Since(start)
	if took > d {
		t.Errorf("%s took %s, at most %s is promised", what, took.Round(time.Millisecond), d)
	}
	return took
}

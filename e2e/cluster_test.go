package e2e_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/docker/dockertest"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// natsCluster is three NATS servers as processes, by name.
type natsCluster struct {
	servers map[string]*process
	urls    []string
}

func startCluster(t *testing.T) *natsCluster {
	t.Helper()
	c := &natsCluster{servers: map[string]*process{}}
	var ports, routes []string
	for range 3 {
		ports = append(ports, strconv.Itoa(freePort(t)))
		routes = append(routes, "nats://127.0.0.1:"+strconv.Itoa(freePort(t)))
	}
	for i, port := range ports {
		name := fmt.Sprint("n", i)
		c.servers[name] = start(t, "nats-server", nil, "-n", name, "-a", "127.0.0.1", "-p", port, "-js", "-sd", t.TempDir(),
			"--cluster_name", "shoal", "--cluster", routes[i], "--routes", strings.Join(routes, ","))
		c.urls = append(c.urls, "nats://127.0.0.1:"+port)
	}
	return c
}

func (c *natsCluster) url() string { return strings.Join(c.urls, ",") }

// init makes the buckets, three times each, as soon as the cluster can.
func (c *natsCluster) init(t *testing.T) jetstream.JetStream {
	t.Helper()
	var js jetstream.JetStream
	eventually(t, 60*time.Second, "the cluster makes the buckets", func() error {
		nc, err := nats.Connect(c.url(), nats.MaxReconnects(-1))
		if err != nil {
			return err
		}
		t.Cleanup(nc.Close)
		if js, err = jetstream.New(nc); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return kv.Create(ctx, js, kv.Config{Replicas: 3})
	})
	return js
}

// leader names the server that leads a bucket.
func leader(t *testing.T, js jetstream.JetStream, bucket string) string {
	t.Helper()
	s, err := js.Stream(t.Context(), "KV_"+bucket)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().Cluster.Leader
}

// A cluster of three servers loses the one that leads the handles: commands run
// on and new ones start, a lock stays held, and creates go on when there is
// another leader.
func TestClusterLosesItsLeader(t *testing.T) {
	t.Parallel()
	dockertest.NeedImage(t)
	c := startCluster(t)
	js := c.init(t)
	f := &fleet{t: t, name: dockertest.Fleet(t), bus: &bus{url: c.url()}, program: "worker"}
	f.add("--replicas", "3")
	f.add("--replicas", "3")
	var err error
	if f.client, err = messaging.Connect(c.url(), messaging.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.client.Close() })
	f.settle()
	box := f.create(messaging.CreateRequest{})
	lock, err := f.client.Lock(t.Context(), box, "tag", messaging.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const lines = 250
	p, err := f.client.Exec(t.Context(), box, sandbox.Command{Shell: fmt.Sprintf(ticker, lines), Tag: "tag", Token: lock.Token()})
	if err != nil {
		t.Fatal(err)
	}
	victim := leader(t, js, kv.HandlesBucket)
	c.servers[victim].kill()
	killed := time.Now()
	if r := f.run(box, "echo on"); string(r.Stdout) != "on\n" {
		t.Fatalf("a new command: %+v", r)
	}
	ran := time.Since(killed)
	f.create(messaging.CreateRequest{})
	t.Logf("after kill -9 of %s, the leader of the handles: a command had run after %s, a sandbox was made after %s",
		victim, ran.Round(time.Millisecond), time.Since(killed).Round(time.Millisecond))
	out := &follower{sum: sha256.New()}
	end, err := p.Copy(t.Context(), out, out)
	if err != nil || end.Code == nil || *end.Code != 7 || [sha256.Size]byte(out.sum.Sum(nil)) != tickerSum(lines) || p.Lost() != 0 {
		t.Fatalf("the command that ran: %+v, %v", end, err)
	}
	if err := context.Cause(lock.Context()); err != nil {
		t.Errorf("the lock is lost: %v", err)
	}
	if err := lock.Release(t.Context(), false); err != nil {
		t.Error(err)
	}
}

package kv_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/kv"
)

// cluster starts three servers that keep every bucket three times.
func cluster(t *testing.T) []*server.Server {
	t.Helper()
	var routes []*url.URL
	var ports []int
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: l.Addr().String()})
		_ = l.Close()
	}
	all := make([]*server.Server, 3)
	for i := range all {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("s", i), Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: ports[i]}, Routes: routes,
			NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		all[i] = s
	}
	for deadline := time.Now().Add(time.Minute); !slices.ContainsFunc(all, (*server.Server).JetStreamIsLeader); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the cluster did not come together")
		}
	}
	return all
}

// A lease is kept, and a watch hears, over the death of the bucket's leader;
// lists that decide are never behind a write.
func TestClusterLosesItsLeader(t *testing.T) {
	t.Parallel()
	servers := cluster(t)
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.ClientURL())
	}
	nc, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, _ := jetstream.New(nc)
	cfg := kv.Config{Replicas: 3, PresenceTTL: 20 * time.Second}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if err = kv.Create(t.Context(), js, cfg); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	s, err := kv.Open(t.Context(), js, cfg)
	if err != nil {
		t.Fatal(err)
	}
	seen := newLog()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Handles.Watch(ctx, ">", seen.add) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	lease, err := s.Workers.Get(t.Context(), "w1")
	if err != nil {
		t.Fatal(err)
	}
	handle, err := s.Handles.Get(t.Context(), "t1.a")
	if err != nil {
		t.Fatal(err)
	}
	round := func(i int) {
		t.Helper()
		if err := s.Workers.Put(t.Context(), lease); err != nil {
			t.Fatalf("round %d: the lease: %v", i, err)
		}
		handle.Value.Owner = fmt.Sprint("o", i)
		if err := s.Handles.Put(t.Context(), handle); err != nil {
			t.Fatalf("round %d: the record: %v", i, err)
		}
		list, err := s.Handles.ListNow(t.Context(), "t1")
		if err != nil || len(list) != 1 || list[0].Value.Owner != handle.Value.Owner {
			t.Fatalf("round %d: the leader lists %+v, %v", i, list, err)
		}
	}
	for i := range 20 {
		round(i)
	}
	began := time.Now()
	for _, s := range servers {
		if s.JetStreamIsStreamLeader("$G", "KV_"+kv.HandlesBucket) {
			s.Shutdown()
			s.WaitForShutdown()
			break
		}
	}
	for i := range 20 {
		round(20 + i)
	}
	t.Logf("the records went on %s after their leader had ended", time.Since(began).Round(time.Millisecond))
	seen.wait(t, "t1.a=o39")
}

package kv_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/kv"
)

// deafDialer makes connections that can be made to lose what the server says.
type deafDialer struct {
	mu   sync.Mutex
	conn net.Conn
	deaf atomic.Bool
}

type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (d *deafDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn = c
	return &deafConn{c, &d.deaf}, nil
}

func (c *deafConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.deaf.Load() {
			return n, err
		}
	}
}

// sever ends a connection that was deaf; the next one hears.
func (d *deafDialer) sever() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deaf.Store(false)
	_ = d.conn.Close()
}

func listening(t *testing.T) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		ServerName: "kv", Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(),
		NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("not ready")
	}
	return s
}

func dialDeaf(t *testing.T, s *server.Server) (*nats.Conn, *deafDialer) {
	t.Helper()
	d := &deafDialer{}
	nc, err := nats.Connect(s.ClientURL(), nats.SetCustomDialer(d), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, d
}

// NK-06: a write whose acknowledgement was lost is recognised as one's own.
func TestNK06LostAcknowledgement(t *testing.T) {
	t.Parallel()
	nc, d := dialDeaf(t, listening(t))
	s := openStore(t, nc)
	e, err := s.Locks.Get(t.Context(), "t.s.tag")
	if err != nil {
		t.Fatal(err)
	}
	e.Value.Holder = "me"
	d.deaf.Store(true)
	time.AfterFunc(300*time.Millisecond, d.sever)
	if err := s.Locks.PutFor(t.Context(), e, 10*time.Second); err != nil {
		t.Fatalf("the write was applied, its holder was told: %v", err)
	}
	e.Value.Holder = "me again"
	if err := s.Locks.PutFor(t.Context(), e, 10*time.Second); err != nil {
		t.Fatalf("the entry does not stand for what was written: %v", err)
	}
}

// NK-02: watches that are built anew leave no consumers behind.
func TestNK02ConsumersDoNotPileUp(t *testing.T) {
	t.Parallel()
	srv := listening(t)
	nc, d := dialDeaf(t, srv)
	s := openStore(t, nc)
	const watchers = 5
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var resets atomic.Int64
	for range watchers {
		wg.Go(func() {
			_ = s.Locks.Watch(ctx, ">", func(c kv.Change[kv.Lock]) {
				if c.Kind == kv.Reset {
					resets.Add(1)
				}
			})
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	for round := int64(1); round <= 3; round++ {
		for deadline := time.Now().Add(20 * time.Second); resets.Load() < round*watchers; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d watches were built of %d", resets.Load(), round*watchers)
			}
		}
		d.deaf.Store(true) // until the heartbeats are missed
		time.Sleep(2500 * time.Millisecond)
		d.sever()
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		stream, err := js.Stream(t.Context(), "KV_"+kv.LocksBucket)
		if err != nil {
			continue
		}
		if n = stream.CachedInfo().State.Consumers; n == watchers {
			return
		}
	}
	t.Fatalf("%d consumers for %d watches", n, watchers)
}

// Reads, writes and lists wait for a server that comes back within seconds.
func TestWaitsForTheServer(t *testing.T) {
	t.Parallel()
	nc, d := dialDeaf(t, listening(t))
	s := openStore(t, nc)
	e, err := s.Handles.Get(t.Context(), "t.s")
	if err != nil {
		t.Fatal(err)
	}
	away := func() {
		d.deaf.Store(true)
		time.AfterFunc(3*time.Second, d.sever) // longer than one try
	}
	away()
	e.Value.Owner = "me"
	if err := s.Handles.Put(t.Context(), e); err != nil {
		t.Fatalf("put: %v", err)
	}
	away()
	if got, err := s.Handles.Get(t.Context(), "t.s"); err != nil || got.Value.Owner != "me" {
		t.Fatalf("get: %+v, %v", got, err)
	}
	away()
	if list, err := s.Handles.List(t.Context(), "t"); err != nil || len(list) != 1 {
		t.Fatalf("list: %d, %v", len(list), err)
	}
	if err := s.Handles.Put(t.Context(), e); err != nil {
		t.Fatalf("the entry does not stand for what was written: %v", err)
	}
}

package kv_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/kv"
	"shoal/sandbox"
)

// connect starts a server of its own in dir and returns a connection to it.
func connect(t *testing.T, dir string) (*server.Server, *nats.Conn) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		ServerName: "kv", DontListen: true, JetStream: true, StoreDir: dir,
		NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server did not become ready")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return s, nc
}

func openStore(t *testing.T, nc *nats.Conn) *kv.Store {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Create(t.Context(), js, kv.Config{}); err != nil {
		t.Fatal(err)
	}
	s, err := kv.Open(t.Context(), js, kv.Config{PresenceTTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPutComparesAndSwaps(t *testing.T) {
	t.Parallel()
	_, nc := connect(t, t.TempDir())
	s := openStore(t, nc)
	key := kv.HandleKey("t1", "a.b")
	first, err := s.Handles.Get(t.Context(), key)
	if err != nil || first.Exists {
		t.Fatalf("absent key: %+v, %v", first, err)
	}
	second, _ := s.Handles.Get(t.Context(), key)
	first.Value = kv.Record{State: kv.Creating, Owner: "w1"}
	if err := s.Handles.Put(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	second.Value = kv.Record{State: kv.Creating, Owner: "w2"}
	if err := s.Handles.Put(t.Context(), second); !kv.IsRevision(err) || sandbox.CodeOf(err) != sandbox.Conflict {
		t.Fatalf("the loser got %v", err)
	}
	first.Value.State = kv.Running
	if err := s.Handles.Put(t.Context(), first); err != nil {
		t.Fatalf("a second put by the winner: %v", err)
	}
	got, err := s.Handles.Get(t.Context(), key)
	if err != nil || got.Value.State != kv.Running || got.Value.Owner != "w1" {
		t.Fatalf("read back %+v, %v", got, err)
	}
	list, err := s.Handles.List(t.Context(), "t1")
	if err != nil || len(list) != 1 || list[0].Key != "t1.a=2Eb" {
		t.Fatalf("list: %v, %v", list, err)
	}
	if other, _ := s.Handles.List(t.Context(), "t"); len(other) != 0 {
		t.Fatalf("the tenant t sees %v", other)
	}
}

// A field that this version does not know survives a read and write by it.
func TestUnknownFieldsAreKept(t *testing.T) {
	t.Parallel()
	_, nc := connect(t, t.TempDir())
	s := openStore(t, nc)
	if err := nc.Publish("$KV.shoal_handles.t1.x", []byte(`{"state":"running","future":{"a":1},"_op":"o"}`)); err != nil {
		t.Fatal(err)
	}
	_ = nc.Flush()
	e, err := s.Handles.Get(t.Context(), "t1.x")
	if err != nil {
		t.Fatal(err)
	}
	e.Value.Owner = "w1"
	if err := s.Handles.Put(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	js, _ := jetstream.New(nc)
	b, _ := js.KeyValue(t.Context(), kv.HandlesBucket)
	raw, err := b.Get(t.Context(), "t1.x")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(raw.Value(), &all); err != nil {
		t.Fatal(err)
	}
	if all["owner"] != "w1" || all["future"] == nil || all["_op"] == "o" {
		t.Fatalf("stored %v", all)
	}
}

// NK-04: a refreshed entry keeps its TTL, and an expired one can be taken at once: an ordinary KV update would take it away.
func TestRefreshKeepsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, nc := connect(t, t.TempDir())
		s := openStore(t, nc)
		e, err := s.Workers.Get(t.Context(), "w1")
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if err := s.Workers.Put(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			time.Sleep(1500 * time.Millisecond)
		}
		if got, err := s.Workers.Get(t.Context(), "w1"); err != nil || !got.Exists {
			t.Fatalf("a refreshed entry is gone: %v, %v", got, err)
		}
		time.Sleep(time.Second)
		if got, err := s.Workers.Get(t.Context(), "w1"); err != nil || got.Exists {
			t.Fatalf("2.5 s after its last refresh the entry is still there: %+v, %v", got, err)
		}
		// Its former holder learns that it is lost, and anybody can take it.
		if err := s.Workers.Put(t.Context(), e); !kv.IsRevision(err) {
			t.Fatalf("a put on the expired entry: %v", err)
		}
		again, _ := s.Workers.Get(t.Context(), "w1")
		if err := s.Workers.Put(t.Context(), again); err != nil {
			t.Fatalf("taking an expired key: %v", err)
		}
		if err := s.Workers.Remove(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		if got, _ := s.Workers.Get(t.Context(), "w1"); got.Exists {
			t.Fatal("removed, but there")
		}
	})
}

// LC-06: a renewal at the very moment of expiry either holds, and the lease then
// lives for a whole term, or tells its holder that it is lost: never neither.
func TestLC06RenewalAtTheMomentOfExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, nc := connect(t, t.TempDir())
		s := openStore(t, nc)
		const leases, term = 200, 2 * time.Second
		entries := make([]*kv.Entry[kv.Lock], leases)
		began := time.Now()
		for i := range entries {
			e, err := s.Locks.Get(t.Context(), kv.LockKey("t", "s", sandbox.Tag(fmt.Sprint("l", i))))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Locks.PutFor(t.Context(), e, term); err != nil {
				t.Fatal(err)
			}
			entries[i] = e
		}
		held := make([]bool, leases)
		for i, e := range entries { // from 5 ms before to 5 ms after
			time.Sleep(time.Until(began.Add(term + time.Duration(i-leases/2)*50*time.Microsecond)))
			err := s.Locks.PutFor(t.Context(), e, term)
			if held[i] = err == nil; err != nil && !kv.IsRevision(err) {
				t.Fatalf("lease %d: %v", i, err)
			}
		}
		renewed := 0
		time.Sleep(term - 500*time.Millisecond)
		for i, e := range entries {
			now, err := s.Locks.Get(t.Context(), e.Key)
			switch {
			case err != nil:
				t.Fatalf("lease %d: %v", i, err)
			case !held[i] && now.Exists:
				t.Fatalf("lease %d: its holder was told that it is lost, and it lives", i)
			case held[i] && now.Exists:
				renewed++
			case held[i]:
				// The server was just about to put the marker of the expiry: it
				// comes after the renewal. Holders stop renewing earlier, and the
				// next renewal tells.
				if err := s.Locks.PutFor(t.Context(), e, term); !kv.IsRevision(err) {
					t.Fatalf("lease %d is gone and its holder is not told: %v", i, err)
				}
			}
		}
		if renewed == 0 {
			t.Error("none was renewed")
		}
		time.Sleep(time.Second)
		for i, e := range entries {
			if now, err := s.Locks.Get(t.Context(), e.Key); err != nil || now.Exists {
				t.Fatalf("lease %d never ends: %v", i, err)
			}
		}
		t.Logf("%d of %d renewals held", renewed, leases)
	})
}

// NK-01: a watch tells what exists, changes, expiry, and starts anew each time
// that the server was away.
func TestNK01WatchSurvivesRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	opts := &server.Options{
		ServerName: "kv", Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir,
		NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("not ready")
	}
	opts.Port = srv.Addr().(*net.TCPAddr).Port
	nc, err := nats.Connect(srv.ClientURL(), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	s := openStore(t, nc)
	seen := newLog()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Handles.Watch(ctx, ">", seen.add) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	put := func(key, owner string) {
		t.Helper()
		deadline := time.Now().Add(15 * time.Second)
		for {
			e, err := s.Handles.Get(t.Context(), key)
			if err == nil {
				e.Value.Owner = owner
				if err = s.Handles.Put(t.Context(), e); err == nil {
					return
				}
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	put("t1.a", "w1")
	seen.wait(t, "t1.a=w1")
	for i, owner := range []string{"w2", "w3", "w4", "w5", "w6"} {
		srv.Shutdown()
		srv.WaitForShutdown()
		if srv, err = server.NewServer(opts); err != nil {
			t.Fatal(err)
		}
		srv.Start()
		if !srv.ReadyForConnections(10 * time.Second) {
			t.Fatalf("restart %d: not ready", i)
		}
		put("t1.a", owner)
		seen.wait(t, "t1.a="+owner)
	}
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
}

func TestOpenRefusesWrongBuckets(t *testing.T) {
	t.Parallel()
	_, nc := connect(t, t.TempDir())
	js, _ := jetstream.New(nc)
	if _, err := kv.Open(t.Context(), js, kv.Config{}); sandbox.CodeOf(err) != sandbox.Unavailable {
		t.Fatalf("without buckets: %v", err)
	}
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: kv.HandlesBucket, History: 5, LimitMarkerTTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := kv.Create(t.Context(), js, kv.Config{}); err != nil && !errors.Is(err, jetstream.ErrBucketExists) {
		t.Fatal(err)
	}
	if _, err := kv.Open(t.Context(), js, kv.Config{}); sandbox.CodeOf(err) != sandbox.Unavailable {
		t.Fatalf("a bucket with history 5: %v", err)
	}
}

func TestBucketIDIsMadeOnce(t *testing.T) {
	t.Parallel()
	_, nc := connect(t, t.TempDir())
	s := openStore(t, nc)
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() { ids[i], _ = s.BucketID(context.Background()) })
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("ids %v", ids)
		}
	}
	if list, err := s.Handles.List(t.Context(), ""); err != nil || len(list) != 0 {
		t.Fatalf("the fleet's own keys show as handles: %v, %v", list, err)
	}
}

// eventLog remembers the latest owner of each key, as a watch tells it.
type eventLog struct {
	mu    sync.Mutex
	state map[string]string
}

func newLog() *eventLog { return &eventLog{state: map[string]string{}} }

func (l *eventLog) add(c kv.Change[kv.Record]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch c.Kind {
	case kv.Reset:
		clear(l.state)
	case kv.Set:
		l.state[c.Entry.Key] = c.Entry.Value.Owner
	case kv.Removed:
		delete(l.state, c.Entry.Key)
	}
}

func (l *eventLog) wait(t *testing.T, want string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		l.mu.Lock()
		ok := false
		for k, v := range l.state {
			ok = ok || k+"="+v == want
		}
		l.mu.Unlock()
		if ok {
			return
		}
	}
	t.Fatalf("the watch never told %s", want)
}

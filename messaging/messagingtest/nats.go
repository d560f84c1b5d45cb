// Package messagingtest starts a NATS server inside the test process.
package messagingtest

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Server starts a NATS server with JetStream that listens nowhere; it ends
// with the test.
func Server(t testing.TB) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		ServerName: "test", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: t.TempDir(), DisableJetStreamBanner: true,
		JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 1 << 30,
	})
	if err != nil {
		t.Fatalf("make the NATS server: %v", err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server is not ready after 10 s")
	}
	return s
}

// Listening starts a NATS server on a free loopback port, for programs that
// connect by an address; user and password may be empty.
func Listening(t testing.TB, user, password string) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		ServerName: "test", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		Username: user, Password: password,
	})
	if err != nil {
		t.Fatalf("make the NATS server: %v", err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server is not ready after 10 s")
	}
	return s
}

// Conn connects to s inside the process; it is closed with the test.
func Conn(t testing.TB, s *server.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	opts = append([]nats.Option{nats.InProcessServer(s), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1)}, opts...)
	nc, err := nats.Connect("", opts...)
	if err != nil {
		t.Fatalf("connect to the NATS server: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

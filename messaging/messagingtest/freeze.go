package messagingtest

import (
	"net"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// FreezableConn is like Conn; freeze makes it neither read nor write any more,
// as if its process were stopped, until the test ends.
func FreezableConn(t testing.TB, s *server.Server) (nc *nats.Conn, freeze func()) {
	t.Helper()
	ice := &ice{server: s, frozen: make(chan struct{}), thawed: make(chan struct{})}
	nc, err := nats.Connect("", nats.InProcessServer(ice), nats.NoReconnect())
	if err != nil {
		t.Fatalf("connect to the NATS server: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc, sync.OnceFunc(func() {
		close(ice.frozen)
		t.Cleanup(func() { close(ice.thawed) }) // before what was registered earlier ends
	})
}

type ice struct {
	server *server.Server
	frozen chan struct{}
	thawed chan struct{}
}

func (i *ice) InProcessConn() (net.Conn, error) {
	c, err := i.server.InProcessConn()
	return &iceConn{Conn: c, ice: i}, err
}

type iceConn struct {
	net.Conn
	ice *ice
}

func (c *iceConn) wait() {
	select {
	case <-c.ice.frozen:
		<-c.ice.thawed
	default:
	}
}

func (c *iceConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wait()
	return n, err
}

func (c *iceConn) Write(b []byte) (int, error) {
	c.wait()
	return c.Conn.Write(b)
}

package e2btest

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"shoal/e2b/e2btest/envd"
)

// Daemon starts a machine without a control plane and returns the address of
// its daemon, which accepts token. It ends with the test.
func (s *Server) Daemon(t testing.TB, token string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := s.cfg.Backend.machine(ctx, newID(), envd.Config{
		Token: token, DefaultUser: s.cfg.DefaultUser, Workdir: s.cfg.Workdir, Env: s.cfg.Env,
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() { splice(l, m, &all) })
	t.Cleanup(func() {
		_ = l.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := m.destroy(ctx); err != nil {
			t.Errorf("destroy a machine: %v", err)
		}
		all.Wait()
	})
	return "http://" + l.Addr().String()
}

// splice passes connections on as they are, byte by byte.
func splice(l net.Listener, m machine, all *sync.WaitGroup) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := m.dial(context.Background())
		if err != nil {
			_ = in.Close()
			continue
		}
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			all.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				_, _ = pair[0].Close(), pair[1].Close()
			})
		}
	}
}

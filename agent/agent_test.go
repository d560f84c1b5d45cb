package agent_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"shoal/agent"
	"shoal/agent/files"
	"shoal/agent/host"
	"shoal/agent/threads"
	"shoal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// box is a server of plain processes and what attaches to it.
type box struct {
	t      *testing.T
	server *agent.Server
	dir    string
}

func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{t: t, dir: t.TempDir()}
	f, err := files.New(files.Config{Threads: threads.Self{}, Workspace: b.dir, Skills: b.dir + "/skills", SkillsWrite: b.dir + "/skills"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.NewUnhardened(b.dir, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Run(ctx)
	}()
	b.server, err = agent.NewServer(agent.ServerConfig{Host: h, Home: b.dir, SpecFile: b.dir + "/spec"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.server.Close()
		stop()
		<-done
	})
	return b
}

// connect opens a session over a pipe.
func (b *box) connect(cfg agent.ClientConfig) *agent.Session {
	b.t.Helper()
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		b.server.ServeConn(theirs)
	}()
	s, err := agent.Connect(b.t.Context(), ours, cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = s.Close()
		<-served
	})
	return s
}

// attach connects and claims with the next epoch.
func (b *box) attach() *agent.Session {
	b.t.Helper()
	s := b.connect(agent.ClientConfig{})
	h := s.Hello()
	if _, err := s.Claim(b.t.Context(), agent.Claim{Boot: h.Boot, Epoch: h.Epoch + 1}); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// start starts a shell command.
func start(t *testing.T, s *agent.Session, c sandbox.Command) *agent.Stream {
	t.Helper()
	st, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

func shell(script string) sandbox.Command {
	return sandbox.Command{ID: sandbox.CommandID(sandbox.NewID()), Shell: script}
}

// collected is everything that a stream said.
type collected struct {
	out, err string
	gaps     int64
	end      *sandbox.End
}

// drain reads and acknowledges a stream to its end.
func drain(t *testing.T, st *agent.Stream) collected {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	var c collected
	for {
		e, err := st.Recv(ctx)
		if err != nil {
			t.Fatalf("after %d + %d bytes: %v", len(c.out), len(c.err), err)
		}
		switch e.Kind {
		case agent.EventOutput:
			if e.Stream == sandbox.Stdout {
				c.out += string(e.Data)
			} else {
				c.err += string(e.Data)
			}
			if err := st.Ack(ctx, e.Offset+int64(len(e.Data))); err != nil {
				t.Fatal(err)
			}
		case agent.EventGap:
			c.gaps += e.Bytes
		case agent.EventEnd:
			c.end = e.End
			if err := st.AckEnd(ctx, e.Offset); err != nil {
				t.Fatal(err)
			}
			if _, err := st.Recv(ctx); !errors.Is(err, io.EOF) {
				t.Fatalf("after the end: %v", err)
			}
			return c
		}
	}
}

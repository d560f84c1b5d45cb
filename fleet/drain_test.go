package fleet_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/fleet"
	"shoal/kv"
	"shoal/sandbox"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// A worker that drains waits for open connections for most of its time, then
// cuts them, says how many, and hands their sandbox over all the same.
func TestDrainCutsWhatOutlastsIt(t *testing.T) {
	t.Parallel()
	var log lines
	r := newRig(t, 0, func(c *fleet.Config) {
		c.DrainFor, c.Log = 3*time.Second, slog.New(slog.NewTextHandler(&log, nil))
	})
	_, stop := r.worker()
	box := r.create("d")
	// The loopback of such a sandbox is this machine's.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := r.client.Dial(t.Context(), box, l.Addr().(*net.TCPAddr).Port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	inside, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	if _, err := inside.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	r.worker() // the heir
	began := time.Now()
	stop()
	if d := time.Since(began); d < time.Second || d > 15*time.Second {
		t.Errorf("the drain of 3 s took %s", d)
	}
	if !strings.Contains(log.String(), `msg="connections that outlast the drain are cut"`) || !strings.Contains(log.String(), "connections=1") {
		t.Errorf("the log does not tell the cut connection:\n%s", log.String())
	}
	if _, err := io.ReadAll(conn); err == nil {
		t.Error("the connection that was cut looks as if its other end had closed it")
	}
	if got := r.run(box, "echo on"); got != "on\n" {
		t.Fatalf("at the heir: %q", got)
	}
}

// Without another worker the sandbox has no owner after a drain; its commands
// run on, and the next worker and the waiting client find them.
func TestDrainWithoutAPeer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, nil)
	_, stop := r.worker()
	box := r.create("d")
	p, err := r.client.Exec(t.Context(), box, sandbox.Command{Shell: "for i in $(seq 1 60); do echo $i; sleep 0.05; done"})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	store := r.records()
	e, err := store.Handles.Get(t.Context(), kv.HandleKey("main", box.Sandbox))
	if err != nil || e.Value.Owner != "" || e.Value.State != kv.Running {
		t.Fatalf("owner %q, %s, %v", e.Value.Owner, e.Value.State, err)
	}
	r.worker()
	var out strings.Builder
	end, err := p.Copy(t.Context(), &out, &out)
	if err != nil || end.Code == nil || *end.Code != 0 || strings.Count(out.String(), "\n") != 60 || p.Lost() != 0 {
		t.Fatalf("end %+v with %d lines, %v", end, strings.Count(out.String(), "\n"), err)
	}
}

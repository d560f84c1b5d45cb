package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"github.com/nats-io/nats.go"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/messaging"
	"shoal/sandbox"
)

// tripwire carries a worker's connections to a server and cuts them when the
// worker says something: what it said is passed on first, or is not.
type tripwire struct {
	listener net.Listener
	dial     func() (net.Conn, error)
	pass     bool

	mu    sync.Mutex
	words []string      // guarded by mu: all of them trip it; none = nothing does
	hit   func()        // guarded by mu
	over  chan struct{} // closed when it was hit
}

func newTripwire(t *testing.T, listen, target string, pass bool) *tripwire {
	t.Helper()
	network := "tcp"
	if strings.HasPrefix(target, "/") {
		network = "unix"
	}
	l, err := net.Listen(network, listen)
	if err != nil {
		t.Fatal(err)
	}
	w := &tripwire{listener: l, pass: pass, over: make(chan struct{}), dial: func() (net.Conn, error) { return net.Dial(network, target) }}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { w.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait() // the worker has ended, and its connections with it
	})
	return w
}

func (w *tripwire) arm(hit func(), words ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.words, w.hit = words, hit
}

func (w *tripwire) serve(worker net.Conn) {
	defer worker.Close()
	server, err := w.dial()
	if err != nil {
		return
	}
	defer server.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer worker.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if _, werr := worker.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	})
	w.carry(server, worker)
	_ = server.Close()
	wg.Wait()
}

// carry copies what the worker says, and looks at it with what came before.
func (w *tripwire) carry(server, worker net.Conn) {
	buf := make([]byte, 64<<10)
	var seen []byte
	for {
		n, err := worker.Read(buf)
		seen = append(seen, buf[:n]...)
		hit := w.trips(seen)
		if hit == nil || w.pass {
			if _, werr := server.Write(buf[:n]); werr != nil {
				return
			}
		}
		if hit != nil {
			time.Sleep(20 * time.Millisecond) // what was passed on takes effect
			hit()
		}
		if err != nil || hit != nil {
			return
		}
		seen = seen[max(0, len(seen)-4096):]
	}
}

func (w *tripwire) trips(seen []byte) (hit func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.words) == 0 {
		return nil
	}
	for _, word := range w.words {
		if !bytes.Contains(seen, []byte(word)) {
			return nil
		}
	}
	w.words = nil
	kill := w.hit
	return func() {
		kill()
		close(w.over)
	}
}

// crashes are the steps of a claim after which its worker is killed.
var crashes = []struct {
	name   sandbox.Name
	engine bool // it is what the engine is told, otherwise the records
	pass   bool
	words  []string
}{
	{"claimed", false, true, []string{`"state":"claimed"`}},
	{"creating", false, true, []string{`"state":"creating"`, `"pool":"`}},
	{"unnamed", true, false, []string{"/rename?name="}},
	{"told", true, true, []string{"CRASH-told"}},
	{"running", false, true, []string{`"state":"running"`, `"pool":"`}},
}

// A worker that is killed between two steps of a claim leaves one sandbox or
// none: the create's repeat gets it or another, nothing is left of the rest.
func TestKilledWhileClaiming(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	nc, err := nats.Connect(f.bus.url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	wires := make([]*tripwire, len(crashes))
	for i, c := range crashes {
		socket := filepath.Join(t.TempDir(), "engine.sock")
		engine := newTripwire(t, socket, strings.TrimPrefix(dockertest.Endpoint(), "unix://"), c.pass)
		records := newTripwire(t, "127.0.0.1:0", fmt.Sprintf("127.0.0.1:%d", f.bus.port), c.pass)
		p := f.add("--nats-url", "nats://"+records.listener.Addr().String(), "--docker-endpoint", "unix://"+socket,
			"--warm", "1", "--memory-mb", "256", "--pids", "256", "--sweep-grace", "10m") // what the others leave is not theirs to remove
		wires[i] = records
		if c.engine {
			wires[i] = engine
		}
		var id messaging.WorkerID
		eventually(t, 60*time.Second, "the worker has made a sandbox ahead", func() (err error) {
			id, err = f.warm(p)
			return err
		})
		wires[i].arm(p.kill, c.words...)
		if err := nc.PublishMsg(createMsg("at."+string(id)+".create", c.name, nc.NewInbox())); err != nil {
			t.Fatal(err)
		}
	}
	for i, w := range wires {
		select {
		case <-w.over:
		case <-time.After(60 * time.Second):
			t.Fatalf("the worker to be killed at %q never came so far", crashes[i].name)
		}
	}
	f.workers = nil
	f.add("--memory-mb", "256", "--pids", "256")
	f.settle()
	for _, c := range crashes {
		eventually(t, 90*time.Second, "the create is answered", func() error {
			reply, err := nc.RequestMsg(createMsg("create", c.name, ""), 30*time.Second)
			if err != nil {
				return err
			}
			var answer struct {
				Error  *sandbox.Error
				Result struct{ Name sandbox.Name }
			}
			if err := json.Unmarshal(reply.Data, &answer); err != nil {
				return err
			}
			if answer.Error != nil {
				return answer.Error
			}
			return nil
		})
		if got := string(f.run(messaging.Target{Sandbox: c.name}, "echo $MARK").Stdout); got != "CRASH-"+string(c.name)+"\n" {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	eventually(t, 90*time.Second, "nothing else is left", func() error { return f.holds(len(crashes)) })
	for _, c := range crashes {
		if _, err := f.client.Destroy(t.Context(), messaging.Target{Sandbox: c.name}); err != nil {
			t.Error(err)
		}
	}
	dockertest.NothingLeft(t, f.name)
}

// warm returns the id of a worker that has a sandbox ready.
func (f *fleet) warm(p *process) (messaging.WorkerID, error) {
	list, err := f.client.Workers(f.t.Context())
	if err != nil {
		return "", err
	}
	for _, w := range list {
		if w.Warm > 0 && strings.Contains(p.output(), `"worker":"`+string(w.ID)+`"`) {
			return w.ID, nil
		}
	}
	return "", errors.New("not yet")
}

// createMsg is a create in JSON whose request id is its name.
func createMsg(op string, name sandbox.Name, reply string) *nats.Msg {
	m := nats.NewMsg("shoal.v1.main." + op)
	m.Reply = reply
	m.Header.Set("Content-Type", "application/json")
	m.Header.Set("Shoal-Request", "request-"+string(name))
	m.Data = fmt.Appendf(nil, `{"name":%q,"env":{"MARK":"CRASH-%s"}}`, name, name)
	return m
}

// holds reports whether the engine holds n sandboxes of the fleet, none of
// which nobody was given.
func (f *fleet) holds(n int) error {
	c := dockertest.Client(f.t)
	by := filters.NewArgs(filters.Arg("label", docker.LabelFleet+"="+f.name))
	list, err := c.ContainerList(f.t.Context(), container.ListOptions{All: true, Filters: by})
	if err != nil {
		return err
	}
	volumes, err := c.VolumeList(f.t.Context(), volume.ListOptions{Filters: by})
	if err != nil {
		return err
	}
	if len(list) != n || len(volumes.Volumes) != 2*n {
		return fmt.Errorf("%d containers, %d volumes", len(list), len(volumes.Volumes))
	}
	for _, one := range list {
		if strings.Contains(one.Names[0], string(sandbox.PoolTenant)) {
			return fmt.Errorf("%s is left", one.Names[0])
		}
	}
	return nil
}

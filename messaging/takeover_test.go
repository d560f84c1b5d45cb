package messaging_test

import (
	"bytes"
	"testing"
	"time"

	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

// A worker that dies in mid-output is replaced within 1.5 s; nothing is lost
// and nothing comes twice.
func TestWorkerDiesInMidOutput(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(100, 10*time.Millisecond)})
	first := messagingtest.Conn(t, b.ns)
	b.fake.StartWorker(t, first, "w1")
	if info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "box"}); err != nil {
		t.Fatal(err)
	} else {
		b.target = info.Target()
	}
	p, err := b.client.Exec(t.Context(), b.target, sandbox.Command{Shell: "count"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b.fake.StartWorker(t, messagingtest.Conn(t, b.ns), "w2")
	out := &timed{last: time.Now(), before: func(have int) {
		if have > 100 && first.IsConnected() {
			first.Close()
		}
	}}
	end, err := p.Copy(t.Context(), out, nil)
	if err != nil || end.Code == nil || *end.Code != 0 {
		t.Fatalf("%+v, %v", end, err)
	}
	if out.String() != counted(100) {
		t.Fatalf("got %q", out.String())
	}
	if out.longest > 1500*time.Millisecond {
		t.Errorf("%s until the next byte", out.longest)
	}
	t.Logf("%s until the next byte", out.longest)
	if p.Meta().Worker != "w2" || b.fake.Starts() != 1 {
		t.Errorf("served by %s, %d starts", p.Meta().Worker, b.fake.Starts())
	}
}

// timed keeps what is written, and the longest time between two pieces.
type timed struct {
	bytes.Buffer

	before  func(have int) // called before each piece
	last    time.Time
	longest time.Duration
}

func (w *timed) Write(p []byte) (int, error) {
	w.longest = max(w.longest, time.Since(w.last))
	w.last = time.Now()
	w.before(w.Len())
	return w.Buffer.Write(p)
}

// EX-26: a worker whose connection is silent without being closed is given up after
// 3 s.
func TestWorkerStopsInMidOutput(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(60, 100*time.Millisecond)})
	first, freeze := messagingtest.FreezableConn(t, b.ns)
	b.fake.StartWorker(t, first, "w1")
	info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.client.Exec(t.Context(), info.Target(), sandbox.Command{Shell: "count"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b.fake.StartWorker(t, messagingtest.Conn(t, b.ns), "w2")
	out := &timed{last: time.Now(), before: func(have int) {
		if have > 30 {
			freeze()
		}
	}}
	end, err := p.Copy(t.Context(), out, nil)
	t.Logf("%s until the next byte", out.longest)
	// 3 s until it is given up; now and then the queue group hands it the next
	// request or two as well.
	if out.longest > 7*time.Second {
		t.Errorf("%s until the next byte", out.longest)
	}
	if err != nil || end.Code == nil {
		t.Fatalf("%+v, %v", end, err)
	}
	if out.String() != counted(60) || p.Meta().Worker != "w2" {
		t.Fatalf("by %s: %q", p.Meta().Worker, out.String())
	}
}

// The answer to a create is lost: the copy gets it, and there is one sandbox.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"say": say}, "w1")
	b.fake.DropAnswers(messaging.OpCreate, 1)
	b.fake.DropAnswers(messaging.OpExec, 1)
	info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.client.Run(t.Context(), info.Target(), sandbox.Command{Shell: "say"}, messaging.RunOptions{})
	if err != nil || r.Code != 3 || b.fake.Starts() != 1 {
		t.Fatalf("%+v, %v, %d starts", r, err, b.fake.Starts())
	}
}

// Another boot: nothing was started, the library starts once.
func TestRestartedSandbox(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"say": say}, "w1")
	b.fake.Restart("boot2")
	r, err := b.client.Run(t.Context(), b.target, sandbox.Command{Shell: "say"}, messaging.RunOptions{})
	if err != nil || r.Meta.Boot != "boot2" || b.fake.Starts() != 1 {
		t.Fatalf("%+v, %v, %d starts", r, err, b.fake.Starts())
	}
}

// The sandbox restarts under a command: its end was not seen, and nobody
// invents one.
func TestRestartUnderACommand(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(1000, 10*time.Millisecond)})
	first := messagingtest.Conn(t, b.ns)
	b.fake.StartWorker(t, first, "w1")
	info, err := b.client.Create(t.Context(), messaging.CreateRequest{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.client.Exec(t.Context(), info.Target(), sandbox.Command{Shell: "count"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b.fake.StartWorker(t, messagingtest.Conn(t, b.ns), "w2")
	b.fake.Restart("boot2")
	first.Close()
	if _, err := p.Wait(t.Context()); sandbox.CodeOf(err) != sandbox.OutcomeUnknown {
		t.Fatal(err)
	}
}

// The owner binds a start that names no boot; when its answer is lost nobody
// sends it a second time.
func TestUnboundStartIsNotRepeated(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"say": say}, "w1")
	b.fake.Restart("") // no boot to bind to
	c := b.newClient(t)
	b.fake.DropAnswers(messaging.OpExec, 1)
	messaging.Lossy(t, c, func(int) bool { return b.fake.Starts() > 0 })
	_, err := c.Exec(t.Context(), b.target, sandbox.Command{Shell: "say"})
	if sandbox.CodeOf(err) != sandbox.OutcomeUnknown || b.fake.Starts() != 1 {
		t.Fatalf("%v, %d starts", err, b.fake.Starts())
	}
}

// EX-17: messages that are lost on the way are noticed by their offsets and asked for
// again: nothing is missing, nothing comes twice, and the end is there.
func TestLostFrames(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(200, 2*time.Millisecond)}, "w1")
	for _, every := range []int{2, 5, 50} {
		c := b.newClient(t)
		messaging.Lossy(t, c, func(n int) bool { return n > 4 && n < 250 && n%every == 0 })
		p, err := c.Exec(t.Context(), b.target, sandbox.Command{Shell: "count"})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		end, err := p.Copy(t.Context(), &out, nil)
		p.Close()
		if err != nil || end.Code == nil || out.String() != counted(200) {
			t.Fatalf("every %d lost: %d of %d bytes, %+v, %v", every, out.Len(), len(counted(200)), end, err)
		}
	}
	if b.fake.Starts() != 3 {
		t.Errorf("%d starts of 3", b.fake.Starts())
	}
}

// Connections that break again and again, the client's and the worker's, cost
// time and nothing else.
func TestReconnectsInMidOutput(t *testing.T) {
	t.Parallel()
	b := newBed(t, map[string]messagingtest.Program{"count": count(300, 10*time.Millisecond)})
	worker := messagingtest.Conn(t, b.ns, messaging.WorkerConnOptions("w1")...)
	b.fake.StartWorker(t, worker, "w1")
	kernel := messagingtest.Conn(t, b.ns, messaging.ConnOptions("main")...)
	c, err := messaging.NewClient(kernel, messaging.Options{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := c.Create(t.Context(), messaging.CreateRequest{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Exec(t.Context(), info.Target(), sandbox.Command{Shell: "count"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 8 {
			time.Sleep(250 * time.Millisecond)
			if i%2 == 0 {
				_ = kernel.ForceReconnect()
			} else {
				_ = worker.ForceReconnect()
			}
		}
	}()
	var out bytes.Buffer
	end, err := p.Copy(t.Context(), &out, nil)
	<-done
	if err != nil || end.Code == nil || out.String() != counted(300) {
		t.Fatalf("%d of %d bytes, %+v, %v", out.Len(), len(counted(300)), end, err)
	}
	if b.fake.Starts() != 1 {
		t.Errorf("%d starts", b.fake.Starts())
	}
}

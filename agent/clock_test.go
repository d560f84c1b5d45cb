package agent

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"shoal/sandbox"
)

// scripted is a host whose one program writes and ends when the test says so,
// without a process: for what takes minutes.
type scripted struct {
	refusing
	program *scriptedProcess
}

func (s scripted) Start(context.Context, Program) (Process, error) { return s.program, nil }

func (s scripted) Kill(_ context.Context, programs []Process, _ bool) (Killed, error) {
	for range programs {
		s.program.exit(Exit{Signal: int(syscall.SIGKILL)})
	}
	return Killed{Processes: len(programs)}, nil
}

type scriptedProcess struct {
	out, err net.Conn // the program's ends
	mine     [2]net.Conn
	done     chan struct{}
	once     sync.Once
	how      Exit
}

func newScripted() *scriptedProcess {
	p := &scriptedProcess{done: make(chan struct{})}
	p.out, p.mine[0] = net.Pipe()
	p.err, p.mine[1] = net.Pipe()
	return p
}

func (p *scriptedProcess) exit(x Exit) {
	p.once.Do(func() {
		p.how = x
		_, _ = p.out.Close(), p.err.Close()
		close(p.done)
	})
}

type connPipe struct{ net.Conn }

func (connPipe) Pending() int { return 0 }

func (p *scriptedProcess) Pid() int                               { return 7 }
func (p *scriptedProcess) Done() <-chan struct{}                  { return p.done }
func (p *scriptedProcess) Exit() Exit                             { return p.how }
func (p *scriptedProcess) Stdout() Pipe                           { return connPipe{p.mine[0]} }
func (p *scriptedProcess) Stderr() Pipe                           { return connPipe{p.mine[1]} }
func (p *scriptedProcess) Stdin() io.WriteCloser                  { return nil }
func (p *scriptedProcess) Signal(syscall.Signal) error            { return nil }
func (p *scriptedProcess) Resize(sandbox.TTY) error               { return os.ErrInvalid }
func (p *scriptedProcess) Finish(context.Context) (Killed, error) { return Killed{}, nil }
func (p *scriptedProcess) Keep()                                  {}
func (p *scriptedProcess) Kept() bool                             { return false }
func (p *scriptedProcess) Close()                                 { _, _ = p.mine[0].Close(), p.mine[1].Close() }

// inBubble runs fn in fake time with a server that has an owner and one scripted
// command, without a session: yamux pools its timers over all bubbles.
func inBubble(t *testing.T, c sandbox.Command, fn func(t *testing.T, k *command, f *follower)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server, err := NewServer(ServerConfig{Host: scripted{program: newScripted()}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { server.janitor(ctx) })
		owner := &link{server: server}
		server.current = owner
		server.attached.Store(true)
		c.ID, c.Shell = "c", "true"
		k, _, err := server.start(owner, StartRequest{Boot: server.Boot(), Command: c})
		if err != nil {
			t.Fatal(err)
		}
		if err := k.awaitStart(ctx); err != nil {
			t.Fatal(err)
		}
		f, _, err := k.follow(-1, MaxWindow, false)
		if err != nil {
			t.Fatal(err)
		}
		fn(t, k, f)
		server.mu.Lock()
		server.current = nil
		server.mu.Unlock()
		server.Close()
		stop()
		wg.Wait()
	})
}

func program(k *command) *scriptedProcess { return k.process.(*scriptedProcess) }

// awaitEnd waits for a command's end and returns how long that took.
func awaitEnd(k *command) (*sandbox.End, time.Duration) {
	began := time.Now()
	<-k.over
	return k.end, time.Since(began)
}

// TestSilentPrimaryIsDemoted fills the ring of a blocking command and says
// nothing for a minute.
func TestSilentPrimaryIsDemoted(t *testing.T) {
	t.Parallel()
	inBubble(t, sandbox.Command{}, func(t *testing.T, k *command, f *follower) {
		began := time.Now()
		_, _ = program(k).out.Write(make([]byte, 3<<20)) // more than the ring
		if took := time.Since(began); took < silence || took > silence+time.Second {
			t.Errorf("demoted after %v", took)
		}
		if kind, v := f.next(make([]byte, 10)); kind != kindRole || v.(role).Primary {
			t.Errorf("the reader is not told: %v %v", kind, v)
		}
		if kind, v := f.next(make([]byte, 10)); kind != kindGap {
			t.Errorf("no gap is told: %v %v", kind, v)
		}
	})
}

// TestPrimaryThatIsAliveKeepsTheCommandWaiting repeats an old acknowledgement.
func TestPrimaryThatIsAliveKeepsTheCommandWaiting(t *testing.T) {
	t.Parallel()
	inBubble(t, sandbox.Command{}, func(t *testing.T, k *command, f *follower) {
		written := make(chan struct{})
		go func() {
			defer close(written)
			_, _ = program(k).out.Write(make([]byte, 3<<20))
		}()
		for range 40 { // 200 s
			time.Sleep(5 * time.Second)
			f.acknowledge(ack{})
		}
		select {
		case <-written:
			t.Error("the command ran on over what nobody has taken")
		default:
		}
		if oldest := k.info().Oldest; oldest != 0 {
			t.Errorf("%d bytes are lost", oldest)
		}
		program(k).exit(Exit{})
		<-written
	})
}

// TestHoldEndsByItself checks that an owner who died between hold and pause
// leaves no sandbox whose clocks stand still.
func TestHoldEndsByItself(t *testing.T) {
	t.Parallel()
	inBubble(t, sandbox.Command{Timeout: 5000}, func(t *testing.T, k *command, _ *follower) {
		time.Sleep(2 * time.Second)
		s := k.server
		s.mu.Lock()
		s.holdLocked()
		s.mu.Unlock()
		end, took := awaitEnd(k)
		if took = took.Round(100 * time.Millisecond); end.Reason != sandbox.TimedOut || took != 13*time.Second {
			t.Errorf("%+v after %v", end, took)
		}
	})
}

// TestUnacknowledgedEndIsKept checks how long an end waits for its reader, and
// that its id is known a while longer.
func TestUnacknowledgedEndIsKept(t *testing.T) {
	t.Parallel()
	inBubble(t, sandbox.Command{}, func(t *testing.T, k *command, f *follower) {
		s := k.server
		k.unfollow(f)
		program(k).exit(Exit{Code: 3})
		<-k.over
		time.Sleep(keepUnacked - time.Minute)
		if found, err := s.find(t.Context(), "c"); err != nil || *found.end.Code != 3 {
			t.Errorf("before its time: %v", err)
		}
		again := StartRequest{Boot: s.boot, Command: sandbox.Command{ID: "c", Shell: "true"}}
		time.Sleep(time.Minute + 2*janitorPeriod)
		_, _, err := s.start(s.current, again)
		if e := sandbox.AsError(err); e == nil || e.Code != sandbox.Conflict || e.Reason != "ended" {
			t.Errorf("a stale copy: %v", err)
		}
		synctest.Wait()
		s.pool.mu.Lock()
		if s.pool.used != 0 {
			t.Errorf("%d bytes are not given back", s.pool.used)
		}
		s.pool.mu.Unlock()
		time.Sleep(digestsFor + 2*janitorPeriod)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.registry.past.known != nil {
			t.Error("its id is never forgotten")
		}
	})
}

// TestGraceOfADefault is the grace of a foreground command whose client is gone.
func TestGraceOfADefault(t *testing.T) {
	t.Parallel()
	inBubble(t, sandbox.Command{}, func(t *testing.T, k *command, f *follower) {
		time.Sleep(5 * time.Minute)
		k.unfollow(f)
		end, took := awaitEnd(k)
		if took = took.Round(time.Second); end.Reason != sandbox.Disconnected || took != sandbox.DefaultGrace {
			t.Errorf("%+v after %v", end, took)
		}
	})
}

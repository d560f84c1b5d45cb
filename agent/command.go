package agent

import (
	"context"
	"sync"
	"syscall"
	"time"

	"shoal/sandbox"
)

const (
	// drainFor is how long after the main process's end its pipes may stay
	// open before the rest is no longer the command's output.
	drainFor = 50 * time.Millisecond
	// silence is how long a primary reader may say nothing at a full ring.
	silence = 60 * time.Second
)

// cause is why the agent ends a command; the first one counts.
type cause struct {
	reason sandbox.EndReason
	by     string
}

// command is one program from its registration to the end of its record.
type command struct {
	server  *Server
	request sandbox.Command // with defaults; without Input and Env once started
	digest  digest

	started time.Time
	ready   chan struct{} // closed when process or failed is set
	cancel  context.CancelFunc
	over    chan struct{} // closed when end is set

	endAcked bool // guarded by the server's lock

	mu        sync.Mutex // guards what follows
	room      *sync.Cond // the ring has room, or blocking has ended
	process   Process
	failed    error // the start
	cause     *cause
	end       *sandbox.End
	endedAt   time.Time
	ring      ring
	lost      bool      // newest bytes were thrown away: MaxOutput, or no room while draining
	dropping  bool      // the oldest bytes give way now
	draining  bool      // the main process has ended: nothing may wait for a reader
	slack     int       // by how much the ring outgrew its size
	blocked   int       // pumps that wait for room
	heard     time.Time // when the primary last said something
	followers map[*follower]struct{}
	primary   *follower
	input     *stdinQueue
	lastSeq   uint64
	limit     *deadline // the command's time limit
	grace     *deadline // until a command without a client ends
	quiet     *deadline // until a silent primary stops holding the ring
	oomBefore int64
	charged   int // bytes taken from the server's pool; fixed from the end on
}

func newCommand(s *Server, c sandbox.Command, d digest) *command {
	k := &command{
		server:    s,
		request:   c,
		digest:    d,
		started:   time.Now(),
		ready:     make(chan struct{}),
		over:      make(chan struct{}),
		followers: map[*follower]struct{}{},
		ring:      ring{size: ringLeast},
		charged:   ringLeast,
		dropping:  c.Overflow == sandbox.OverflowDrop,
	}
	k.room = sync.NewCond(&k.mu)
	return k
}

// run starts the program and sees it through to its end.
func (k *command) run(ctx context.Context) {
	process, err := k.launch(ctx)
	if err != nil && ctx.Err() != nil {
		err = sandbox.Errorf(sandbox.StartFailed, "it was killed while it started").Because("killed").Wrap(err)
	}
	k.mu.Lock()
	k.process, k.failed = process, err
	k.request.Env, k.request.Input = nil, nil
	k.mu.Unlock()
	if err != nil {
		k.server.startFailed(k)
	}
	close(k.ready)
	if err != nil {
		close(k.over)
		return
	}
	k.supervise(process)
}

func (k *command) launch(ctx context.Context) (Process, error) {
	k.oomBefore = k.server.host.OOMKills()
	c := k.request
	argv := c.Argv
	if c.Shell != "" {
		argv = []string{"/bin/bash", "-c", c.Shell}
	}
	process, err := k.server.host.Start(ctx, Program{
		Argv:  argv,
		Env:   k.server.environment(c),
		Dir:   c.Cwd,
		Stdin: c.Stdin == sandbox.StdinStream || len(c.Input) > 0,
		TTY:   c.TTY,
	})
	if err != nil {
		return nil, err
	}
	k.prepare(process, c)
	return process, nil
}

// prepare sets what must be there before anybody sees the process.
func (k *command) prepare(process Process, c sandbox.Command) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.started = time.Now()
	if in := process.Stdin(); in != nil {
		k.input = newStdinQueue(in, k.inputChanged)
		switch {
		case len(c.Input) > 0:
			k.input.whole(c.Input)
		case c.Stdin != sandbox.StdinStream: // a terminal that nobody types on
			k.input.finish(0, c.TTY != nil)
		}
		k.server.wg.Go(k.input.feed)
	}
	if c.Timeout > 0 {
		k.limit = k.server.clock.after(c.Timeout.Duration(), func() { k.stop(cause{reason: sandbox.TimedOut}) })
	}
	k.watchClientLocked()
}

// supervise waits for the end of the main process, drains its output, ends
// what a foreground command left behind, and says the last word.
func (k *command) supervise(p Process) {
	var pumps sync.WaitGroup
	held := make(chan Pipe, 2)
	pump := func(stream sandbox.Stream, pipe Pipe) {
		pumps.Go(func() {
			if !k.pump(stream, pipe) {
				held <- pipe
			}
		})
	}
	pump(sandbox.Stdout, p.Stdout())
	if e := p.Stderr(); e != nil {
		pump(sandbox.Stderr, e)
	}
	<-p.Done()
	k.drain(p)
	pumps.Wait()
	close(held)

	var left Killed
	if k.request.Background {
		p.Keep()
	} else {
		left = k.server.finishTree(k, p)
	}
	k.seal()
	k.server.ended(k, p, func() { k.finishLocked(p.Exit(), left.Survivors, len(held) > 0) })
	for pipe := range held {
		_ = pipe.SetReadDeadline(time.Time{})
		pumps.Go(func() { discardAll(pipe) })
	}
	pumps.Wait()
	p.Close()
}

// drain bounds the rest of the output: what is in the pipes now and what comes
// within drainFor.
func (k *command) drain(p Process) {
	k.mu.Lock()
	k.draining = true
	k.room.Broadcast()
	k.mu.Unlock()
	at := time.Now().Add(drainFor)
	_ = p.Stdout().SetReadDeadline(at)
	if e := p.Stderr(); e != nil {
		_ = e.SetReadDeadline(at)
	}
}

// stop ends the command's processes for a reason. It does not wait.
func (k *command) stop(c cause) {
	if !k.blame(c) {
		return
	}
	k.server.wg.Go(func() {
		<-k.ready
		k.mu.Lock()
		p := k.process
		k.mu.Unlock()
		if p != nil {
			k.server.killTree(k, p)
		}
	})
}

// blame notes why the command is being ended. It reports false when it has
// ended already.
func (k *command) blame(c cause) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.end != nil {
		return false
	}
	if k.cause == nil {
		k.cause = &c
	}
	return true
}

// seal gives back the room that the kept output does not need.
func (k *command) seal() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ring.seal()
	k.server.pool.give(k.charged - k.ring.kept())
	k.charged = k.ring.kept()
}

// finishLocked writes the end and tells the readers.
func (k *command) finishLocked(x Exit, survivors []int, held bool) {
	for _, d := range []*deadline{k.limit, k.grace, k.quiet} {
		d.stop()
	}
	if k.input != nil {
		k.input.kill()
		_ = k.input.w.Close() // wakes a write that waits
	}
	k.end = k.outcomeLocked(x)
	k.end.Survivors, k.end.Held = survivors, held
	k.endedAt = time.Now()
	close(k.over)
	k.wakeLocked()
}

func (k *command) outcomeLocked(x Exit) *sandbox.End {
	e := &sandbox.End{
		Truncated:  k.lost,
		Bytes:      k.ring.next,
		CPU:        sandbox.Milliseconds(x.CPU / time.Millisecond),
		PeakMemory: x.PeakMemory,
		Duration:   sandbox.Milliseconds(time.Since(k.started) / time.Millisecond),
		Signal:     x.Signal,
	}
	switch {
	case x.Signal == 0 && (k.cause == nil || k.cause.reason != sandbox.Suspended):
		// It exited by itself, be it in the moment when it was to be killed.
		e.Reason, e.Code = sandbox.Exited, new(x.Code)
	case k.cause != nil:
		e.Reason, e.By = k.cause.reason, k.cause.by
	case x.Signal == int(syscall.SIGKILL) && k.server.host.OOMKills() > k.oomBefore:
		e.Reason = sandbox.OutOfMemory
	default:
		e.Reason = sandbox.Signaled
	}
	return e
}

// info describes the command.
func (k *command) info() sandbox.CommandInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.infoLocked()
}

func (k *command) infoLocked() sandbox.CommandInfo {
	i := sandbox.CommandInfo{
		ID:         k.request.ID,
		State:      sandbox.CommandRunning,
		Tag:        k.request.Tag,
		Background: k.request.Background,
		KeepAwake:  k.request.KeepAwake,
		TTY:        k.request.TTY != nil,
		Started:    k.started,
		Oldest:     k.ring.start,
		Next:       k.ring.next,
	}
	i.Shell, i.Argv = preview(k.request)
	if k.process != nil {
		i.Pid = k.process.Pid()
	}
	if k.end != nil {
		i.State = sandbox.CommandEnded
		i.End = new(*k.end)
	}
	return i
}

// previewBytes is how much of a command line lists show: the list of all
// commands has to fit a frame.
const previewBytes = 160

func preview(c sandbox.Command) (shell string, argv []string) {
	if c.Shell != "" {
		return cut(c.Shell, previewBytes), nil
	}
	left := previewBytes
	for _, a := range c.Argv {
		if left <= 0 {
			return "", append(argv, "…")
		}
		argv = append(argv, cut(a, left))
		left -= len(a) + 1
	}
	return "", argv
}

// cut returns at most n bytes of s, whole characters, marked when shortened.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

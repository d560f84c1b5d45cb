package envd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	// outputChunk is the most output of one event, before base64.
	outputChunk = 32 << 10
	// subscriberBuffer is how many events wait for a slow reader before the
	// process's pipe fills.
	subscriberBuffer = 64
	// lastWords is how long a signalled process's own last output is read.
	lastWords = 20 * time.Millisecond
	// retention is how long the end of a process can be asked for.
	retention = 30 * time.Second
)

// processConfig is a process as requests and lists write it.
type processConfig struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

// The events of a process stream.
type (
	message struct {
		Event any `json:"event"`
	}
	startEvent struct {
		Start struct {
			PID int `json:"pid"`
		} `json:"start"`
	}
	dataEvent struct {
		Data struct {
			Stdout []byte `json:"stdout,omitempty"`
			Stderr []byte `json:"stderr,omitempty"`
		} `json:"data"`
	}
	keepaliveEvent struct {
		Keepalive struct{} `json:"keepalive"`
	}
	endEvent struct {
		End ending `json:"end"`
	}
	ending struct {
		ExitCode int    `json:"exitCode,omitempty"`
		Exited   bool   `json:"exited,omitempty"`
		Status   string `json:"status"`
		Error    string `json:"error,omitempty"`
	}
)

// proc is one process. It stays listed until its output has ended: until every
// descendant has closed the pipes, or a signal was sent through the daemon.
type proc struct {
	config processConfig
	tag    *string
	number int // in the order of starts
	cmd    *exec.Cmd

	first     chan any      // the events for who started it
	exited    chan struct{} // the main process is dead
	signalled chan struct{} // a kill makes the end not wait for the pipes
	done      chan struct{} // end is set

	mu       sync.Mutex
	stdin    io.WriteCloser // nil when disabled or closed
	subs     map[chan any]struct{}
	end      ending
	ended    bool
	sigOnce  sync.Once
	exitNote ending
}

// wrapper is what the daemon runs every command through: the pid becomes the
// command's, and a missing one is the shell's complaint, not an error.
const wrapper = `echo 100 > /proc/$$/oom_score_adj 2>/dev/null; exec nice -n 0 "$@"`

// launch starts a process. With stdin it gets a pipe, else /dev/null.
func launch(c processConfig, env []string, dir string, cred *syscall.Credential, stdin bool) (*proc, error) {
	cmd := exec.Command("/bin/sh", append([]string{"-c", wrapper, "--", c.Cmd}, c.Args...)...) // they outlive the requests that start them
	cmd.Env, cmd.Dir = env, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	p := &proc{
		config: c, cmd: cmd, first: make(chan any, subscriberBuffer), subs: map[chan any]struct{}{},
		exited: make(chan struct{}), signalled: make(chan struct{}), done: make(chan struct{}),
	}
	p.subs[p.first] = struct{}{}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		_, _ = outR.Close(), outW.Close()
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = outW, errW
	if stdin {
		err = p.openStdin()
	}
	if err == nil {
		err = cmd.Start()
	}
	_, _ = outW.Close(), errW.Close()
	if err != nil {
		_, _ = outR.Close(), errR.Close()
		return nil, err
	}
	p.watch(outR, errR)
	return p, nil
}

// openStdin makes the pipe by hand: exec's own would be closed by Wait, which
// here runs before the output has ended.
func (p *proc) openStdin() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	p.cmd.Stdin, p.stdin = r, w
	return nil
}

// watch reads the output and notes the end; its goroutines end with the process
// and its pipes.
func (p *proc) watch(outR, errR *os.File) {
	if r, ok := p.cmd.Stdin.(*os.File); ok {
		_ = r.Close()
	}
	var pipes sync.WaitGroup
	pipes.Go(func() { p.copy(outR, func(d *dataEvent, b []byte) { d.Data.Stdout = b }) })
	pipes.Go(func() { p.copy(errR, func(d *dataEvent, b []byte) { d.Data.Stderr = b }) })
	drained := make(chan struct{})
	go func() {
		pipes.Wait()
		close(drained)
	}()
	go func() {
		p.exitNote = describe(p.cmd.Wait())
		close(p.exited)
	}()
	go func() {
		<-p.exited
		select {
		case <-drained:
		case <-p.signalled:
			select {
			case <-drained: // what it printed last
			case <-time.After(lastWords):
			}
			_, _ = outR.Close(), errR.Close()
		}
		p.finish()
	}()
}

// copy passes output on, chunk by chunk.
func (p *proc) copy(r *os.File, set func(*dataEvent, []byte)) {
	defer r.Close()
	buf := make([]byte, outputChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			var d dataEvent
			set(&d, append([]byte(nil), buf[:n]...))
			p.publish(d)
		}
		if err != nil {
			return
		}
	}
}

// publish waits for every subscriber: a slow one blocks the process.
func (p *proc) publish(ev any) {
	p.mu.Lock()
	subs := make([]chan any, 0, len(p.subs))
	for c := range p.subs {
		subs = append(subs, c)
	}
	p.mu.Unlock()
	for _, c := range subs {
		for sent := false; !sent; {
			select {
			case c <- ev:
				sent = true
			case <-p.done:
				return
			case <-time.After(50 * time.Millisecond):
				p.mu.Lock()
				_, still := p.subs[c]
				p.mu.Unlock()
				sent = !still
			}
		}
	}
}

// subscribe returns the events from now on; the channel is closed at the end.
func (p *proc) subscribe() chan any {
	c := make(chan any, subscriberBuffer)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.subs[c] = struct{}{}
	}
	return c
}

func (p *proc) unsubscribe(c chan any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.subs, c)
}

func (p *proc) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end, p.ended = p.exitNote, true
	if p.stdin != nil {
		_ = p.stdin.Close()
		p.stdin = nil
	}
	close(p.done)
}

// signal sends sig to the direct process only and makes the end not wait for
// descendants that hold the pipes.
func (p *proc) signal(sig os.Signal) {
	select {
	case <-p.exited: // dead but listed: its number may be somebody else's
	default:
		_ = p.cmd.Process.Signal(sig)
	}
	p.sigOnce.Do(func() { close(p.signalled) })
}

// describe writes an end as the daemon does: Go's words for signals, -1 for
// their code, and nothing for zero.
func describe(err error) ending {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return ending{Exited: true, Status: "exit status 0"}
	case errors.As(err, &exit):
		text := exit.ProcessState.String()
		return ending{ExitCode: exit.ExitCode(), Exited: exit.Exited(), Status: text, Error: text}
	default:
		return ending{ExitCode: -1, Status: fmt.Sprint(err), Error: fmt.Sprint(err)}
	}
}

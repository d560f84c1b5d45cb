package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"shoal/agent"
	"shoal/sandbox"
)

const (
	// probeTime bounds all probes.
	probeTime = 20 * time.Second
	drainTime = 100 * time.Millisecond
)

// probe is what a command of the sandbox finds and can do, a fact a line. It
// uses what bash has built in and forks for unshare alone: every create waits
// for it.
const probe = `
while read -r k v; do
	case $k in Uid:|Gid:|Groups:|Cap*:|NoNewPrivs:|Seccomp:) echo "$k" $v;; esac
done < /proc/self/status
try() { if "${@:2}" 2>/dev/null; then echo "$1: yes"; else echo "$1: no"; fi; }
touches() { : < "$1"; }
makes() { : >> "$1"; }
n=3; while [ $n -lt 64 ]; do [ -L /proc/self/fd/$n ] && echo "descriptor: $n"; n=$((n+1)); done
printf 'umask: '; umask
printf 'core: '; ulimit -Hc
echo "cwd: $PWD"
try signal kill -0 $AGENT
try memory touches /proc/$AGENT/mem
try programs cd /opt/shoal
try sockets cd /run/shoal
try skills makes /skills/.probe
if : >> /dev/stderr; then echo "stderr: yes"; else echo "stderr: no"; fi
try namespace unshare --user true
try root makes /etc/passwd
exit 0
`

// terminalProbe looks at the terminal of a command that has one.
const terminalProbe = `if : > /proc/self/fd/0; then echo "terminal: yes"; else echo "terminal: no"; fi`

// promise is one line of the self-test.
type promise struct {
	name  string
	fact  string
	holds func(fact string, f *facts) bool
}

// facts is what a probe said; a fact that was said more than once has the last
// value.
type facts struct {
	values map[string]string
	mark   int
}

func is(want ...string) func(string, *facts) bool {
	return func(fact string, _ *facts) bool { return slices.Contains(want, fact) }
}

// shown accepts also that the kernel does not show the fact: gVisor (2022) has
// no such line.
func shown(want ...string) func(string, *facts) bool { return is(append(want, "")...) }

const noCapabilities = "0000000000000000"

// promises are what a sandbox must give a command, whatever the engine is.
var promises = []promise{
	{"commands are the sandbox's user", "Uid", is("1000 1000 1000 1000")},
	{"commands are in the user's group", "Gid", is("1000 1000 1000 1000")},
	{"commands carry their mark alone", "Groups", func(fact string, f *facts) bool { return fact == strconv.Itoa(f.mark) }},
	{"commands inherit no capability", "CapInh", is(noCapabilities)},
	{"commands are permitted no capability", "CapPrm", is(noCapabilities)},
	{"commands have no effective capability", "CapEff", is(noCapabilities)},
	{"commands have no ambient capability", "CapAmb", shown(noCapabilities)},
	{"commands gain no privileges", "NoNewPrivs", shown("1")},
	{"commands are filtered", "Seccomp", shown("2")},
	{"commands inherit no descriptor", "descriptor", is("")},
	{"files are made with umask 022", "umask", is("0022")},
	{"commands dump no core", "core", is("0")},
	{"commands start where they were told", "cwd", is("/")},
	{"the agent cannot be signalled", "signal", is("no")},
	{"the agent's memory cannot be read", "memory", is("no")},
	{"the agent's programs are shut", "programs", is("no")},
	{"the agent's socket is shut", "sockets", is("no")},
	{"/skills is not the user's to write", "skills", is("no")},
	{"system files are not the user's to write", "root", is("no")},
	{"standard error can be opened again", "stderr", is("yes")},
	{"no new namespace can be made", "namespace", is("no")},
	{"a terminal can be opened again", "terminal", is("yes")},
}

// SelfTest runs two commands as any other and compares what they find with what
// a sandbox promises. The error names each promise that does not hold; the agent
// must then not serve.
func (h *Host) SelfTest(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, probeTime)
	defer stop()
	f := facts{values: map[string]string{}}
	var said, saidOfTerminal string
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		said, f.mark, err = h.ask(gctx, probe, nil)
		return err
	})
	g.Go(func() (err error) {
		if saidOfTerminal, _, err = h.ask(gctx, terminalProbe, &sandbox.TTY{Rows: 24, Cols: 80}); err != nil {
			return fmt.Errorf("with a terminal: %w", err)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("self-test: %w", err)
	}
	f.add(said)
	f.add(saidOfTerminal)
	return f.judge()
}

// judge returns an error that names each broken promise.
func (f *facts) judge() error {
	var broken []error
	for _, p := range promises {
		if fact := f.values[p.fact]; !p.holds(fact, f) {
			broken = append(broken, fmt.Errorf("self-test: %s: does not hold, found %q", p.name, fact))
		}
	}
	return errors.Join(broken...)
}

// ask runs a probe and returns what it says, and its mark.
func (h *Host) ask(ctx context.Context, script string, tty *sandbox.TTY) (text string, mark int, err error) {
	p, err := h.Start(ctx, agent.Program{
		Argv: []string{"/bin/bash", "-c", script},
		Env:  []string{"PATH=/usr/bin:/bin", "AGENT=" + strconv.Itoa(os.Getpid())},
		Dir:  "/", TTY: tty,
	})
	if err != nil {
		return "", 0, err
	}
	defer p.Close()
	if own, ok := p.(*process); ok {
		mark = own.mark.Number()
	}
	// A terminal has no end under gVisor (2022), so its program's end must do.
	read := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-p.Done():
			_ = p.Stdout().SetReadDeadline(time.Now().Add(drainTime))
		case <-ctx.Done():
			_ = p.Stdout().SetReadDeadline(time.Now())
		case <-read:
		}
	}()
	said, err := io.ReadAll(io.LimitReader(p.Stdout(), 64<<10))
	close(read)
	<-watching
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return "", 0, fmt.Errorf("read what the probe says: %w", err)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		return "", 0, fmt.Errorf("wait for the probe: %w", context.Cause(ctx))
	}
	_, err = p.Finish(ctx)
	return string(said), mark, err
}

func (f *facts) add(said string) {
	for line := range strings.Lines(said) {
		if key, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			f.values[key] = strings.TrimSpace(value)
		}
	}
}

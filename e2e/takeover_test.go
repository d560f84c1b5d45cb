package e2e_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// ticker is a program that prints numbered lines for a while and then a line
// that sums them up: what arrives can be compared byte by byte.
const ticker = `for i in $(seq 1 %d); do echo "line $i"; sleep 0.02; done; exit 7`

func tickerSum(n int) [sha256.Size]byte {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return sha256.Sum256([]byte(b.String()))
}

// follower reads a command's output, keeps its hash and the time of each piece.
type follower struct {
	sum   hash.Hash
	times []time.Time
}

func (r *follower) Write(p []byte) (int, error) {
	r.times = append(r.times, time.Now())
	return r.sum.Write(p)
}

// gapAfter returns how long after t the next piece came.
func (r *follower) gapAfter(t time.Time) time.Duration {
	i, _ := slices.BinarySearchFunc(r.times, t, time.Time.Compare)
	if i == len(r.times) {
		return time.Hour
	}
	return r.times[i].Sub(t)
}

// takeover follows a command in box while its owner suffers hurt, and returns
// the gap in its output.
func takeover(t *testing.T, f *fleet, box messaging.Target, hurt func(*process)) time.Duration {
	t.Helper()
	const lines = 250
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	p, err := f.client.Exec(ctx, box, sandbox.Command{Shell: fmt.Sprintf(ticker, lines)})
	if err != nil {
		t.Fatal(err)
	}
	victim, _ := f.owner(box)
	hit := make(chan time.Time, 1)
	go func() {
		time.Sleep(1500 * time.Millisecond)
		hit <- time.Now()
		hurt(victim)
	}()
	out := &follower{sum: sha256.New()}
	end, err := p.Copy(ctx, out, out)
	if err != nil {
		t.Fatalf("following: %v", err)
	}
	if got, want := [sha256.Size]byte(out.sum.Sum(nil)), tickerSum(lines); got != want || p.Lost() != 0 {
		t.Fatalf("the output differs (lost %d, %d bytes)", p.Lost(), end.Bytes)
	}
	if end.Code == nil || *end.Code != 7 {
		t.Fatalf("end %+v", end)
	}
	return out.gapAfter(<-hit)
}

func TestTakeoverAfterKill(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	gap := takeover(t, f, f.create(messaging.CreateRequest{}), func(p *process) { p.kill() })
	t.Logf("next byte %s after kill -9", gap)
	if gap > 10*time.Second {
		t.Errorf("the gap is %s", gap)
	}
}

func TestTakeoverAfterStop(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	var stopped *process
	gap := takeover(t, f, f.create(messaging.CreateRequest{}), func(p *process) {
		stopped = p
		p.signal(syscall.SIGSTOP)
	})
	t.Logf("next byte %s after SIGSTOP", gap)
	if gap > 20*time.Second {
		t.Errorf("the gap is %s", gap)
	}
	// The stopped worker comes back and finds that it owns nothing: NK-07.
	stopped.signal(syscall.SIGCONT)
	list, err := f.client.List(t.Context(), messaging.ListRequest{})
	if err != nil || len(list.Sandboxes) == 0 {
		t.Fatalf("list: %v, %v", list, err)
	}
	box := messaging.Target{Sandbox: list.Sandboxes[0].Name}
	for range 20 {
		if r := f.run(box, "echo ok"); string(r.Stdout) != "ok\n" {
			t.Fatalf("after the return: %+v", r)
		}
	}
}

// A worker that drains hands its sandboxes over; a command that runs goes on
// and its client loses nothing.
func TestDrainHandsOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	gap := takeover(t, f, f.create(messaging.CreateRequest{}), func(p *process) { p.signal(syscall.SIGTERM) })
	t.Logf("next byte %s after SIGTERM", gap)
}

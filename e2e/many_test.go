package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// RL-04: 2,000 short and 50 long commands: one terminal message each and no byte
// missing; 8,000 more where the whole length is asked for. In their second half
// the agent and the worker stay as small as they were after the first, and no
// zombie is left.
func TestManyCommands(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	box := f.create(messaging.CreateRequest{Limits: sandbox.Limits{CPU: 2, MemoryMB: 1024, Pids: 512}})
	wg := longCommands(t, f, box, 50)
	shortCommands(t, f, box, 1000)
	wg.Wait()
	worker, agent := f.workers[0].rss(), agentRSS(f, box)
	more := lasting(1000, 9000)
	shortCommands(t, f, box, more)
	s, err := f.client.Stats(t.Context(), box)
	if err != nil || s.Zombies != 0 || s.Running != 0 {
		t.Errorf("after all of them: %+v, %v", s, err)
	}
	workerAfter := f.workers[0].rss()
	t.Logf("worker %d → %d KiB, agent from %d KiB", worker, workerAfter, agent)
	eventually(t, 30*time.Second, "the agent gives back what it needed", func() error {
		n := agentRSS(f, box)
		if t.Logf("agent %d KiB", n); n > 12<<10 {
			t.Errorf("the agent has %d KiB", n)
		}
		if n > agent+2<<10 {
			return fmt.Errorf("it grew from %d to %d KiB with %d commands", agent, n, more)
		}
		return nil
	})
	if workerAfter > worker+64<<10 {
		t.Errorf("the worker grew from %d to %d KiB", worker, workerAfter)
	}
}

// shortCommands runs n commands, some at a time, and checks each.
func shortCommands(t *testing.T, f *fleet, box messaging.Target, n int) {
	t.Helper()
	inParallel(8, n, func(i int) {
		want := fmt.Sprintf("%d\n%s\n", i, strings.Repeat("x", i%97))
		r, err := f.client.Run(t.Context(), box, sandbox.Command{Shell: fmt.Sprintf("echo %d; echo %s", i, strings.Repeat("x", i%97))}, messaging.RunOptions{})
		if err != nil || string(r.Stdout) != want || r.Code != 0 || r.Lost != 0 {
			t.Errorf("command %d: %+v, %v", i, r, err)
		}
	})
}

// longCommands starts n commands that print for a while, and checks each.
func longCommands(t *testing.T, f *fleet, box messaging.Target, n int) *sync.WaitGroup {
	t.Helper()
	const lines = 40
	want := sha256.Sum256([]byte(numbered(lines)))
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			p, err := f.client.Exec(t.Context(), box, sandbox.Command{Shell: fmt.Sprintf(pauses+"for i in $(seq 1 %d); do echo line $i; pause 0.2; done; exit %d", lines, i%100)})
			if err != nil {
				t.Errorf("long command %d: %v", i, err)
				return
			}
			sum := sha256.New()
			end, err := p.Copy(t.Context(), sum, sum)
			if err != nil || end.Code == nil || *end.Code != i%100 || [32]byte(sum.Sum(nil)) != want || p.Lost() != 0 {
				t.Errorf("long command %d: %+v, %v", i, end, err)
			}
		})
	}
	return &wg
}

func numbered(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

// inParallel runs fn for 0 … n-1, so many at a time.
func inParallel(at, n int, fn func(int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range at {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				fn(int(i))
			}
		})
	}
	wg.Wait()
}

// agentRSS reads the agent's memory in KiB, as everybody in the sandbox can.
func agentRSS(f *fleet, box messaging.Target) int64 {
	f.t.Helper()
	time.Sleep(time.Second) // let it give back what it can
	r := f.run(box, "ps -eo rss=,args= | awk '$2 ~ /shoal\\/bin\\/agent$/ {print $1; exit}'")
	n, err := strconv.ParseInt(strings.TrimSpace(string(r.Stdout)), 10, 64)
	if err != nil {
		f.t.Fatalf("the agent's memory: %q, %v", r.Stdout, err)
	}
	return n
}

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
// missing. Then a thousand more, 8,000 where the whole length is asked for: the
// agent and the worker stay as small as they were, and no zombie is left.
func TestManyCommands(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	box := f.create(messaging.CreateRequest{Limits: sandbox.Limits{CPU: 2, MemoryMB: 1024, Pids: 512}})
	wg := longCommands(t, f, box, 50)
	inParallel(8, 2000, func(i int) {
		want := fmt.Sprintf("%d\n%s\n", i, strings.Repeat("x", i%97))
		r, err := f.client.Run(t.Context(), box, sandbox.Command{Shell: fmt.Sprintf("echo %d; echo %s", i, strings.Repeat("x", i%97))}, messaging.RunOptions{})
		if err != nil || string(r.Stdout) != want || r.Code != 0 || r.Lost != 0 {
			t.Errorf("command %d: %+v, %v", i, r, err)
		}
	})
	wg.Wait()
	worker, agent := f.workers[0].rss(), agentRSS(f, box)
	more := lasting(1000, 8000)
	inParallel(8, more, func(i int) {
		if r, err := f.client.Run(t.Context(), box, sandbox.Command{Argv: []string{"true"}}, messaging.RunOptions{}); err != nil || r.Code != 0 {
			t.Errorf("command %d: %+v, %v", i, r, err)
		}
	})
	s, err := f.client.Stats(t.Context(), box)
	if err != nil || s.Zombies != 0 || s.Running != 0 {
		t.Errorf("after all of them: %+v, %v", s, err)
	}
	workerAfter, agentAfter := f.workers[0].rss(), agentRSS(f, box)
	t.Logf("worker %d → %d KiB, agent %d → %d KiB", worker, workerAfter, agent, agentAfter)
	if agentAfter > 12<<10 || agentAfter > agent+2<<10 {
		t.Errorf("the agent grew from %d to %d KiB with %d commands", agent, agentAfter, more)
	}
	if workerAfter > worker+64<<10 {
		t.Errorf("the worker grew from %d to %d KiB", worker, workerAfter)
	}
}

// longCommands starts n commands that print for a while, and checks each.
func longCommands(t *testing.T, f *fleet, box messaging.Target, n int) *sync.WaitGroup {
	t.Helper()
	const lines = 40
	want := sha256.Sum256([]byte(numbered(lines)))
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			p, err := f.client.Exec(t.Context(), box, sandbox.Command{Shell: fmt.Sprintf("for i in $(seq 1 %d); do echo line $i; sleep 0.2; done; exit %d", lines, i%100)})
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

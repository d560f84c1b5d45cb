package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"shoal/egress"
)

// A proxy that decides more than can be told never waits, and what was not
// told is counted.
func TestDecisionsNeverWait(t *testing.T) {
	t.Parallel()
	d := newDecisions()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range decisionsWaiting + 7 {
			d.take(egress.Decision{Verdict: egress.Denied})
		}
		for range 10 {
			d.take(egress.Decision{Verdict: egress.Allowed})
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("a decision waits for somebody to take it")
	}
	if n := d.dropped.Load(); n != 7 || len(d.queue) != decisionsWaiting {
		t.Errorf("%d counted as dropped, %d waiting", n, len(d.queue))
	}
}

func TestRefusalSaysNoMoreThanHostAndPort(t *testing.T) {
	t.Parallel()
	got := refusal(egress.Decision{Verdict: egress.Closed, Rule: "now_unlisted", Host: "a.example", Port: 443, Suppressed: 3})
	if text := fmt.Sprint(got); text != "map[host:a.example port:443 rule:now_unlisted suppressed:3 verdict:closed]" {
		t.Error(text)
	}
	if got := refusal(egress.Decision{Verdict: egress.Denied, Rule: "target"}); strings.Contains(fmt.Sprint(got), "host") {
		t.Error(got)
	}
}

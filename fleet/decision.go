package fleet

import (
	"strconv"
	"sync/atomic"

	"shoal/egress"
	"shoal/messaging"
)

// decisionsWaiting is how many verdicts may wait to be told. The proxy bounds
// them per sandbox already; what does not fit is counted, so that no
// connection ever waits for NATS.
const decisionsWaiting = 1024

// decisions carries verdicts from the proxy's connections to the events.
type decisions struct {
	queue   chan egress.Decision
	dropped atomic.Uint64
}

func newDecisions() *decisions {
	return &decisions{queue: make(chan egress.Decision, decisionsWaiting)}
}

// take is the proxy's; it never waits.
func (d *decisions) take(v egress.Decision) {
	if v.Verdict != egress.Denied && v.Verdict != egress.Closed {
		return // counted by the session, told to nobody
	}
	select {
	case d.queue <- v:
	default:
		d.dropped.Add(1)
	}
}

// tellDecisions publishes what the proxy refused until the worker ends.
func (w *Worker) tellDecisions() {
	for {
		select {
		case <-w.ctx.Done():
			return
		case v := <-w.decisions.queue:
			w.tellDecision(v)
		}
	}
}

func (w *Worker) tellDecision(v egress.Decision) {
	if b := w.find(v.Sandbox); b != nil {
		b.event(messaging.EventDenied, refusal(v))
	}
	if n := w.decisions.dropped.Swap(0); n > 0 {
		w.log.Warn("more egress decisions than can be told; the counters have them all", "dropped", n)
	}
}

// refusal is a verdict as an event tells it: nothing of what was asked beyond
// the host and the port.
func refusal(v egress.Decision) map[string]string {
	data := map[string]string{"verdict": string(v.Verdict), "rule": v.Rule}
	if v.Host != "" {
		data["host"] = v.Host
	}
	if v.Port != 0 {
		data["port"] = strconv.Itoa(int(v.Port))
	}
	if v.Suppressed > 0 {
		data["suppressed"] = strconv.FormatUint(v.Suppressed, 10)
	}
	return data
}

// egressCounts is what a sandbox's session has seen at this worker.
func egressCounts(s egress.Stats) *messaging.EgressCounts {
	return &messaging.EgressCounts{
		Allowed: s.Allowed, Denied: s.Denied, Failed: s.Failed, Closed: s.Closed,
		BytesUp: s.BytesUp, BytesDown: s.BytesDown, Tunnels: s.Tunnels,
	}
}

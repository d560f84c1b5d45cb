package messaging

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"shoal/sandbox"
)

// The bounds of what is remembered of answered requests.
const (
	repeatKept  = 2 * time.Minute
	repeatBytes = 8 << 20
	repeatMost  = 8192
	maxReplies  = 4
)

// repeats recognises copies of a request by its id: while the first runs they
// wait for its answer, afterwards they get the same one. It is not the proof
// that nothing runs twice (that is the record's and the agent's); it saves the
// work and keeps renames and removals from answering a copy "not found".
type repeats struct {
	mu    sync.Mutex // guards the rest
	known map[repeatKey]*repeat
	bytes int
}

type repeatKey struct {
	tenant sandbox.Tenant
	id     string
}

type repeat struct {
	sum     [sha256.Size]byte
	request *Request // while it runs
	failed  *sandbox.Error
	body    []byte
	done    time.Time
}

// tracked: streams and verbs have their own ways to be sent twice.
func (p *repeats) tracked(r *Request) bool {
	return r.ID != "" && !r.about.stream && !r.about.verb && !r.about.fleet && r.Op != ""
}

// begin returns true for a copy, which needs no more work.
func (p *repeats) begin(r *Request) (known bool, err error) {
	if !p.tracked(r) {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key, sum := repeatKey{r.Tenant, r.ID}, r.sum()
	was, ok := p.known[key]
	switch {
	case !ok && len(p.known) >= repeatMost:
		return false, nil // unrecognised copies are allowed, lost requests are not
	case !ok:
		if p.known == nil {
			p.known = map[repeatKey]*repeat{}
		}
		p.known[key] = &repeat{sum: sum, request: r}
		return false, nil
	case was.sum != sum:
		r.ID = "" // the answer must not be taken for that of the first
		return false, sandbox.Errorf(sandbox.Conflict, "the request id was used for another request; choose a new id")
	case was.request == nil:
		r.server.publish(r.message(r.replies[0], was.failed, was.body))
	default:
		was.request.alsoTo(r.replies[0])
	}
	return true, nil
}

func (r *Request) alsoTo(reply string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.replies) < maxReplies && !slices.Contains(r.replies, reply) {
		r.replies = append(r.replies, reply)
	}
}

// finish keeps the answer for later copies and returns where it goes.
// Answers that say "try again" are not kept.
func (p *repeats) finish(r *Request, failed *sandbox.Error, body []byte) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, ok := p.known[repeatKey{r.Tenant, r.ID}]; ok && e.request == r {
		if failed != nil && failed.Retryable() || p.bytes+len(body) > repeatBytes {
			delete(p.known, repeatKey{r.Tenant, r.ID})
		} else {
			e.request, e.failed, e.body, e.done = nil, failed, body, time.Now()
			p.bytes += len(body)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.replies)
}

// drop forgets a request that this worker does not answer.
func (p *repeats) drop(r *Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := repeatKey{r.Tenant, r.ID}
	if e, ok := p.known[key]; ok && e.request == r {
		delete(p.known, key)
	}
}

// forget removes what is too old for a copy to come.
func (p *repeats) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, e := range p.known {
		if e.request == nil && now.Sub(e.done) > repeatKept {
			p.bytes -= len(e.body)
			delete(p.known, key)
		}
	}
}

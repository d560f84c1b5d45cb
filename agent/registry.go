package agent

import (
	"container/list"
	"crypto/sha256"
	"time"

	"shoal/sandbox"
)

const (
	keepUnacked   = 15 * time.Minute // an end that nobody acknowledged
	maxUnacked    = 4096
	keptAcked     = 64      // acknowledged commands kept whole, for logs
	keptBytes     = 2 << 20 // and their output
	digestsFor    = 2 * time.Minute
	maxDigests    = 131072
	janitorPeriod = 5 * time.Second
)

// digest stands for a command id or a request.
type digest [16]byte

func digestOf(b []byte) digest {
	sum := sha256.Sum256(b)
	return digest(sum[:])
}

// digestRequest covers every field of the request.
func digestRequest(c sandbox.Command) (digest, error) {
	var b appender
	if err := encode(&b, c); err != nil {
		return digest{}, err
	}
	return digestOf(b), nil
}

// digests remembers the ids of commands whose end was acknowledged, so that a
// stale copy of their start does not run them again. It belongs to whoever
// holds the registry's lock.
type digests struct {
	known map[digest]struct{}
	queue []forgotten // oldest first, from head on
	head  int
}

type forgotten struct {
	id digest
	at time.Time
}

func (d *digests) add(id digest, now time.Time) {
	if d.known == nil {
		d.known = map[digest]struct{}{}
	}
	if len(d.known) >= maxDigests {
		d.pop()
	}
	d.known[id] = struct{}{}
	d.queue = append(d.queue, forgotten{id, now})
}

func (d *digests) pop() {
	delete(d.known, d.queue[d.head].id)
	d.head++
	if d.head > len(d.queue)/2 {
		d.queue = append(d.queue[:0:0], d.queue[d.head:]...)
		d.head = 0
	}
}

func (d *digests) has(id digest) bool {
	_, ok := d.known[id]
	return ok
}

// expire forgets what is older than digestsFor. A map keeps its room, so an
// empty one is thrown away.
func (d *digests) expire(now time.Time) {
	for d.head < len(d.queue) && now.Sub(d.queue[d.head].at) > digestsFor {
		d.pop()
	}
	if len(d.known) == 0 {
		*d = digests{}
	}
}

// registry knows the commands of one boot. It belongs to whoever holds the
// server's lock.
type registry struct {
	commands  map[sandbox.CommandID]*command // running and ended ones
	running   int
	unacked   int
	ended     *list.List // of *command, oldest end first
	position  map[*command]*list.Element
	ackedN    int
	ackedSize int
	lingering map[*command]Process // ended, with processes that background keeps
	past      digests
}

func newRegistry() registry {
	return registry{
		commands:  map[sandbox.CommandID]*command{},
		ended:     list.New(),
		position:  map[*command]*list.Element{},
		lingering: map[*command]Process{},
	}
}

func (r *registry) add(k *command) {
	r.commands[k.request.ID] = k
	r.running++
}

// failed removes a command that did not start: no phantom stays.
func (r *registry) failed(k *command) {
	delete(r.commands, k.request.ID)
	r.running--
}

// end moves a command to the ended ones.
func (r *registry) end(k *command) {
	r.running--
	r.unacked++
	r.position[k] = r.ended.PushBack(k)
}

// ack notes that a command's end was acknowledged, and forgets the oldest
// acknowledged ones that are too many. The caller gives their memory back.
func (r *registry) ack(k *command, now time.Time) (gone []*command) {
	if r.position[k] == nil || k.endAcked {
		return nil
	}
	k.endAcked = true
	r.unacked--
	r.ackedN++
	r.ackedSize += k.charged
	return r.trim(keptAcked, keptBytes, now)
}

// trim forgets acknowledged commands, oldest end first, until at most n with
// size bytes are left.
func (r *registry) trim(n, size int, now time.Time) (gone []*command) {
	for e := r.ended.Front(); e != nil && (r.ackedN > n || r.ackedSize > size); {
		k := e.Value.(*command) //nolint:forcetypeassert // the list holds nothing else
		e = e.Next()
		if k.endAcked {
			r.forget(k, now)
			gone = append(gone, k)
		}
	}
	return gone
}

// expire forgets ends that are too old, acknowledged or not.
func (r *registry) expire(now time.Time) (gone []*command) {
	for e := r.ended.Front(); e != nil; e = r.ended.Front() {
		k := e.Value.(*command) //nolint:forcetypeassert // the list holds nothing else
		if now.Sub(k.endedAt) < keepUnacked {
			break
		}
		r.forget(k, now)
		gone = append(gone, k)
	}
	r.past.expire(now)
	return gone
}

func (r *registry) forget(k *command, now time.Time) {
	r.ended.Remove(r.position[k])
	delete(r.position, k)
	delete(r.commands, k.request.ID)
	if k.endAcked {
		r.ackedN--
		r.ackedSize -= k.charged
	} else {
		r.unacked--
	}
	r.past.add(digestOf([]byte(k.request.ID)), now)
}

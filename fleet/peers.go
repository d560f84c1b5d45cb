package fleet

import (
	"context"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// peers is what this worker knows of the others, from their presence.
type peers struct {
	mu    sync.Mutex
	known map[messaging.WorkerID]kv.Presence
	// missed pings in a row, of the workers of this engine.
	missed map[messaging.WorkerID]int
	// fresh is what a watch that was built anew has shown until it is synced;
	// until then the former knowledge stands.
	fresh map[messaging.WorkerID]kv.Presence
	// since is from when on this worker hears the others; zero = not yet.
	since time.Time
}

// judges reports whether this worker has heard the others for long enough to
// call one of them dead.
func (p *peers) judges(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.since.IsZero() && now.Sub(p.since) >= settle
}

// deaf starts the time anew from which a worker may judge.
func (p *peers) deaf(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.since.IsZero() {
		p.since = now
	}
}

// apply notes a change of the presences.
func (p *peers) apply(c kv.Change[kv.Presence]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	into := p.known
	if p.fresh != nil {
		into = p.fresh
	}
	switch c.Kind {
	case kv.Reset:
		p.fresh = map[messaging.WorkerID]kv.Presence{}
	case kv.Set:
		into[messaging.WorkerID(c.Entry.Key)] = c.Entry.Value
	case kv.Removed:
		delete(into, messaging.WorkerID(c.Entry.Key))
	case kv.Synced:
		p.known, p.fresh = p.fresh, nil
		p.missed, p.since = map[messaging.WorkerID]int{}, time.Now()
	}
}

// alive reports whether a worker shows its presence.
func (p *peers) alive(id messaging.WorkerID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.known[id]
	return ok && p.missed[id] < missesToDeath
}

// of returns the living workers of an engine that take work, in a random order.
func (p *peers) of(engine string) []messaging.WorkerID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ids []messaging.WorkerID
	for id, presence := range p.known { // map order is random enough
		if presence.Engine == engine && !presence.Draining && presence.Ready && p.missed[id] < missesToDeath {
			ids = append(ids, id)
		}
	}
	return ids
}

// knowsHeirs reports whether the worker id, which drains, has heard so of itself, and
// with it all that was said before, and no worker of its engine is just beginning.
func (p *peers) knowsHeirs(id messaging.WorkerID, engine string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for other, presence := range p.known {
		if presence.Engine == engine && other != id && !presence.Ready && !presence.Draining && p.missed[other] < missesToDeath {
			return false
		}
	}
	return p.known[id].Draining
}

// all returns the presences by id.
func (p *peers) all() map[messaging.WorkerID]kv.Presence {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[messaging.WorkerID]kv.Presence, len(p.known))
	maps.Copy(out, p.known)
	return out
}

// watchPeers follows the presences.
func (w *Worker) watchPeers() {
	_ = w.store.Workers.Watch(w.ctx, ">", w.peers.apply) // ends with ctx only
}

// presenceEvery is how often a worker renews its presence, whose TTL is 10 s
// at least.
const presenceEvery = 3 * time.Second

// keepPresence renews this worker's presence. Losing it costs nothing but
// time: the next renewal writes it anew.
func (w *Worker) keepPresence(ctx context.Context) {
	tick := time.NewTicker(presenceEvery)
	defer tick.Stop()
	for {
		if err := w.showPresence(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("presence not renewed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *Worker) showPresence(ctx context.Context) error {
	e, err := w.store.Workers.Get(ctx, kv.WorkerKey(string(w.id)))
	if err != nil {
		return err
	}
	owned, used := w.usage()
	e.Value = kv.Presence{
		Engine: w.engine, Provider: w.provider.Kind(), Version: w.cfg.Version, Started: w.started,
		Capacity: w.cfg.Capacity, Used: used, Sandboxes: owned, Draining: w.isDraining(), Ready: w.compared(),
		Warm: w.pool.size(),
	}
	return w.store.Workers.Put(ctx, e)
}

// usage sums up the limits of what this worker owns or is about to. The warm
// pool is nobody's; it gives way to what is somebody's.
func (w *Worker) usage() (owned int, used sandbox.Limits) {
	w.mu.Lock()
	all := maps.Clone(w.incoming)
	w.mu.Unlock()
	for _, b := range w.all() {
		rec := b.record()
		if !b.pooled && rec.Owner == string(w.id) && rec.State != kv.Gone && rec.State != "" {
			owned++
			all[b.key] = rec.Handle.Limits
		}
	}
	for _, l := range all {
		used.CPU += l.CPU
		used.MemoryMB += l.MemoryMB
		used.DiskMB += l.DiskMB
		used.Pids += l.Pids
	}
	return owned, used
}

// The times of peer probes.
const (
	probeEvery    = time.Second
	missesToDeath = 2
	// settle is how long after its own (re)connect a worker judges nobody dead.
	settle = 3 * time.Second
	// attachesAtOnce bounds the adoptions after a worker's death.
	attachesAtOnce = 4
)

// probePeers pings the workers of this engine and adopts what the dead owned.
func (w *Worker) probePeers() {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	var connects uint64
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-tick.C:
		}
		if n := w.cfg.Conn.Stats().Reconnects; n != connects || !w.cfg.Conn.IsConnected() {
			connects = n
			w.peers.deaf(time.Now())
		}
		if w.isDraining() || !w.peers.judges(time.Now()) {
			continue // a worker that drains would have to hand over what it adopts
		}
		for _, dead := range w.probe() {
			w.bg.Go(func() { w.inherit(dead) })
		}
	}
}

// probe pings every peer once and returns those that have just been found dead.
func (w *Worker) probe() []messaging.WorkerID {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var dead []messaging.WorkerID
	for id, presence := range w.peers.all() {
		if id == w.id || presence.Engine != w.engine {
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(w.ctx, probeEvery)
			defer cancel()
			var pong messaging.PingAnswer
			if w.peers.heard(id, w.server.Ask(ctx, id, messaging.OpPing, messaging.PingRequest{}, &pong)) {
				mu.Lock()
				dead = append(dead, id)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return dead
}

// heard notes the outcome of a ping; true when the peer is to be judged dead
// just now.
func (p *peers) heard(id messaging.WorkerID, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.known[id]; !known {
		return false
	}
	if err == nil {
		delete(p.missed, id)
		return false
	}
	p.missed[id]++
	return p.missed[id] == missesToDeath
}

// doubt makes the next missed ping count as the peer's death once more.
func (p *peers) doubt(id messaging.WorkerID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.missed[id] >= missesToDeath {
		p.missed[id] = missesToDeath - 1
	}
}

// inherit adopts the running sandboxes of a dead worker that fall to this one,
// those with egress first.
func (w *Worker) inherit(dead messaging.WorkerID) {
	entries, err := w.store.Handles.List(w.ctx, "")
	if err != nil {
		w.log.Warn("a peer is gone and its sandboxes cannot be listed; tried again", "peer", dead, "error", err)
		w.peers.doubt(dead)
		return
	}
	heirs := append(w.peers.of(w.engine), w.id)
	var mine []*kv.Entry[kv.Record]
	for _, e := range entries {
		if e.Value.Owner == string(dead) && e.Value.State == kv.Running && e.Value.Handle.Engine == w.engine && heir(heirs, e.Key) == w.id {
			mine = append(mine, e)
		}
	}
	w.log.Warn("a peer does not answer; adopting its sandboxes", "peer", dead, "sandboxes", len(mine))
	slices.SortStableFunc(mine, func(a, b *kv.Entry[kv.Record]) int {
		return len(b.Value.Egress.Hosts) - len(a.Value.Egress.Hosts)
	})
	g, ctx := errgroup.WithContext(w.ctx)
	g.SetLimit(attachesAtOnce)
	for _, e := range mine {
		g.Go(func() error {
			w.inheritOne(ctx, e)
			return nil
		})
	}
	_ = g.Wait() // never fails; each sandbox speaks for itself
}

func (w *Worker) inheritOne(ctx context.Context, e *kv.Entry[kv.Record]) {
	b := w.box(e.Value.Handle.Tenant, e.Value.Handle.Name)
	err := b.adopt(ctx, e)
	if err == nil {
		_, err = b.attached(ctx, false)
	}
	if err != nil && sandbox.CodeOf(err) != sandbox.Fenced {
		b.log.WarnContext(ctx, "adopting", "error", err)
	}
}

// heir names the worker that a key falls to by rendezvous hashing, so that the
// survivors share the work without asking each other.
func heir(ids []messaging.WorkerID, key string) messaging.WorkerID {
	var best messaging.WorkerID
	var most uint64
	for _, id := range ids {
		h := fnv.New64a()
		_, _ = h.Write([]byte(string(id) + "\x00" + key)) // never fails
		if sum := mix(h.Sum64()); best == "" || sum > most {
			best, most = id, sum
		}
	}
	return best
}

// mix spreads FNV's weak low bits (the finaliser of splitmix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// workers lists the fleet.
func (w *Worker) workers(context.Context, *messaging.Request) (any, error) {
	answer := messaging.WorkersAnswer{Workers: []messaging.WorkerInfo{}}
	for id, p := range w.peers.all() {
		state := "serving"
		switch {
		case p.Draining:
			state = "draining"
		case !p.Ready:
			state = "engine_down"
		}
		answer.Workers = append(answer.Workers, messaging.WorkerInfo{
			ID: id, Provider: p.Provider, Engine: p.Engine, Version: p.Version, Started: p.Started,
			State: state, Sandboxes: p.Sandboxes, Warm: p.Warm, Capacity: p.Capacity, Used: p.Used,
		})
	}
	slices.SortFunc(answer.Workers, func(a, b messaging.WorkerInfo) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return answer, nil
}

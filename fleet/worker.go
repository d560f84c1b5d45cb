package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"shoal/egress"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// Worker serves sandboxes. Make it with [New], run it with [Worker.Run].
type Worker struct {
	cfg      Config
	id       messaging.WorkerID
	log      *slog.Logger
	store    *kv.Store
	provider sandbox.Provider
	caps     sandbox.Capabilities
	server   *messaging.Server
	proxy    *egress.Proxy
	// decisions of the proxy on their way to the events.
	decisions *decisions

	// Set once by Run before anything is served.
	ctx    context.Context //nolint:containedctx // the life of the worker's own goroutines, ended by Run
	engine string          // the engine's id, set once by Run

	// bg owns the goroutines that no request waits for.
	bg sync.WaitGroup

	started time.Time
	clock   steady
	peers   peers
	locks   *lockWatch
	pool    pool

	mu       sync.Mutex
	bucket   string          // guarded by mu: the handle bucket's id
	boxes    map[string]*box // guarded by mu
	draining bool            // guarded by mu
	ready    chan struct{}   // closed when the worker serves
	sound    bool            // guarded by mu: the engine answers and was compared with the records
	failing  error           // guarded by mu: why the engine could not be compared; nil = not yet tried
	looked   chan struct{}   // closed by looking when the first comparison has been tried
	looking  sync.Once
	// incoming are the creates that no record counts yet, by key.
	incoming map[string]sandbox.Limits // guarded by mu
	// admitting makes the look at the capacity and the entry into incoming one
	// step.
	admitting sync.Mutex
	// check asks for a look at the engine before the next sweep is due.
	check chan struct{}
}

// New checks cfg and makes a worker; nothing starts before Run.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, id: cfg.ID, store: cfg.Store, provider: cfg.Provider, caps: cfg.Provider.Capabilities(),
		log: cfg.Log.With("worker", cfg.ID), boxes: map[string]*box{}, locks: newLockWatch(), ready: make(chan struct{}), looked: make(chan struct{}),
		decisions: newDecisions(),
		incoming:  map[string]sandbox.Limits{}, check: make(chan struct{}, 1), clock: newSteady(),
	}
	w.pool.warmer, _ = cfg.Provider.(sandbox.Warmer)
	var err error
	cfg.Proxy.Decisions = w.decisions.take
	if w.proxy, err = egress.NewProxy(cfg.Proxy); err != nil {
		return nil, err
	}
	w.server, err = messaging.NewServer(messaging.Config{
		Conn: cfg.Conn, Worker: cfg.ID, Version: version(cfg.Version), Handler: w.handle,
		CheckReply: cfg.Authenticated, Log: w.log,
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// version returns v as NATS services want it.
func version(v string) string {
	if v == "" {
		return "0.0.0"
	}
	return v
}

// ID returns the worker's id.
func (w *Worker) ID() messaging.WorkerID { return w.id }

// Ready is closed when the worker has begun to serve.
func (w *Worker) Ready() <-chan struct{} { return w.ready }

// Run serves until ctx ends, then drains: no new work, what runs is handed
// over, within Config.DrainFor. It returns when every goroutine has ended.
func (w *Worker) Run(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	shown, hide := context.WithCancel(life)
	defer hide()
	w.ctx, w.started = life, time.Now().UTC()
	w.peers.known, w.peers.missed = map[messaging.WorkerID]kv.Presence{}, map[messaging.WorkerID]int{}
	if err := w.identify(ctx); err != nil {
		return err
	}
	if err := w.server.Start(); err != nil {
		return err
	}
	w.bg.Go(w.watchPeers)
	w.bg.Go(w.watchLocks)
	w.bg.Go(func() { w.keepPresence(shown) })
	w.bg.Go(w.keepBoxes)
	w.bg.Go(w.probePeers)
	w.bg.Go(w.keepEngine)
	warm, stop := context.WithCancel(life)
	defer stop()
	w.pool.stop, w.pool.done = stop, make(chan struct{})
	w.bg.Go(func() { w.keepPool(warm) })
	w.bg.Go(w.tellDecisions)
	close(w.ready)
	w.log.InfoContext(ctx, "serving", "provider", w.provider.Kind(), "engine", w.engine)
	<-ctx.Done()
	w.drain(hide)
	end()
	w.bg.Wait()
	return nil
}

// identify learns the engine's and the bucket's ids.
func (w *Worker) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, engineFor)
	defer cancel()
	bucket, err := w.store.BucketID(ctx)
	if err != nil {
		return fmt.Errorf("read the bucket's id: %w", err)
	}
	w.mu.Lock()
	w.bucket = bucket
	w.mu.Unlock()
	if w.engine, err = w.provider.EngineID(ctx); err != nil {
		return fmt.Errorf("identify the engine: %w", err)
	}
	return nil
}

// box returns the box of a sandbox, making it if there is none.
func (w *Worker) box(tenant sandbox.Tenant, name sandbox.Name) *box {
	key := kv.HandleKey(tenant, name)
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.boxes[key]
	if !ok {
		b = w.newBox(tenant, name)
		w.boxes[key] = b
	}
	b.seen.Store(w.clock.now().UnixMilli())
	return b
}

// find returns the box of key, nil if there is none.
func (w *Worker) find(key string) *box {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.boxes[key]
	if b != nil {
		b.seen.Store(w.clock.now().UnixMilli())
	}
	return b
}

// peek is find for the worker's own needs: no request has looked for the box.
func (w *Worker) peek(key string) *box {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.boxes[key]
}

// all returns every box.
func (w *Worker) all() []*box {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*box, 0, len(w.boxes))
	for _, b := range w.boxes {
		list = append(list, b)
	}
	return list
}

// drop forgets a box; its streams end with why.
func (w *Worker) drop(b *box, why error) {
	w.mu.Lock()
	if w.boxes[b.key] == b {
		delete(w.boxes, b.key)
	}
	w.mu.Unlock()
	b.close(why)
}

// close ends what the box holds open.
func (b *box) close(why error) {
	b.finish(why)
	b.egress.Close()
}

func (w *Worker) isDraining() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draining
}

// processes is the limit that the agent enforces itself, where the engine
// cannot.
func (w *Worker) processes(l sandbox.Limits) int {
	if w.caps.ProcessesByAgent {
		return l.Pids
	}
	return 0
}

// keepBoxes looks after what this worker owns once a second: it detaches what
// is idle, suspends and destroys by age, and writes down the last use.
func (w *Worker) keepBoxes() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-tick.C:
			now := w.clock.now()
			for _, b := range w.all() {
				b.keep(w.ctx, now)
				w.reap(b, now)
			}
		}
	}
}

package kv

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ChangeKind says what happened to a watched table.
type ChangeKind int

// The kinds of change.
const (
	// Reset: the watch begins (again); forget what earlier changes said. The
	// present entries follow, then Synced.
	Reset ChangeKind = iota + 1
	// Set: the key has this value.
	Set
	// Removed: the key expired or was removed; a hint to be confirmed by a read.
	Removed
	// Synced: all entries that existed at the Reset have been delivered.
	Synced
)

// Change is one step of a watch. Entry is nil for Reset and Synced and without
// a value for Removed.
type Change[T any] struct {
	Kind  ChangeKind
	Entry *Entry[T]
}

// heartbeat is how often the server shows that a watch still hears; two
// missed ones rebuild it. A KV watch without it stayed deaf for 19 s after its
// server died (measured).
const heartbeat = time.Second

// Watch calls fn for every change of the keys that match pattern (NATS
// wildcards) until ctx ends, from one goroutine, in order. When the watch
// breaks or goes deaf it is built anew, beginning with a Reset. fn must not
// block for long. Values that cannot be decoded are passed over.
func (t *Table[T]) Watch(ctx context.Context, pattern string, fn func(Change[T])) error {
	for wait := 50 * time.Millisecond; ctx.Err() == nil; {
		began := time.Now()
		_ = t.watchOnce(ctx, pattern, fn) // every end but that of ctx leads to a rebuild
		if time.Since(began) > 10*heartbeat {
			wait = 50 * time.Millisecond
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait + rand.N(wait)): //nolint:gosec // jitter, not a secret
		}
		wait = min(2*wait, 2*time.Second)
	}
	return ctx.Err()
}

func (t *Table[T]) watchOnce(ctx context.Context, pattern string, fn func(Change[T])) error {
	c, err := t.b.js.OrderedConsumer(ctx, t.b.stream(), jetstream.OrderedConsumerConfig{
		FilterSubjects:    []string{t.b.subject(pattern)},
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		InactiveThreshold: 10 * time.Second,
		MaxResetAttempts:  1,
	})
	if err != nil {
		return err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return err
	}
	it, err := c.Messages(jetstream.PullHeartbeat(heartbeat), jetstream.PullExpiry(5*time.Second))
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, it.Stop)
	defer stop()
	defer t.letGo(c, info.Name)
	defer it.Stop()
	fn(Change[T]{Kind: Reset})
	synced := info.NumPending == 0
	if synced {
		fn(Change[T]{Kind: Synced})
	}
	return t.pump(it, synced, fn)
}

// letGo removes a consumer that is not read any more, and the one that the
// library may have put in its place: otherwise every rebuild would leave one
// behind until the server finds it idle. A server that is away does find it.
func (t *Table[T]) letGo(c jetstream.Consumer, first string) {
	ctx, cancel := context.WithTimeout(context.Background(), heartbeat)
	defer cancel()
	if info := c.CachedInfo(); info != nil && info.Name != first {
		_ = t.b.js.DeleteConsumer(ctx, t.b.stream(), info.Name)
	}
	_ = t.b.js.DeleteConsumer(ctx, t.b.stream(), first)
}

func (t *Table[T]) pump(it jetstream.MessagesContext, synced bool, fn func(Change[T])) error {
	var last uint64
	for {
		m, err := it.Next()
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Consumer != last+1 {
			// The consumer was made anew underneath: what lies between is unknown.
			return errors.New("watch: consumer restarted")
		}
		last = meta.Sequence.Consumer
		t.deliver(m, meta.Sequence.Stream, fn)
		if !synced && meta.NumPending == 0 {
			synced = true
			fn(Change[T]{Kind: Synced})
		}
	}
}

func (t *Table[T]) deliver(m jetstream.Msg, seq uint64, fn func(Change[T])) {
	key := strings.TrimPrefix(m.Subject(), t.b.subject(""))
	if isReserved(key) {
		return
	}
	e := &Entry[T]{Key: key, seq: seq}
	if isMarker(m.Headers()) {
		fn(Change[T]{Kind: Removed, Entry: e})
		return
	}
	e.Exists = true
	if e.decode(m.Data()) == nil {
		fn(Change[T]{Kind: Set, Entry: e})
	}
}

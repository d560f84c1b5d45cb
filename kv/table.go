package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"shoal/sandbox"
)

// Table is the part of a bucket that holds values of one type.
type Table[T any] struct {
	b *bucket
	// ttl of every entry written; 0 = for ever.
	ttl time.Duration
}

// Entry is a value as it was read, together with what a later [Table.Put]
// compares against. Change Value and put it; on success the entry stands for
// what was written.
type Entry[T any] struct {
	Key string
	// Exists is false for a key that never was, has expired or was removed.
	Exists bool
	// Expired: the key was not removed but ran out of its TTL within the last
	// hour.
	Expired bool
	Value   T

	seq   uint64
	extra map[string]json.RawMessage // fields of a newer version, kept as they are
}

// opField holds the id of the write inside each value.
const opField = "_op"

// Get reads key from the leader. An absent key is no error: Exists is false
// and the entry can be put to create it.
func (t *Table[T]) Get(ctx context.Context, key string) (*Entry[T], error) {
	var it item
	err := patiently(ctx, func() (err error) {
		it, err = t.b.read(ctx, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	e := &Entry[T]{Key: key, seq: it.seq, Exists: it.present, Expired: it.expired}
	if it.present {
		err = e.decode(it.data)
	}
	return e, err
}

// Put writes e if nobody has changed the key since e was read, with the
// table's TTL.
func (t *Table[T]) Put(ctx context.Context, e *Entry[T]) error {
	return t.PutFor(ctx, e, t.ttl)
}

// PutFor is Put with a TTL of whole seconds for this write; 0 = for ever.
func (t *Table[T]) PutFor(ctx context.Context, e *Entry[T], ttl time.Duration) error {
	op := sandbox.NewID()
	data, err := e.encode(op)
	if err != nil {
		return fmt.Errorf("encode %s: %w", e.Key, err)
	}
	// A repeat of a write that was applied is recognised by its op id.
	return patiently(ctx, func() error { return t.putOnce(ctx, e, op, data, ttl) })
}

func (t *Table[T]) putOnce(ctx context.Context, e *Entry[T], op string, data []byte, ttl time.Duration) error {
	seq, err := t.b.write(ctx, e.Key, data, e.seq, ttl)
	switch {
	case err == nil:
		e.seq, e.Exists, e.Expired = seq, true, false
		return nil
	case isConflict(err):
		// On one replica the repeat of a write that was applied looks the same
		// as a lost race; the op id tells them apart.
		return t.settle(ctx, e, op, conflict(e.Key))
	default:
		return t.settle(ctx, e, op, unavailable("write", err))
	}
}

// settle finds out whether a write without a clear answer was applied. The
// write may still be on its way after the first look, so an unchanged value is
// unavailable, not a refusal.
func (t *Table[T]) settle(ctx context.Context, e *Entry[T], op string, failed error) error {
	it, err := t.b.read(ctx, e.Key)
	if err != nil {
		return failed
	}
	if it.present && opOf(it.data) == op {
		e.seq, e.Exists, e.Expired = it.seq, true, false
		return nil
	}
	if it.seq != e.seq {
		return conflict(e.Key)
	}
	return failed
}

// Remove deletes e if nobody has changed it since it was read; absent is
// success.
func (t *Table[T]) Remove(ctx context.Context, e *Entry[T]) error {
	if !e.Exists {
		return nil
	}
	return patiently(ctx, func() error { return t.removeOnce(ctx, e) })
}

func (t *Table[T]) removeOnce(ctx context.Context, e *Entry[T]) error {
	err := t.b.remove(ctx, e.Key, e.seq)
	if err == nil {
		e.Exists = false
		return nil
	}
	it, readErr := t.b.read(ctx, e.Key)
	switch {
	case readErr != nil:
		return unavailable("remove", err)
	case !it.present:
		e.Exists, e.seq = false, it.seq
		return nil
	case it.seq != e.seq:
		return conflict(e.Key)
	}
	return unavailable("remove", err)
}

// List returns the entries whose key begins with prefix (whole tokens, without
// the closing dot; "" = all), in the order of their last change. It may be
// slightly old, since any replica answers; [Table.Put] finds out.
func (t *Table[T]) List(ctx context.Context, prefix string) ([]*Entry[T], error) {
	var all []*Entry[T]
	err := patiently(ctx, func() (err error) {
		all, err = t.listOnce(ctx, prefix)
		return err
	})
	return all, err
}

func (t *Table[T]) listOnce(ctx context.Context, prefix string) ([]*Entry[T], error) {
	limited, cancel := context.WithTimeout(ctx, 5*tryTimeout)
	defer cancel()
	silent := time.AfterFunc(tryTimeout, cancel) // an answer that was lost never comes
	defer silent.Stop()
	failed := func(err error) error {
		if ctx.Err() == nil && limited.Err() != nil {
			err = errors.New("no answer")
		}
		return unavailable("list", err)
	}
	w, err := t.b.kv.Watch(limited, pattern(prefix), jetstream.IgnoreDeletes())
	if err != nil {
		return nil, failed(err)
	}
	defer drain(w)
	var all []*Entry[T]
	for {
		select {
		case <-limited.Done():
			return nil, failed(limited.Err())
		case v, ok := <-w.Updates():
			if !ok {
				return nil, failed(errors.New("watch closed"))
			}
			if v == nil {
				return all, nil
			}
			silent.Reset(tryTimeout)
			if isReserved(v.Key()) != isReserved(prefix) {
				continue
			}
			e := &Entry[T]{Key: v.Key(), seq: v.Revision(), Exists: true}
			if err := e.decode(v.Value()); err != nil {
				return nil, err
			}
			all = append(all, e)
		}
	}
}

// ListNow is List as the leader knows it, for what decides: a few keys, since
// each is read by itself.
func (t *Table[T]) ListNow(ctx context.Context, prefix string) ([]*Entry[T], error) {
	var keys []string
	err := patiently(ctx, func() (err error) {
		keys, err = t.b.keys(ctx, pattern(prefix))
		return err
	})
	if err != nil {
		return nil, err
	}
	all := make([]*Entry[T], len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce) // the traces of removed keys are read, too
	for i, key := range keys {
		g.Go(func() (err error) {
			all[i], err = t.Get(ctx, key)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(e *Entry[T]) bool { return !e.Exists }), nil
}

const readsAtOnce = 16

func pattern(prefix string) string {
	if prefix == "" {
		return ">"
	}
	return prefix + ".>"
}

// isReserved tells the fleet's own keys in the handle bucket from tenants'.
// Records of the warm pool are records as any.
func isReserved(key string) bool {
	return strings.HasPrefix(key, "_") && key != pool && !strings.HasPrefix(key, pool+".")
}

const pool = string(sandbox.PoolTenant)

// drain stops w and empties its channel: a full channel would keep its
// goroutine for ever.
func drain(w jetstream.KeyWatcher) {
	_ = w.Stop() // the connection may be gone already
	for range w.Updates() {
	}
}

func (e *Entry[T]) decode(data []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return fmt.Errorf("decode %s: %w", e.Key, err)
	}
	if err := json.Unmarshal(data, &e.Value); err != nil {
		return fmt.Errorf("decode %s: %w", e.Key, err)
	}
	for _, name := range fieldNames(reflect.TypeFor[T]()) {
		delete(all, name)
	}
	delete(all, opField)
	e.extra = all
	return nil
}

func (e *Entry[T]) encode(op string) ([]byte, error) {
	own, err := json.Marshal(e.Value)
	if err != nil {
		return nil, err
	}
	all := make(map[string]json.RawMessage, len(e.extra)+16)
	maps.Copy(all, e.extra)
	if err := json.Unmarshal(own, &all); err != nil {
		return nil, err
	}
	if all[opField], err = json.Marshal(op); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

func opOf(data []byte) string {
	var v struct {
		Op string `json:"_op"`
	}
	if json.Unmarshal(data, &v) != nil {
		return ""
	}
	return v.Op
}

// fieldNames lists the JSON names of a struct's fields.
func fieldNames(t reflect.Type) []string {
	var names []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			names = append(names, fieldNames(f.Type)...)
		case name != "" && name != "-":
			names = append(names, name)
		}
	}
	return names
}

// Older reports whether e was written before other, an entry of the same key.
func (e *Entry[T]) Older(other *Entry[T]) bool { return e.seq < other.seq }

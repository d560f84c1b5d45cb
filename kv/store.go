package kv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"shoal/sandbox"
)

// The names of the buckets.
const (
	HandlesBucket = "shoal_handles"
	LocksBucket   = "shoal_locks"
	WorkersBucket = "shoal_workers"
)

// Config says how the buckets are made and kept.
type Config struct {
	// Replicas of each bucket: 1 on one machine, 3 in a cluster. Defaults to 1.
	Replicas int
	// PresenceTTL is the life of a worker's presence without a renewal, in
	// whole seconds. Defaults to 10 s (30 s with replicas).
	PresenceTTL time.Duration
}

func (c Config) withDefaults() Config {
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.PresenceTTL == 0 {
		c.PresenceTTL = 10 * time.Second
		if c.Replicas > 1 {
			c.PresenceTTL = 30 * time.Second
		}
	}
	return c
}

func (c Config) validate() error {
	if c.Replicas != 1 && c.Replicas != 3 && c.Replicas != 5 {
		return sandbox.InvalidField("replicas", "%d; use 1, 3 or 5", c.Replicas)
	}
	if c.PresenceTTL < time.Second || c.PresenceTTL%time.Second != 0 {
		return sandbox.InvalidField("presenceTTL", "%s; use whole seconds, 1 at least", c.PresenceTTL)
	}
	return nil
}

// Store is the fleet's records.
type Store struct {
	Handles *Table[Record]
	Locks   *Table[Lock]
	Workers *Table[Presence]
	Quotas  *Table[Quota]

	meta *Table[bucketMeta]
}

// bucketMeta is the identity of a handle bucket.
type bucketMeta struct {
	ID string `json:"id"`
}

const metaKey = "_bucket"

// Create makes the buckets that are missing. It needs the operator's
// permissions; workers only [Open].
func Create(ctx context.Context, js jetstream.JetStream, cfg Config) error {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return err
	}
	for _, name := range []string{HandlesBucket, LocksBucket, WorkersBucket} {
		_, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: name, History: 1, Storage: jetstream.FileStorage,
			Replicas: cfg.Replicas, LimitMarkerTTL: markerTTL,
		})
		if err != nil && !errors.Is(err, jetstream.ErrBucketExists) {
			return fmt.Errorf("create bucket %s: %w", name, err)
		}
	}
	return nil
}

// Open binds the buckets and verifies their settings field by field: a bucket
// that was given its marker TTL later once left keys unexpired (nats-server
// issue 6920), so a wrong one is refused, not mended.
func Open(ctx context.Context, js jetstream.JetStream, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	handles, err := open(ctx, js, HandlesBucket)
	if err != nil {
		return nil, err
	}
	locks, err := open(ctx, js, LocksBucket)
	if err != nil {
		return nil, err
	}
	workers, err := open(ctx, js, WorkersBucket)
	if err != nil {
		return nil, err
	}
	return &Store{
		Handles: &Table[Record]{b: handles},
		Locks:   &Table[Lock]{b: locks},
		Workers: &Table[Presence]{b: workers, ttl: cfg.PresenceTTL},
		Quotas:  &Table[Quota]{b: handles},
		meta:    &Table[bucketMeta]{b: handles},
	}, nil
}

func open(ctx context.Context, js jetstream.JetStream, name string) (*bucket, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*tryTimeout)
	defer cancel()
	kv, err := js.KeyValue(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, sandbox.Errorf(sandbox.Unavailable,
			"the bucket %s does not exist; run 'shoal init' with the operator's credentials", name).Wrap(err)
	}
	if err != nil {
		return nil, unavailable("open "+name, err)
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, unavailable("open "+name, err)
	}
	st, ok := status.(interface{ StreamInfo() *jetstream.StreamInfo })
	if !ok {
		return nil, fmt.Errorf("open %s: no stream behind the bucket", name)
	}
	if err := verify(name, st.StreamInfo().Config); err != nil {
		return nil, err
	}
	return &bucket{name: name, js: js, kv: kv}, nil
}

// verify names the first setting of a bucket that breaks what the locks and
// handles rely on.
func verify(name string, c jetstream.StreamConfig) error {
	for _, f := range []struct {
		field string
		ok    bool
		want  string
	}{
		{"history", c.MaxMsgsPerSubject == 1, "1"},
		{"storage", c.Storage == jetstream.FileStorage, "file"},
		{"ttl per message", c.AllowMsgTTL, "allowed"},
		{"marker TTL", c.SubjectDeleteMarkerTTL == markerTTL, markerTTL.String()},
		{"max age", c.MaxAge == 0, "none"},
		{"max bytes", c.MaxBytes <= 0, "none"},
		{"discard", c.Discard == jetstream.DiscardNew, "new"},
		{"rollup", c.AllowRollup, "allowed"},
		{"mirror", c.Mirror == nil && len(c.Sources) == 0, "none"},
	} {
		if !f.ok {
			return sandbox.Errorf(sandbox.Unavailable,
				"the bucket %s has another setting for %s than %s; make it anew with 'shoal init'", name, f.field, f.want)
		}
	}
	return nil
}

// BucketID returns the random id of the handle bucket, made at the first call
// ever. Engine objects are labelled with it: an object of another id stems
// from a bucket that was lost.
func (s *Store) BucketID(ctx context.Context) (string, error) {
	for range 3 {
		e, err := s.meta.Get(ctx, metaKey)
		if err != nil {
			return "", err
		}
		if e.Exists && e.Value.ID != "" {
			return e.Value.ID, nil
		}
		e.Value.ID = sandbox.NewID()
		if err = s.meta.Put(ctx, e); err == nil {
			return e.Value.ID, nil
		}
		if !IsRevision(err) {
			return "", err
		}
	}
	return "", conflict(metaKey)
}

package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/sandbox"
)

// markerTTL is how long the trace of an expired or removed key stays for
// watchers; it must outlive the longest time a watch can be blind.
const markerTTL = time.Hour

// tryTimeout bounds one attempt of a read or write, and patience all of them:
// after the death of a stream's leader the next one is there in 5 to 8 s
// (measured with three replicas).
const (
	tryTimeout = 2 * time.Second
	patience   = 10 * time.Second
	tryPause   = 100 * time.Millisecond
)

// patiently tries fn until it does not fail for want of the server, or patience
// or ctx ends. fn must be harmless when repeated.
func patiently(ctx context.Context, fn func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := fn()
		if sandbox.CodeOf(err) != sandbox.Unavailable || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(tryPause):
		}
	}
}

// bucket is one KV bucket, reached by its stream's subjects.
type bucket struct {
	name string
	js   jetstream.JetStream
	kv   jetstream.KeyValue
}

// item is a value as the leader holds it. present is false for a key that
// never was, expired or was removed; seq is then that of its marker, or 0.
type item struct {
	data    []byte
	seq     uint64
	present bool
	expired bool // not present, by its TTL
}

func (b *bucket) stream() string            { return "KV_" + b.name }
func (b *bucket) subject(key string) string { return "$KV." + b.name + "." + key }

// read asks the stream's leader for the last value of key.
func (b *bucket) read(ctx context.Context, key string) (item, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	ask, err := json.Marshal(map[string]string{"last_by_subj": b.subject(key)})
	if err != nil {
		return item{}, err
	}
	m, err := b.js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+b.stream(), ask)
	if err != nil {
		return item{}, unavailable("read", err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Seq  uint64 `json:"seq"`
			Hdrs []byte `json:"hdrs"`
			Data []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return item{}, fmt.Errorf("read %s: %w", key, err)
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return item{}, nil
	case answer.Error != nil:
		return item{}, unavailable("read", answer.Error)
	case answer.Message == nil:
		return item{}, unavailable("read", errors.New("empty answer"))
	}
	msg := answer.Message
	marker, expired := readMarker(msg.Hdrs)
	return item{data: msg.Data, seq: msg.Seq, present: !marker, expired: expired}, nil
}

// keys asks the stream's leader for the keys that match pattern, those with a
// marker included.
func (b *bucket) keys(ctx context.Context, pattern string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	ask, err := json.Marshal(map[string]string{"subjects_filter": b.subject(pattern)})
	if err != nil {
		return nil, err
	}
	m, err := b.js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.INFO."+b.stream(), ask)
	if err != nil {
		return nil, unavailable("list", err)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, fmt.Errorf("list %s: %w", pattern, err)
	}
	if answer.Error != nil {
		return nil, unavailable("list", answer.Error)
	}
	keys := make([]string, 0, len(answer.State.Subjects))
	for subject := range answer.State.Subjects {
		keys = append(keys, strings.TrimPrefix(subject, b.subject("")))
	}
	slices.Sort(keys)
	return keys, nil
}

// readMarker tells the trace of a removed or expired key from a value.
func readMarker(raw []byte) (marker, expired bool) {
	if len(raw) == 0 {
		return false, false
	}
	h, err := nats.DecodeHeadersMsg(raw)
	if err != nil {
		return false, false
	}
	return isMarker(h), h.Get(jetstream.MarkerReasonHeader) == "MaxAge"
}

func isMarker(h nats.Header) bool {
	return h.Get(jetstream.MarkerReasonHeader) != "" || h.Get("KV-Operation") != ""
}

// write stores data under key if its last sequence is seq. ttl 0 means for
// ever. The new sequence is returned.
func (b *bucket) write(ctx context.Context, key string, data []byte, seq uint64, ttl time.Duration) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	m := nats.NewMsg(b.subject(key))
	m.Data = data
	opts := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(seq), jetstream.WithRetryAttempts(0)}
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(ttl))
	}
	ack, err := b.js.PublishMsg(ctx, m, opts...)
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// remove replaces the value of sequence seq by a marker that expires.
func (b *bucket) remove(ctx context.Context, key string, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	return b.kv.Purge(ctx, key, jetstream.LastRevision(seq), jetstream.PurgeTTL(markerTTL))
}

// isConflict reports whether a write lost against another one. A replicated
// stream may answer with the second code.
func isConflict(err error) bool {
	if errors.Is(err, jetstream.ErrKeyRevisionMismatch) || errors.Is(err, jetstream.ErrKeyExists) {
		return true
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

func unavailable(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return sandbox.Errorf(sandbox.Canceled, "the operation was withdrawn").Wrap(err)
	}
	return sandbox.Errorf(sandbox.Unavailable, "the fleet's records cannot be reached (%s); try again", what).
		Wrap(err).From(sandbox.FromWorker)
}

// errRevision is the cause of every lost compare-and-swap.
var errRevision = errors.New("another revision")

func conflict(key string) error {
	return sandbox.Errorf(sandbox.Conflict, "%s was changed by somebody else meanwhile", key).
		Because("revision").Wrap(errRevision).From(sandbox.FromWorker)
}

// IsRevision reports whether err is a lost compare-and-swap: read again and
// decide anew.
func IsRevision(err error) bool { return errors.Is(err, errRevision) }

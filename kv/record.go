package kv

import (
	"strings"
	"time"

	"shoal/sandbox"
)

// State is where a sandbox's life is.
type State string

// The states. Each change between them is one compare-and-swap.
const (
	Creating   State = "creating"
	Running    State = "running"
	Suspending State = "suspending"
	Suspended  State = "suspended"
	Resuming   State = "resuming"
	Destroying State = "destroying"
	Gone       State = "gone"
	// Claimed is a member of the warm pool that was given to a sandbox: its own
	// record ends as soon as the sandbox's says running.
	Claimed State = "claimed"
)

// GoneTTL is how long the record of a destroyed sandbox stays, so that a late
// request is told what became of it.
const GoneTTL = time.Hour

// GonePoolTTL is the same for a member of the warm pool, which nobody asks for.
const GonePoolTTL = time.Minute

// Record is a sandbox's handle: all that a worker needs to carry on with it.
// The environment is not part of it; the agent keeps that.
type Record struct {
	State  State          `json:"state"`
	Handle sandbox.Handle `json:"handle"`
	// Spec as requested, with defaults, without Env.
	Spec sandbox.Spec `json:"spec"`
	// RequestID of the create that made this generation.
	RequestID string `json:"requestId"`
	// Owner is the worker that serves it; "" = nobody.
	Owner string `json:"owner,omitempty"`
	// Epoch of the last claim, and the agent's Boot it was made for.
	Epoch uint64 `json:"epoch,omitempty"`
	Boot  string `json:"boot,omitempty"`
	// Mode of the suspension (suspending, suspended, resuming).
	Mode sandbox.SuspendMode `json:"mode,omitempty"`
	// Egress in force; it can change while the sandbox runs.
	Egress sandbox.Egress `json:"egress"`
	// Pin holds off idle suspension and destruction, not TTL.
	Pin bool `json:"pin,omitempty"`
	// Recipe by which a member of the warm pool was made, and the handle key of
	// the sandbox that it was Claimed for.
	Recipe  string `json:"recipe,omitempty"`
	Claimed string `json:"claimed,omitempty"`
	// Rebuilt: the record was made from the engine's object alone; the next
	// attachment completes it by what the agent keeps.
	Rebuilt bool `json:"rebuilt,omitempty"`
	// TTL destroys the sandbox so long after Created, whatever it does; 0 =
	// never.
	TTL     sandbox.Milliseconds `json:"ttlMs,omitempty"`
	Created time.Time            `json:"created"`
	Changed time.Time            `json:"changed"`
	// LastUse is written at most once a minute.
	LastUse time.Time `json:"lastUse"`
	// Last says how the last run of the sandbox ended.
	Last *Termination `json:"last,omitempty"`
}

// Termination says how a sandbox stopped.
type Termination struct {
	// Reason in a word: "suspended", "destroyed", "idle", "ttl", "gone",
	// "restarted", "create_failed", "create_unfinished", "out_of_memory".
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
	By     string    `json:"by,omitempty"` // worker or request
}

// ParseHandleKey is the inverse of [HandleKey].
func ParseHandleKey(key string) (sandbox.Tenant, sandbox.Name, bool) {
	tenant, token, ok := strings.Cut(key, ".")
	name, err := sandbox.ParseNameToken(token)
	return sandbox.Tenant(tenant), name, ok && err == nil
}

// HandleKey is the key of a sandbox's record: <tenant>.<name>.
func HandleKey(t sandbox.Tenant, n sandbox.Name) string { return string(t) + "." + n.Token() }

// LockState is where a tag lock's grant is.
type LockState string

// The lock states.
const (
	LockPending LockState = "pending" // written, the agent has not yet confirmed
	LockGranted LockState = "granted"
)

// Lock is a tag lock. Its entry has a TTL.
type Lock struct {
	State LockState `json:"state"`
	// Holder is the kernel's own name for itself.
	Holder string `json:"holder"`
	// Token proves the grant; it goes with every tagged start.
	Token string `json:"token"`
	// Owner is the worker that wrote it.
	Owner string `json:"owner"`
	// TTL of each renewal.
	TTL        sandbox.Milliseconds `json:"ttlMs"`
	Since      time.Time            `json:"since"`
	Generation string               `json:"generation"`
}

// AllTags is the lock that excludes every other of its sandbox.
const AllTags sandbox.Tag = "*"

// allToken stands for AllTags in keys, which cannot hold a star.
const allToken = "=all"

// LockKey is the key of a tag lock: <tenant>.<name>.<tag>; "*" is written =all.
func LockKey(t sandbox.Tenant, n sandbox.Name, tag sandbox.Tag) string {
	token := string(tag)
	if tag == AllTags {
		token = allToken
	}
	return HandleKey(t, n) + "." + token
}

// ParseLockKey is the inverse of [LockKey]: the sandbox's handle key and the
// tag.
func ParseLockKey(key string) (handle string, tag sandbox.Tag, ok bool) {
	i := strings.LastIndexByte(key, '.')
	if i < 0 {
		return "", "", false
	}
	handle, tag = key[:i], sandbox.Tag(key[i+1:])
	if tag == allToken {
		tag = AllTags
	}
	return handle, tag, true
}

// Presence says that a worker lives. Its entry has a TTL.
type Presence struct {
	Engine   string         `json:"engine"`
	Provider string         `json:"provider"`
	Version  string         `json:"version"`
	Started  time.Time      `json:"started"`
	Capacity sandbox.Limits `json:"capacity"`
	Used     sandbox.Limits `json:"used"`
	// Sandboxes it owns.
	Sandboxes int `json:"sandboxes"`
	// Warm is how many members of its pool are ready.
	Warm int `json:"warm,omitempty"`
	// Draining: it takes no new work.
	Draining bool `json:"draining,omitempty"`
	// Ready: its engine answers.
	Ready bool `json:"ready"`
}

// WorkerKey is the key of a worker's presence.
func WorkerKey(id string) string { return id }

// Quota is a tenant's set of reservations, by sandbox name.
type Quota struct {
	Reserved map[sandbox.Name]Reservation `json:"reserved"`
}

// Reservation is what one sandbox takes of its tenant's quota.
type Reservation struct {
	CPU        float64   `json:"cpu"`
	MemoryMB   int       `json:"memoryMb"`
	Generation string    `json:"generation"`
	At         time.Time `json:"at"`
}

// QuotaKey is the key of a tenant's quota, in the handle bucket.
func QuotaKey(t sandbox.Tenant) string { return "_quota." + string(t) }

// ParseQuotaKey is the inverse of [QuotaKey].
func ParseQuotaKey(key string) (sandbox.Tenant, bool) {
	t, ok := strings.CutPrefix(key, "_quota.")
	return sandbox.Tenant(t), ok
}

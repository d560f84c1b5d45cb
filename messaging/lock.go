package messaging

import (
	"time"

	"shoal/sandbox"
)

// AllTags is the tag of a lock on the whole sandbox.
const AllTags sandbox.Tag = "*"

// The bounds of tag locks.
const (
	DefaultLockTTL = 15 * time.Second
	MinLockTTL     = 2 * time.Second
	MaxLockTTL     = time.Hour
	MaxLockWait    = 10 * time.Minute
	maxHolder      = 128
)

func validateLockTag(tag sandbox.Tag) error {
	if tag == AllTags {
		return nil
	}
	return tag.Validate()
}

func validateTTL(ttl sandbox.Milliseconds) error {
	if ttl != 0 && (ttl < sandbox.Millis(MinLockTTL) || ttl > sandbox.Millis(MaxLockTTL)) {
		return sandbox.InvalidField("ttlMs", "%d; allowed are %d to %d", ttl, sandbox.Millis(MinLockTTL), sandbox.Millis(MaxLockTTL))
	}
	return nil
}

// LockAcquireRequest asks for a tag's lock; the answer is a [Lock]. The same
// request id gets the same lock while it is held.
type LockAcquireRequest struct {
	Target
	// Tag, or [AllTags] for the whole sandbox.
	Tag sandbox.Tag `json:"tag"`
	// Holder says who asks, for people; at most 128 bytes.
	Holder string `json:"holder,omitempty"`
	// TTL after which a lock that is not renewed ends; 0 = 15 s. Whole seconds
	// count, rounded up.
	TTL sandbox.Milliseconds `json:"ttlMs,omitempty"`
	// Wait for a lock that is held; 0 = answer Locked at once. At most 10 min,
	// and within the request's time.
	Wait sandbox.Milliseconds `json:"waitMs,omitempty"`
}

// Validate checks every field.
func (r *LockAcquireRequest) Validate() error {
	if err := r.Target.Validate(); err != nil {
		return err
	}
	if err := validateLockTag(r.Tag); err != nil {
		return err
	}
	if len(r.Holder) > maxHolder {
		return sandbox.InvalidField("holder", "%d bytes, at most %d are allowed", len(r.Holder), maxHolder)
	}
	if r.Wait < 0 || r.Wait > sandbox.Millis(MaxLockWait) {
		return sandbox.InvalidField("waitMs", "%d; allowed are 0 to %d", r.Wait, sandbox.Millis(MaxLockWait))
	}
	return validateTTL(r.TTL)
}

// Lock is a granted lock. Whoever has the token is the holder.
type Lock struct {
	Sandbox sandbox.Name `json:"sandbox"`
	Tag     sandbox.Tag  `json:"tag"`
	// Token goes into [sandbox.Command.Token]. It is empty in lists.
	Token  string `json:"token,omitempty"`
	Holder string `json:"holder,omitempty"`
	// State is "pending" while the agent ends the former holder's commands,
	// then "granted".
	State string               `json:"state"`
	TTL   sandbox.Milliseconds `json:"ttlMs"`
	Since time.Time            `json:"since"`
	// TakenOver: the former holder had not released it; its commands were ended.
	TakenOver bool `json:"takenOver,omitempty"`
}

// LockRenewRequest keeps a lock for another ttl; the answer is a [Lock].
type LockRenewRequest struct {
	Target
	Tag   sandbox.Tag          `json:"tag"`
	Token string               `json:"token"`
	TTL   sandbox.Milliseconds `json:"ttlMs,omitempty"`
}

// Validate checks every field.
func (r *LockRenewRequest) Validate() error {
	if err := r.Target.Validate(); err != nil {
		return err
	}
	if err := validateLockTag(r.Tag); err != nil {
		return err
	}
	if err := sandbox.ValidateID("token", r.Token); err != nil {
		return err
	}
	return validateTTL(r.TTL)
}

// LockReleaseRequest gives a lock back.
type LockReleaseRequest struct {
	Target
	Tag   sandbox.Tag `json:"tag"`
	Token string      `json:"token"`
	// Kill ends the commands started under the lock.
	Kill bool `json:"kill,omitempty"`
}

// Validate checks every field.
func (r *LockReleaseRequest) Validate() error {
	if err := r.Target.Validate(); err != nil {
		return err
	}
	if err := validateLockTag(r.Tag); err != nil {
		return err
	}
	return sandbox.ValidateID("token", r.Token)
}

// LockListRequest lists the locks of one sandbox, or of the tenant.
type LockListRequest struct {
	Sandbox sandbox.Name `json:"sandbox,omitempty"`
}

// Validate checks every field.
func (r *LockListRequest) Validate() error {
	if r.Sandbox == "" {
		return nil
	}
	return renameField(r.Sandbox.Validate(), "sandbox")
}

// LockListAnswer holds the locks, without their tokens.
type LockListAnswer struct {
	Locks []Lock `json:"locks"`
}

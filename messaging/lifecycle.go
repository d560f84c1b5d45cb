package messaging

import (
	"time"

	"shoal/sandbox"
)

// SandboxState is where a sandbox is in its life, as its record says.
type SandboxState string

// The states.
const (
	Creating   SandboxState = "creating"
	Running    SandboxState = "running"
	Suspending SandboxState = "suspending"
	Suspended  SandboxState = "suspended"
	Resuming   SandboxState = "resuming"
	Destroying SandboxState = "destroying"
	Gone       SandboxState = "gone"
)

// SandboxInfo describes a sandbox to a kernel.
type SandboxInfo struct {
	Tenant     sandbox.Tenant `json:"tenant"`
	Name       sandbox.Name   `json:"name"`
	Generation string         `json:"generation"`
	State      SandboxState   `json:"state"`
	// Mode of the suspension, when suspended.
	Mode     sandbox.SuspendMode `json:"mode,omitempty"`
	Provider string              `json:"provider"`
	Engine   string              `json:"engine,omitempty"`
	Image    string              `json:"image,omitempty"`
	Owner    WorkerID            `json:"owner,omitempty"`
	// Boot of the agent, to bind starts to; "" while it is not known.
	Boot     string            `json:"boot,omitempty"`
	Epoch    uint64            `json:"epoch,omitempty"`
	Limits   sandbox.Limits    `json:"limits"`
	Egress   sandbox.Egress    `json:"egress"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Pinned   bool              `json:"pinned,omitempty"`
	Created  time.Time         `json:"created"`
	LastUse  time.Time         `json:"lastUse"`
	// Expires is when its ttl ends it; nil = never.
	Expires *time.Time `json:"expires,omitempty"`
	// Notes are warnings of the creation, such as "diskMb is not enforced".
	Notes []string `json:"notes,omitempty"`
	// Termination is the last unasked-for end of the sandbox's processes.
	Termination *Termination `json:"termination,omitempty"`
}

// Target names this very generation of the sandbox.
func (i *SandboxInfo) Target() Target {
	return Target{Sandbox: i.Name, Generation: i.Generation}
}

// Termination says how a sandbox stopped running without being asked to.
type Termination struct {
	Reason string    `json:"reason"` // "out_of_memory", "engine_restarted", "agent_died", "expired", …
	Time   time.Time `json:"time"`
	Detail string    `json:"detail,omitempty"`
}

// CreateRequest makes a sandbox. The same request id gives the same sandbox;
// another id on a living name is Exists unless Replace is set.
type CreateRequest struct {
	Name     sandbox.Name      `json:"name"`
	Image    string            `json:"image,omitempty"`
	Limits   sandbox.Limits    `json:"limits"`
	Egress   sandbox.Egress    `json:"egress"`
	Env      map[string]string `json:"env,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Setup    []sandbox.Setup   `json:"setup,omitempty"`
	// Replace destroys a living sandbox of the name first.
	Replace bool `json:"replace,omitempty"`
	// TTL destroys the sandbox after this time, whatever it does; 0 = never.
	TTL sandbox.Milliseconds `json:"ttlMs,omitempty"`
	// Pin keeps it from idle suspension and destruction.
	Pin bool `json:"pin,omitempty"`
}

// Validate checks everything but the limits' upper bounds and the hosts'
// meaning, which are the deployment's.
func (r *CreateRequest) Validate() error {
	if err := r.Name.Validate(); err != nil {
		return err
	}
	if err := validateLeast(r.Limits); err != nil {
		return err
	}
	spec := r.Spec()
	return spec.ValidateRequest()
}

// Spec returns what the request says about the sandbox; tenant and generation
// are the fleet's to fill in.
func (r *CreateRequest) Spec() sandbox.Spec {
	return sandbox.Spec{
		Name: r.Name, Image: r.Image, Limits: r.Limits, Egress: r.Egress,
		Env: r.Env, Metadata: r.Metadata, Setup: r.Setup, TTL: r.TTL, Pin: r.Pin,
	}
}

// validateLeast refuses limits that no deployment allows; 0 is the default.
func validateLeast(l sandbox.Limits) error {
	const most = 1 << 40
	ceiling := sandbox.Limits{CPU: most, MemoryMB: most, DiskMB: most, Pids: most}
	return l.Or(sandbox.DefaultLimits()).Validate(ceiling)
}

// GetRequest asks for one sandbox; the answer is a [SandboxInfo].
type GetRequest struct{ Target }

// ListRequest pages through the tenant's sandboxes.
type ListRequest struct {
	// Metadata that must be equal.
	Metadata map[string]string `json:"metadata,omitempty"`
	// State that it must be in; "" = any but gone.
	State SandboxState `json:"state,omitempty"`
	// After is the name to continue after.
	After sandbox.Name `json:"after,omitempty"`
	// Limit is the most entries; 0 = 100, at most [MaxListed].
	Limit int `json:"limit,omitempty"`
}

// MaxListed is the most sandboxes in one [ListAnswer].
const MaxListed = 500

// Validate checks every field.
func (r *ListRequest) Validate() error {
	if err := sandbox.ValidateMetadata(r.Metadata); err != nil {
		return err
	}
	switch r.State {
	case "", Creating, Running, Suspending, Suspended, Resuming, Destroying, Gone:
	default:
		return sandbox.InvalidField("state", "there is no such state")
	}
	if r.After != "" {
		if err := r.After.Validate(); err != nil {
			return renameField(err, "after")
		}
	}
	if r.Limit < 0 || r.Limit > MaxListed {
		return sandbox.InvalidField("limit", "%d; allowed are 0 to %d", r.Limit, MaxListed)
	}
	return nil
}

// ListAnswer is one page, sorted by name.
type ListAnswer struct {
	Sandboxes []SandboxInfo `json:"sandboxes"`
	// Next continues after this name; "" = that was all.
	Next sandbox.Name `json:"next,omitempty"`
}

// ResumeRequest brings a suspended sandbox to running; the answer is a
// [SandboxInfo]. Running is success.
type ResumeRequest struct{ Target }

// SuspendRequest suspends a sandbox; the answer is a [SandboxInfo].
type SuspendRequest struct {
	Target
	// Mode; "" = memory where the provider can, disk otherwise.
	Mode sandbox.SuspendMode `json:"mode,omitempty"`
	// Force suspends also while foreground commands run; otherwise Busy.
	Force bool `json:"force,omitempty"`
}

// Validate checks every field.
func (r *SuspendRequest) Validate() error {
	switch r.Mode {
	case "", sandbox.SuspendMemory, sandbox.SuspendDisk:
		return r.Target.Validate()
	}
	return sandbox.InvalidField("mode", "use memory or disk")
}

// DestroyRequest removes a sandbox with everything in it. A missing one is
// success.
type DestroyRequest struct{ Target }

// DestroyAnswer says whether there was one.
type DestroyAnswer struct {
	Existed bool `json:"existed"`
}

// PinRequest keeps a sandbox from idle suspension and destruction, or no
// longer; the answer is a [SandboxInfo].
type PinRequest struct {
	Target
	Pin bool `json:"pin"`
}

// ExplainRequest asks what is known about a sandbox and what happens next.
type ExplainRequest struct{ Target }

// ExplainAnswer is for people: facts, then what happens next and when.
type ExplainAnswer struct {
	Info  SandboxInfo `json:"info"`
	Lines []string    `json:"lines"`
}

// EgressSetRequest replaces the egress policy of a sandbox; the answer is the
// policy in force, a [sandbox.Egress].
type EgressSetRequest struct {
	Target
	Egress sandbox.Egress `json:"egress"`
	// Add adds the hosts of Egress, an allowlist, to the list in force. A sandbox
	// with open egress is Conflict.
	Add bool `json:"add,omitempty"`
}

// Validate checks every field.
func (r *EgressSetRequest) Validate() error {
	if err := r.Target.Validate(); err != nil {
		return err
	}
	if r.Add && r.Egress.Mode != sandbox.EgressAllowlist {
		return sandbox.InvalidField("add", "hosts are added to an allowlist; set egress.mode to allowlist")
	}
	return r.Egress.Validate()
}

// EgressGetRequest asks for the egress policy in force; the answer is an
// [EgressAnswer].
type EgressGetRequest struct{ Target }

// EgressAnswer is the policy in force and what came of it.
type EgressAnswer struct {
	sandbox.Egress
	// Counts of the owner since it took the sandbox over; nil when no living
	// worker owns it, or its egress goes past the workers.
	Counts *EgressCounts `json:"counts,omitempty"`
}

// EgressCounts is what a sandbox's requests to the outside came to.
type EgressCounts struct {
	Allowed   uint64 `json:"allowed"`   // connected
	Denied    uint64 `json:"denied"`    // refused by a rule
	Failed    uint64 `json:"failed"`    // listed, but not reachable
	Closed    uint64 `json:"closed"`    // ended because the list changed
	BytesUp   uint64 `json:"bytesUp"`   // from the sandbox
	BytesDown uint64 `json:"bytesDown"` // to the sandbox
	Tunnels   int    `json:"tunnels"`   // open now
}

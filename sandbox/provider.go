package sandbox

import (
	"context"
	"io"
	"time"
)

// AgentLabel is the image label that says which agent protocol the image's
// agent speaks. Images without it are refused as Invalid.
const AgentLabel = "shoal.agent"

// Handle names one generation of a sandbox at its engine. It is plain data:
// another worker can carry on from it.
type Handle struct {
	Provider   string `json:"provider"` // "docker", "e2b", "fake"
	Engine     string `json:"engine"`   // Provider.EngineID at creation
	Tenant     Tenant `json:"tenant"`
	Name       Name   `json:"name"`
	Generation string `json:"generation"`
	// Pool is the name that it had in [PoolTenant], where it was made ahead; its
	// volumes keep it.
	Pool Name `json:"pool,omitempty"`
	// Ref is the engine's own id of the sandbox (container id, E2B sandbox id).
	Ref string `json:"ref"`
	// Limits in force.
	Limits Limits `json:"limits"`
	// Notes are warnings of the creation that the caller should see once, such
	// as "diskMb is not enforced".
	Notes []string `json:"notes,omitempty"`
}

// RunState is what an engine says about a sandbox.
type RunState string

// The run states.
const (
	Running RunState = "running"
	Paused  RunState = "paused"  // stopped in memory
	Stopped RunState = "stopped" // files only
	Absent  RunState = "absent"  // the engine itself denies that it exists
)

// Object is a sandbox as the engine shows it.
type Object struct {
	Handle
	State   RunState  `json:"state"`
	Bucket  string    `json:"bucket,omitempty"` // Spec.Bucket at creation
	Created time.Time `json:"created"`
	// OOMKilled: the engine says that the last end was for want of memory.
	OOMKilled bool `json:"oomKilled,omitempty"`
	// Complete is false for what a create or destroy left half done.
	Complete bool `json:"complete"`
}

// SuspendMode says what a suspension keeps.
type SuspendMode string

// The suspend modes.
const (
	SuspendMemory SuspendMode = "memory" // files, memory and running processes
	SuspendDisk   SuspendMode = "disk"   // files only
)

// Capabilities says what a provider can do.
type Capabilities struct {
	Suspend    []SuspendMode `json:"suspend"`
	DiskLimit  bool          `json:"diskLimit"`  // Limits.DiskMB is enforced
	LimitsEach bool          `json:"limitsEach"` // limits can be set per sandbox
	Egress     []EgressMode  `json:"egress"`
	// EgressTunnel: egress goes through the agent's stream and the owner's
	// proxy; otherwise the engine filters it itself.
	EgressTunnel bool `json:"egressTunnel"`
	// ProcessesByAgent: the engine cannot bound the number of processes alone
	// (gVisor ends the whole sandbox at its limit), so the agent does.
	ProcessesByAgent bool `json:"processesByAgent"`
}

// Progress reports what a slow create is doing. It is called from the
// creating goroutine and must not block for long.
type Progress func(step string, done, total int64)

// Provider is the life cycle of sandboxes on one engine, and a byte stream to
// the agent inside. Everything else is written once above it.
//
// All methods may be called from several goroutines, also for one sandbox; the
// fleet serialises life-cycle calls per sandbox, a provider must merely stay
// correct when a late call arrives. Every method returns [*Error] codes;
// Engine when the engine refuses or does not answer in time. A cancelled ctx
// ends the wait, not necessarily the work: what was begun is cleaned up on a
// context of its own, bounded in time.
type Provider interface {
	// Kind is the name written in handles, such as "docker".
	Kind() string
	// EngineID identifies the engine, the same for every worker that reaches
	// it, as long as it keeps its data.
	EngineID(ctx context.Context) (string, error)
	// Capabilities is plain data and needs no engine.
	Capabilities() Capabilities

	// Create makes and starts a sandbox. On any failure and on cancellation
	// nothing is left behind. spec must be valid with all defaults filled in.
	// Leftovers of the same generation are removed first; of another
	// generation they are not touched. A missing image is pulled once.
	// Codes: NotFound (image), Invalid (image without AgentLabel),
	// Unsupported, Denied, Engine, Timeout.
	Create(ctx context.Context, spec Spec, progress Progress) (Handle, error)
	// Inspect asks the engine about h. State Absent only when the engine
	// itself denies the object; an engine that does not answer is an error.
	Inspect(ctx context.Context, h Handle) (Object, error)
	// Resume brings a paused or stopped sandbox to running; running is
	// success. Gone when it no longer exists.
	Resume(ctx context.Context, h Handle) error
	// Suspend pauses (SuspendMemory) or stops (SuspendDisk); already
	// suspended that way or further is success. Gone when it does not exist.
	Suspend(ctx context.Context, h Handle, mode SuspendMode) error
	// Destroy removes this generation with everything that belongs to it;
	// missing is success, a removal in progress is waited for.
	Destroy(ctx context.Context, h Handle) error
	// DestroyByName removes all generations of a name.
	DestroyByName(ctx context.Context, tenant Tenant, name Name) error
	// List returns what this fleet made on the engine, half-done objects
	// included.
	List(ctx context.Context) ([]Object, error)

	// Attach opens a stream to the agent. With wake, a sandbox that exists but
	// does not run is started or unpaused first, once for concurrent callers;
	// without, it is Unavailable with reason "suspended". Gone when it does
	// not exist. The ctx bounds the attaching, not the life of the stream.
	Attach(ctx context.Context, h Handle, wake bool) (io.ReadWriteCloser, error)
	// Reset ends every process of the sandbox by force and brings it back with
	// a new boot: the last resort when a kill is not confirmed. An error means
	// that the reset did not happen.
	Reset(ctx context.Context, h Handle) error
}

// EgressSetter is implemented by providers whose engine filters egress itself
// (Capabilities.EgressTunnel is false).
type EgressSetter interface {
	// SetEgress replaces the policy of a running sandbox.
	SetEgress(ctx context.Context, h Handle, e Egress) error
}

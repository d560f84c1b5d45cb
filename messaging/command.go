package messaging

import (
	"time"

	"shoal/sandbox"
)

// The windows of streams: how many bytes may be on the way to a reader that
// has not acknowledged them.
const (
	DefaultWindow = 1 << 20
	MinWindow     = 64 << 10
)

func validateWindow(w int64) error {
	if w != 0 && (w < MinWindow || w > DefaultWindow) {
		return sandbox.InvalidField("window", "%d; allowed are %d to %d bytes", w, MinWindow, DefaultWindow)
	}
	return nil
}

// ExecRequest starts a command and follows it from its first byte. The end of
// the stream carries a [sandbox.End].
type ExecRequest struct {
	Target
	// Boot of the agent that the start is bound to, from an earlier answer.
	// Another boot is Restarted and nothing is started; "" = the owner binds
	// on arrival, and a repeat of the request is not safe.
	Boot    string          `json:"boot,omitempty"`
	Command sandbox.Command `json:"command"`
	// Window in bytes; 0 = [DefaultWindow].
	Window int64 `json:"window,omitempty"`
	// Detach answers when the command has started, without following it: the
	// stream ends at once with no End in it.
	Detach bool `json:"detach,omitempty"`
}

// Validate checks every field.
func (r *ExecRequest) Validate() error {
	if err := r.Target.Validate(); err != nil {
		return err
	}
	if r.Boot != "" {
		if err := sandbox.ValidateID("boot", r.Boot); err != nil {
			return err
		}
	}
	if r.Detach && !r.Command.Background {
		return sandbox.InvalidField("detach", "only a background command can be left alone; set background")
	}
	if err := r.Command.Validate(); err != nil {
		return err
	}
	return validateWindow(r.Window)
}

// Started is the first frame of an exec or follow.
type Started struct {
	ID sandbox.CommandID `json:"id"`
	// Pid inside the sandbox.
	Pid int `json:"pid,omitempty"`
	// Replayed: the command was running or had ended already; nothing was
	// started by this request.
	Replayed bool `json:"replayed,omitempty"`
	// Unbound: the request named no boot, so that a repeat is not safe.
	Unbound bool `json:"unbound,omitempty"`
	// Oldest offset still kept.
	Oldest int64 `json:"oldest"`
}

// FollowRequest attaches to a running or recently ended command. The end of
// the stream carries a [sandbox.End].
type FollowRequest struct {
	Target
	ID sandbox.CommandID `json:"id"`
	// From is the offset of the first byte wanted; -1 = the oldest kept.
	From int64 `json:"from"`
	// Watch reads along without governing the command: a watcher may get gaps
	// and never slows it. Without it the reader becomes the primary one, and
	// the former primary's stream ends as moved.
	Watch  bool  `json:"watch,omitempty"`
	Window int64 `json:"window,omitempty"`
	// Silent is the worker that the client found silent, a hint.
	Silent WorkerID `json:"silent,omitempty"`
}

// Validate checks every field.
func (r *FollowRequest) Validate() error {
	if err := r.Target.Validate(); err != nil {
		return err
	}
	if err := r.ID.Validate(); err != nil {
		return err
	}
	if r.From < -1 {
		return sandbox.InvalidField("from", "%d; use -1 for the oldest kept byte", r.From)
	}
	if r.Silent != "" {
		if err := r.Silent.Validate(); err != nil {
			return renameField(err, "silent")
		}
	}
	return validateWindow(r.Window)
}

// WaitRequest waits for a command's end within the request's time; the answer
// is a [sandbox.CommandInfo].
type WaitRequest struct {
	Target
	ID sandbox.CommandID `json:"id"`
}

// Validate checks every field.
func (r *WaitRequest) Validate() error {
	if err := r.Target.Validate(); err != nil {
		return err
	}
	return r.ID.Validate()
}

// KillRequest ends commands; the answer is a [sandbox.KillResult].
type KillRequest struct {
	Target
	Kill sandbox.KillRequest `json:"kill"`
}

// Validate checks every field.
func (r *KillRequest) Validate() error {
	if err := r.Target.Validate(); err != nil {
		return err
	}
	if len(r.Kill.By) > 64 {
		return sandbox.InvalidField("kill.by", "%d bytes, at most 64 are allowed", len(r.Kill.By))
	}
	return r.Kill.Validate()
}

// CommandsRequest lists the commands of a sandbox.
type CommandsRequest struct{ Target }

// CommandsAnswer lists running and recently ended commands, oldest first.
type CommandsAnswer struct {
	Commands []sandbox.CommandInfo `json:"commands"`
}

// StatsRequest asks what a sandbox uses; the answer is a [sandbox.Stats].
type StatsRequest struct{ Target }

// commandTarget is filled in from the subject of a verb.
type commandTarget struct {
	Sandbox sandbox.Name      `json:"-"`
	ID      sandbox.CommandID `json:"-"`
}

func (t *commandTarget) setTarget(name sandbox.Name, id sandbox.CommandID) {
	t.Sandbox, t.ID = name, id
}

// target makes the verbs tell which sandbox they are for.
func (t *commandTarget) target() Target { return Target{Sandbox: t.Sandbox} }

// StdinRequest carries the next bytes of a command's standard input. The agent
// takes the next offset only; what it has already is skipped.
type StdinRequest struct {
	commandTarget
	Offset int64  `json:"offset"`
	Data   []byte `json:"data,omitempty"`
	// Close ends the input after Data.
	Close bool `json:"close,omitempty"`
}

// MaxStdin is the most bytes of one [StdinRequest], the credit of an idle input.
const MaxStdin = 256 << 10

// Validate checks every field.
func (r *StdinRequest) Validate() error {
	if r.Offset < 0 {
		return sandbox.InvalidField("offset", "%d is negative", r.Offset)
	}
	if len(r.Data) > MaxStdin {
		return sandbox.InvalidField("data", "%d bytes, at most %d are allowed at once", len(r.Data), MaxStdin)
	}
	return nil
}

// InputAnswer says what an input has taken and how much more it takes now.
type InputAnswer struct {
	// Offset of the next byte wanted.
	Offset int64 `json:"offset"`
	// Credit in bytes; 0 = ask again a little later.
	Credit int64 `json:"credit"`
	// Closed: the reader of the input is gone, nothing more is wanted.
	Closed bool `json:"closed,omitempty"`
}

// SignalRequest sends a signal to a command's process group.
type SignalRequest struct {
	commandTarget
	// Seq counts the client's signals from 1, so that a repeat is not a second one.
	Seq    uint64 `json:"seq"`
	Signal int    `json:"signal"`
}

// Validate checks every field.
func (r *SignalRequest) Validate() error {
	if r.Signal < 1 || r.Signal > 64 {
		return sandbox.InvalidField("signal", "%d; allowed are 1 to 64", r.Signal)
	}
	return validateSeq(r.Seq)
}

// ResizeRequest changes the size of a command's terminal.
type ResizeRequest struct {
	commandTarget
	Seq uint64 `json:"seq"`
	sandbox.TTY
}

// Validate checks every field.
func (r *ResizeRequest) Validate() error {
	if r.Rows == 0 || r.Rows > 4096 {
		return sandbox.InvalidField("rows", "%d; allowed are 1 to 4096", r.Rows)
	}
	if r.Cols == 0 || r.Cols > 4096 {
		return sandbox.InvalidField("cols", "%d; allowed are 1 to 4096", r.Cols)
	}
	return validateSeq(r.Seq)
}

func validateSeq(seq uint64) error {
	if seq == 0 {
		return sandbox.InvalidField("seq", "the first is 1")
	}
	return nil
}

// Done is the answer of an operation that has nothing to tell.
type Done struct{}

// Event is what happened to a sandbox; it is published as JSON. The record is
// the truth, an event may be lost.
type Event struct {
	Kind       EventKind      `json:"kind"`
	Tenant     sandbox.Tenant `json:"tenant"`
	Sandbox    sandbox.Name   `json:"sandbox"`
	Generation string         `json:"generation,omitempty"`
	Worker     WorkerID       `json:"worker"`
	Time       time.Time      `json:"time"`
	// Data are details by name, such as command, host, reason.
	Data map[string]string `json:"data,omitempty"`
}

// EventKind says what happened; it is the last token of the subject.
type EventKind string

// The events.
const (
	EventCreated    EventKind = "created"
	EventProgress   EventKind = "progress" // of a slow create: step, done, total
	EventResumed    EventKind = "resumed"
	EventSuspended  EventKind = "suspended"
	EventDestroyed  EventKind = "destroyed"
	EventGone       EventKind = "gone"
	EventTakenOver  EventKind = "taken-over"
	EventDenied     EventKind = "denied"  // egress
	EventAllowed    EventKind = "allowed" // egress, only when watched
	EventEgress     EventKind = "egress"  // the policy changed
	EventLocked     EventKind = "locked"
	EventUnlocked   EventKind = "unlocked"
	EventLockLost   EventKind = "lock-lost"
	EventTerminated EventKind = "terminated" // stopped without being asked
)

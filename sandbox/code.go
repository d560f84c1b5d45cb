package sandbox

// Code says how an operation failed. The set is closed: everything that
// crosses a boundary of Shoal carries one of these and nothing else. The zero
// value is not a code.
type Code string

// The codes. Each says when to use it; [Code.Retryable] says whether the same
// request may be sent again as it is.
const (
	// Invalid: the request breaks a rule of this contract; Error.Field names the field.
	Invalid Code = "invalid"
	// NotFound: there is no such sandbox, command, file or image.
	NotFound Code = "not_found"
	// Exists: the name, path or id is taken.
	Exists Code = "exists"
	// Conflict: the id was used for another request, or a hash or state is not the expected one.
	Conflict Code = "conflict"
	// Gone: the sandbox existed and does not any more; its files are lost. Create it anew.
	Gone Code = "gone"
	// Stale: the caller speaks of an older generation of the sandbox; nothing was done.
	Stale Code = "stale"
	// Fenced: a newer owner or lock holder has taken over; nothing was done.
	Fenced Code = "fenced"
	// Locked: a tag lock is held by somebody else.
	Locked Code = "locked"
	// Busy: no room now; try again after Error.RetryAfter.
	Busy Code = "busy"
	// Quota: the tenant's quota does not allow it.
	Quota Code = "quota"
	// Draining: this worker is shutting down; ask again, another one answers.
	Draining Code = "draining"
	// Unavailable: NATS or its KV does not answer now.
	Unavailable Code = "unavailable"
	// Timeout: the time allowed for the operation is over.
	Timeout Code = "timeout"
	// Canceled: the caller withdrew the request.
	Canceled Code = "canceled"
	// Restarted: the sandbox has another boot than the request names; nothing was started.
	Restarted Code = "restarted"
	// StartFailed: the program could not be started; Error.Reason says why. Nothing ran.
	StartFailed Code = "start_failed"
	// OutcomeUnknown: the operation may or may not have happened.
	OutcomeUnknown Code = "outcome_unknown"
	// TooLarge: a size limit is exceeded.
	TooLarge Code = "too_large"
	// NoSpace: the sandbox's disk, memory file system or inodes are used up.
	NoSpace Code = "no_space"
	// Permission: the sandbox user may not do this inside the sandbox.
	Permission Code = "permission"
	// Denied: the deployment's policy forbids it; the message names the setting.
	Denied Code = "denied"
	// Unsupported: this provider or this mode cannot do it.
	Unsupported Code = "unsupported"
	// Engine: the engine (Docker, E2B) refused or does not answer.
	Engine Code = "engine"
	// Internal: a fault of Shoal itself; the log has the details under Error.ID.
	Internal Code = "internal"
)

// codes maps each code to whether the same request may be repeated as it is.
var codes = map[Code]bool{
	Invalid: false, NotFound: false, Exists: false, Conflict: false,
	Gone: false, Stale: false, Fenced: false, Locked: true,
	Busy: true, Quota: false, Draining: true, Unavailable: true,
	Timeout: false, Canceled: false, Restarted: false, StartFailed: false,
	OutcomeUnknown: false, TooLarge: false, NoSpace: false, Permission: false,
	Denied: false, Unsupported: false, Engine: true, Internal: false,
}

// Known reports whether c is one of the codes.
func (c Code) Known() bool {
	_, ok := codes[c]
	return ok
}

// Retryable reports whether the same request, with the same request or command
// id, may be sent again as it is and can succeed without the caller changing
// anything. It never means that the operation surely did not happen: ids make
// that harmless.
func (c Code) Retryable() bool { return codes[c] }

// Codes returns every code, in no particular order.
func Codes() []Code {
	all := make([]Code, 0, len(codes))
	for c := range codes {
		all = append(all, c)
	}
	return all
}

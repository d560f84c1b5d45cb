package messaging

import (
	"shoal/sandbox"
)

// Meta is what every answer says beside its result.
type Meta struct {
	// Worker that answers: the owner, where there is one. The client goes
	// there directly next time.
	Worker WorkerID `json:"worker"`
	// Generation, boot and epoch of the sandbox, where the request names one.
	Generation string `json:"generation,omitempty"`
	Boot       string `json:"boot,omitempty"`
	Epoch      uint64 `json:"epoch,omitempty"`
	Timing     Timing `json:"timing"`
}

// Timing says where the time of a request went, in microseconds.
type Timing struct {
	Queue     int64 `json:"queueUs"`               // from arrival until a handler took it
	Attach    int64 `json:"attachUs,omitempty"`    // waking and attaching the sandbox
	Start     int64 `json:"startUs,omitempty"`     // from the handler until the program ran
	FirstByte int64 `json:"firstByteUs,omitempty"` // from the program's start to its first output
	Total     int64 `json:"totalUs"`               // from arrival to this answer
}

// Answer is the body of an answer, and of the frames that carry one. Exactly
// one of Error and Result counts.
type Answer struct {
	Meta
	Error *sandbox.Error `json:"error,omitempty"`
	// Result is the type that the operation names.
	Result any `json:"result,omitempty"`
}

// answer is what the client decodes: an Answer whose result has a known type.
type answer[T any] struct {
	Meta
	Error  *sandbox.Error `json:"error,omitempty"`
	Result T              `json:"result,omitempty"`
}

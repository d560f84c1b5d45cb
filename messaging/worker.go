package messaging

import (
	"time"

	"shoal/sandbox"
)

// WorkersRequest lists the living workers.
type WorkersRequest struct{}

// Validate accepts everything: there is nothing to check.
func (*WorkersRequest) Validate() error { return nil }

// WorkersAnswer lists the living workers, sorted by id.
type WorkersAnswer struct {
	Workers []WorkerInfo `json:"workers"`
}

// WorkerInfo describes a living worker.
type WorkerInfo struct {
	ID       WorkerID  `json:"id"`
	Provider string    `json:"provider"`
	Engine   string    `json:"engine,omitempty"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	// State is "serving", "draining" or "engine_down".
	State     string `json:"state"`
	Sandboxes int    `json:"sandboxes"`
	// Warm is how many sandboxes it has made ahead.
	Warm     int            `json:"warm,omitempty"`
	Capacity sandbox.Limits `json:"capacity"`
	Used     sandbox.Limits `json:"used"`
}

// SweepRequest asks for one sweep now.
type SweepRequest struct {
	// DryRun reports what would be done and does nothing. Only a deployment's
	// operator may ask for more.
	DryRun bool `json:"dryRun"`
}

// Validate accepts everything: there is nothing to check.
func (*SweepRequest) Validate() error { return nil }

// SweepAnswer says what a sweep did or would do.
type SweepAnswer struct {
	Actions []SweepAction `json:"actions"`
}

// SweepAction is one thing that a sweep does.
type SweepAction struct {
	// Action is "suspend", "destroy", "adopt", "remove", "rebuild", "mark_gone", …
	Action     string         `json:"action"`
	Tenant     sandbox.Tenant `json:"tenant,omitempty"`
	Sandbox    sandbox.Name   `json:"sandbox,omitempty"`
	Generation string         `json:"generation,omitempty"`
	Why        string         `json:"why"`
	Done       bool           `json:"done"`
}

// PingRequest is a worker's question to a peer: are you there?
type PingRequest struct{}

// Validate accepts everything: there is nothing to check.
func (*PingRequest) Validate() error { return nil }

// PingAnswer is the answer to it.
type PingAnswer struct {
	Engine   string `json:"engine,omitempty"`
	Draining bool   `json:"draining,omitempty"`
}

// AdoptRequest asks a worker to take over a sandbox whose record names it as
// the owner already. Answer: [Done].
type AdoptRequest struct {
	Tenant  sandbox.Tenant `json:"tenant"`
	Sandbox sandbox.Name   `json:"sandbox"`
}

// Validate checks both names.
func (r *AdoptRequest) Validate() error {
	if err := r.Tenant.ValidateAny(); err != nil {
		return err
	}
	return renameField(r.Sandbox.Validate(), "sandbox")
}

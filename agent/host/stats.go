package host

import (
	"context"

	"shoal/sandbox"
)

// Stats implements agent.Host.
func (h *Host) Stats(context.Context) (sandbox.Stats, error) { return sandbox.Stats{}, nil }

// OOMKills implements agent.Host.
func (h *Host) OOMKills() int64 { return 0 }

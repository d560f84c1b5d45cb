package fleet

import (
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/egress"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// Config is what a worker needs. Conn, Store and Provider are required.
type Config struct {
	// ID of this worker, new at every start. Defaults to a fresh one.
	ID messaging.WorkerID
	// Version of the program, for presence and logs.
	Version string
	// Conn is the connection for requests and output; the worker does not
	// close it.
	Conn *nats.Conn
	// Authenticated: the server gives each tenant an inbox prefix of its own,
	// so replies to other prefixes are refused.
	Authenticated bool
	Store         *kv.Store
	Provider      sandbox.Provider
	// Proxy is how the proxy judges and dials the egress of all sandboxes,
	// where it goes through the agents' streams. Its Decisions is the worker's.
	Proxy egress.Config
	// Policy is what holds for every list.
	Policy egress.PolicyOptions
	// Log defaults to none.
	Log *slog.Logger

	Image     string         // default image
	Limits    sandbox.Limits // defaults of a request
	MaxLimits sandbox.Limits // the most of a request
	// Egress is what a request gets that says nothing; its mode is the ceiling
	// unless Ceiling is set. Defaults to none.
	Egress sandbox.Egress
	// Ceiling is the widest mode that a request may ask for. Defaults to
	// allowlist.
	Ceiling sandbox.EgressMode

	// DetachAfter idle with nothing running and egress off. Defaults to 60 s.
	DetachAfter time.Duration
	// Idle policy; 0 = never. PauseAfter suspends with memory, StopAfter
	// without, DestroyAfter destroys.
	PauseAfter, StopAfter, DestroyAfter time.Duration
	// SilentFor is how long nothing may come from a sandbox whose stream somebody
	// waits for (six times as long where nobody does) until its agent is asked. One
	// that does not answer in twice the time loses its stream, and the engine is
	// asked for another. Defaults to 10 s.
	SilentFor time.Duration
	// SweepEvery is the period of the engine's sweep. Defaults to 30 s.
	SweepEvery time.Duration
	// SweepGrace is the age from which a leftover is removed. Defaults to 10 min.
	SweepGrace time.Duration
	// DrainFor bounds the drain. Defaults to 20 s.
	DrainFor time.Duration
	// KillFor bounds a kill; one that is not confirmed by then resets the
	// sandbox. Defaults to 5 s.
	KillFor time.Duration
	// Capacity of this worker's engine for placement; zero fields = no bound.
	Capacity sandbox.Limits
	// Warm is how many sandboxes with the default image and limits this worker
	// keeps made ahead; 0 = none, which is all that a provider without
	// [sandbox.Warmer] can.
	Warm int
	// Quota of each tenant; nil = none.
	Quota *Quota
}

// Quota bounds what a tenant's sandboxes reserve together; zero = no bound.
type Quota struct {
	Sandboxes int
	CPU       float64
	MemoryMB  int
}

func (c Config) withDefaults() Config {
	if c.ID == "" {
		c.ID = messaging.WorkerID(sandbox.NewID())
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Limits = c.Limits.Or(sandbox.DefaultLimits())
	c.MaxLimits = c.MaxLimits.Or(sandbox.DefaultMaxLimits())
	if c.Egress.Mode == "" {
		c.Egress.Mode = sandbox.EgressNone
	}
	if c.Ceiling == "" {
		c.Ceiling = sandbox.EgressAllowlist
	}
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{
		{&c.DetachAfter, time.Minute},
		{&c.SilentFor, 10 * time.Second},
		{&c.SweepEvery, 30 * time.Second},
		{&c.SweepGrace, 10 * time.Minute},
		{&c.DrainFor, 20 * time.Second},
		{&c.KillFor, 5 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Conn == nil:
		return sandbox.InvalidField("conn", "a worker needs a NATS connection")
	case c.Store == nil:
		return sandbox.InvalidField("store", "a worker needs the fleet's records")
	case c.Provider == nil:
		return sandbox.InvalidField("provider", "a worker needs a provider")
	case c.Proxy.Decisions != nil:
		return sandbox.InvalidField("proxy.decisions", "the worker takes them itself")
	}
	if err := c.Limits.Validate(c.MaxLimits); err != nil {
		return err
	}
	if err := c.validateWarm(); err != nil {
		return err
	}
	if c.Egress.Mode.Wider(c.Ceiling) {
		return sandbox.InvalidField("egress", "the default mode %s is wider than the ceiling %s", c.Egress.Mode, c.Ceiling)
	}
	if err := c.Egress.Validate(); err != nil {
		return err
	}
	_, err := egress.ParsePolicy(c.Egress.Hosts, c.Policy)
	return err
}

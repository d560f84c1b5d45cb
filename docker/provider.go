package docker

import (
	"context"
	"sync"

	"shoal/sandbox"
)

// Kind is the provider's name in handles.
const Kind = "docker"

// Provider makes sandboxes on one Docker engine. Safe for concurrent use.
type Provider struct {
	conf   Config
	engine *engine
	// starts holds one token per container start that may run now.
	starts chan struct{}
	// pulls and wakes do their work once for concurrent callers.
	pulls, wakes *flights
	// building are the generations whose create runs.
	building claims
	links    links
	// work is what outlives its caller: creates and their clean-up.
	work sync.WaitGroup
}

var _ sandbox.Provider = (*Provider)(nil)

// New returns a provider. It validates conf and does not contact the engine.
func New(conf Config) (*Provider, error) {
	conf, err := conf.withDefaults()
	if err != nil {
		return nil, err
	}
	network, address, err := splitEndpoint(conf.Endpoint)
	if err != nil {
		return nil, err
	}
	return &Provider{
		conf:   conf,
		engine: newEngine(network, address, conf.TLS),
		starts: make(chan struct{}, conf.Starts),
		pulls:  newFlights(),
		wakes:  newFlights(),
	}, nil
}

// Close cancels pulls and wakes, waits for what creates have begun, and closes
// idle connections. Streams of Attach are their callers'. Call it once nothing
// else is called any more.
func (p *Provider) Close() {
	p.pulls.close()
	p.wakes.close()
	p.work.Wait()
	p.engine.close()
}

// Kind implements [sandbox.Provider].
func (p *Provider) Kind() string { return Kind }

// Capabilities implements [sandbox.Provider].
func (p *Provider) Capabilities() sandbox.Capabilities {
	c := sandbox.Capabilities{
		Suspend:      []sandbox.SuspendMode{sandbox.SuspendMemory, sandbox.SuspendDisk},
		DiskLimit:    p.conf.VolumeDriver != "",
		LimitsEach:   true,
		Egress:       []sandbox.EgressMode{sandbox.EgressNone, sandbox.EgressAllowlist},
		EgressTunnel: true,
	}
	if p.conf.AllowOpenEgress {
		c.Egress = append(c.Egress, sandbox.EgressOpen)
	}
	return c
}

// Check asks whether the engine can be used as configured: it answers, speaks
// a version of ours, and the network for open egress keeps its containers
// apart. The error says in plain words what to do.
func (p *Provider) Check(ctx context.Context) error {
	if _, err := p.EngineID(ctx); err != nil {
		return err
	}
	if !p.conf.AllowOpenEgress {
		return nil
	}
	return translate("look at the network for open egress", p.checkNetwork(ctx))
}

// acquire waits for the right to start a container; release gives it back.
func (p *Provider) acquire(ctx context.Context) (release func(), err error) {
	select {
	case p.starts <- struct{}{}:
		return func() { <-p.starts }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

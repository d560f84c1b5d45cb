package messaging

import (
	"context"
	"errors"
	"time"

	"shoal/sandbox"
)

// Create makes a sandbox. A lost answer is asked for again and makes no second
// one.
func (c *Client) Create(ctx context.Context, r CreateRequest) (SandboxInfo, error) {
	info, err := call[SandboxInfo](ctx, c, OpCreate, &r)
	if err == nil {
		c.learn(info.Name, info.meta())
	}
	return info, err
}

// meta is what an info says about where the sandbox is.
func (i *SandboxInfo) meta() Meta {
	return Meta{Worker: i.Owner, Generation: i.Generation, Boot: i.Boot, Epoch: i.Epoch}
}

// Get describes one sandbox.
func (c *Client) Get(ctx context.Context, t Target) (SandboxInfo, error) {
	info, err := call[SandboxInfo](ctx, c, OpGet, &GetRequest{t})
	if err == nil {
		c.learn(info.Name, info.meta())
	}
	return info, err
}

// List returns one page of the tenant's sandboxes.
func (c *Client) List(ctx context.Context, r ListRequest) (ListAnswer, error) {
	return call[ListAnswer](ctx, c, OpList, &r)
}

// Resume brings a suspended sandbox to running.
func (c *Client) Resume(ctx context.Context, t Target) (SandboxInfo, error) {
	return call[SandboxInfo](ctx, c, OpResume, &ResumeRequest{t})
}

// Suspend suspends a sandbox; it is Busy while foreground commands run.
func (c *Client) Suspend(ctx context.Context, r SuspendRequest) (SandboxInfo, error) {
	return call[SandboxInfo](ctx, c, OpSuspend, &r)
}

// Destroy removes a sandbox and everything in it; a missing one is success.
func (c *Client) Destroy(ctx context.Context, t Target) (DestroyAnswer, error) {
	return call[DestroyAnswer](ctx, c, OpDestroy, &DestroyRequest{t})
}

// destroyTime bounds the destruction at the end of WithSandbox.
const destroyTime = 60 * time.Second

// WithSandbox creates a sandbox, calls use, and destroys the sandbox whatever
// use returned, also when ctx has ended.
func (c *Client) WithSandbox(ctx context.Context, r CreateRequest, use func(context.Context, Target) error) error {
	info, err := c.Create(ctx, r)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned {
			_ = c.destroyAfter(ctx, info.Target()) // use panicked, which says more
		}
	}()
	err = use(ctx, info.Target())
	returned = true
	return errors.Join(err, c.destroyAfter(ctx, info.Target()))
}

func (c *Client) destroyAfter(ctx context.Context, t Target) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTime)
	defer cancel()
	_, err := c.Destroy(ctx, t)
	return err
}

// Pin keeps a sandbox from idle suspension and destruction, or no longer.
func (c *Client) Pin(ctx context.Context, t Target, pin bool) (SandboxInfo, error) {
	return call[SandboxInfo](ctx, c, OpPin, &PinRequest{Target: t, Pin: pin})
}

// Explain says what is known about a sandbox and what happens next.
func (c *Client) Explain(ctx context.Context, t Target) (ExplainAnswer, error) {
	return call[ExplainAnswer](ctx, c, OpExplain, &ExplainRequest{t})
}

// Kill ends commands and returns when none that was selected is left, or names
// the survivors.
func (c *Client) Kill(ctx context.Context, t Target, k sandbox.KillRequest) (sandbox.KillResult, error) {
	return call[sandbox.KillResult](ctx, c, OpKill, &KillRequest{Target: t, Kill: k})
}

// Commands lists running and recently ended commands.
func (c *Client) Commands(ctx context.Context, t Target) ([]sandbox.CommandInfo, error) {
	a, err := call[CommandsAnswer](ctx, c, OpCommands, &CommandsRequest{t})
	return a.Commands, err
}

// WaitCommand waits until a command has ended or ctx does.
func (c *Client) WaitCommand(ctx context.Context, t Target, id sandbox.CommandID) (sandbox.CommandInfo, error) {
	return call[sandbox.CommandInfo](ctx, c, OpWait, &WaitRequest{Target: t, ID: id})
}

// Stats says what a sandbox uses now.
func (c *Client) Stats(ctx context.Context, t Target) (sandbox.Stats, error) {
	return call[sandbox.Stats](ctx, c, OpStats, &StatsRequest{t})
}

// SetEgress replaces the egress policy while the sandbox runs and returns the
// one in force.
func (c *Client) SetEgress(ctx context.Context, t Target, e sandbox.Egress) (sandbox.Egress, error) {
	return call[sandbox.Egress](ctx, c, OpEgressSet, &EgressSetRequest{Target: t, Egress: e})
}

// AllowEgress adds hosts to the allowlist while the sandbox runs and returns the
// policy in force. Others may add to it at the same time.
func (c *Client) AllowEgress(ctx context.Context, t Target, hosts ...string) (sandbox.Egress, error) {
	e := sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: hosts}
	return call[sandbox.Egress](ctx, c, OpEgressSet, &EgressSetRequest{Target: t, Egress: e, Add: true})
}

// Egress returns the egress policy in force and what came of it.
func (c *Client) Egress(ctx context.Context, t Target) (EgressAnswer, error) {
	return call[EgressAnswer](ctx, c, OpEgressGet, &EgressGetRequest{t})
}

// Workers lists the living workers.
func (c *Client) Workers(ctx context.Context) ([]WorkerInfo, error) {
	a, err := call[WorkersAnswer](ctx, c, OpWorkers, &WorkersRequest{})
	return a.Workers, err
}

// Sweep asks for one sweep now, or with dryRun for what it would do.
func (c *Client) Sweep(ctx context.Context, dryRun bool) ([]SweepAction, error) {
	a, err := call[SweepAnswer](ctx, c, OpSweep, &SweepRequest{DryRun: dryRun})
	return a.Actions, err
}

package agent

import (
	"context"
	"net"

	"shoal/sandbox"
)

// Claim makes this session the one that the agent serves; older ones are
// closed before it is answered. Codes: Fenced when the epoch is not above the
// highest, Restarted when the boot is another.
func (s *Session) Claim(ctx context.Context, c Claim) (Claimed, error) {
	var a Claimed
	if c.Tunnel && s.cfg.Egress == nil {
		return a, sandbox.Errorf(sandbox.Internal, "a tunnel without ClientConfig.Egress")
	}
	if err := s.call(ctx, opClaim, c, &a); err != nil {
		return Claimed{}, err
	}
	if a.Running < 0 || a.Spec != nil && a.Spec.Validate() != nil {
		return Claimed{}, s.lied("a claim answered out of bounds")
	}
	return a, nil
}

// Wait returns the end of a command, which it does not acknowledge.
func (s *Session) Wait(ctx context.Context, id sandbox.CommandID) (sandbox.End, error) {
	var a ended
	if err := id.Validate(); err != nil {
		return a.End, err
	}
	if err := s.call(ctx, opWait, waitRequest{ID: id}, &a); err != nil {
		return sandbox.End{}, err
	}
	return a.End, checkEnd(&a.End, s.lied)
}

// Kill ends commands and every process they left, and says what it did. It
// comes back when none is left or after the agent's bound of 5 s, with
// survivors.
func (s *Session) Kill(ctx context.Context, k sandbox.KillRequest) (sandbox.KillResult, error) {
	if err := k.Validate(); err != nil {
		return sandbox.KillResult{}, err
	}
	return s.killed(ctx, opKill, k)
}

// Tag hands a tag's lock to a new token; see [TagRequest].
func (s *Session) Tag(ctx context.Context, r TagRequest) (sandbox.KillResult, error) {
	return s.killed(ctx, opTag, r)
}

// Expire forgets the token of a tag's lock: starts without a token are allowed
// again, the token is refused. With kill everything that runs under the tag
// ends first.
func (s *Session) Expire(ctx context.Context, tag sandbox.Tag, token string, kill bool) (sandbox.KillResult, error) {
	return s.killed(ctx, opExpire, expireRequest{Tag: tag, Token: token, Kill: kill})
}

func (s *Session) killed(ctx context.Context, op string, body any) (sandbox.KillResult, error) {
	var a sandbox.KillResult
	if err := s.call(ctx, op, body, &a); err != nil {
		return a, err
	}
	if len(a.Commands) > maxListed || len(a.Survivors) > maxSurvivors || a.Processes < 0 || a.Reset {
		return sandbox.KillResult{}, s.lied("a kill answered out of bounds")
	}
	for _, id := range a.Commands {
		if id.Validate() != nil {
			return sandbox.KillResult{}, s.lied("a kill of a malformed id")
		}
	}
	return a, nil
}

// maxListed is the most commands that an agent knows of at once.
const maxListed = 8192

// List returns the running and recently ended commands, oldest first.
func (s *Session) List(ctx context.Context) ([]sandbox.CommandInfo, error) {
	var a commands
	if err := s.call(ctx, opCommands, nothing{}, &a); err != nil {
		return nil, err
	}
	if len(a.Commands) > maxListed {
		return nil, s.lied("too many commands")
	}
	for i := range a.Commands {
		if err := checkInfo(&a.Commands[i], s.lied); err != nil {
			return nil, err
		}
	}
	return a.Commands, nil
}

// Hold stops the clocks of all commands (time limits, graces) for at most 10 s,
// until Release or the next claim: to be called right before the sandbox is
// paused, and no new command starts meanwhile (Unavailable, reason "held").
func (s *Session) Hold(ctx context.Context) error {
	return s.call(ctx, opHold, nothing{}, nil)
}

// Release lets the clocks go on.
func (s *Session) Release(ctx context.Context) error {
	return s.call(ctx, opRelease, nothing{}, nil)
}

// Suspend ends all commands (SIGTERM, 3 s, kill; reason Suspended) and syncs
// the disk. No command starts any more in this boot. The engine can stop the
// sandbox when it returns.
func (s *Session) Suspend(ctx context.Context) error {
	return s.call(ctx, opSuspend, nothing{}, nil)
}

// Stats returns what the sandbox uses now.
func (s *Session) Stats(ctx context.Context) (sandbox.Stats, error) {
	var a sandbox.Stats
	err := s.call(ctx, opStats, nothing{}, &a)
	return a, err
}

// Tunnel switches egress through this session on or off; connections that are
// open are the callback's to close.
func (s *Session) Tunnel(ctx context.Context, on bool) error {
	if on && s.cfg.Egress == nil {
		return sandbox.Errorf(sandbox.Internal, "a tunnel without ClientConfig.Egress")
	}
	return s.call(ctx, opTunnel, tunnelRequest{On: on}, nil)
}

// Keep changes what the sandbox keeps of its spec.
func (s *Session) Keep(ctx context.Context, k Kept) error {
	return s.call(ctx, opKeep, k, nil)
}

// Forward connects to 127.0.0.1:port inside the sandbox. The connection has
// CloseWrite. Code Unavailable (reason "refused") when nobody listens.
func (s *Session) Forward(ctx context.Context, port uint16) (net.Conn, error) {
	x, err := s.open(ctx, opForward, forwardRequest{Port: port})
	if err != nil {
		return nil, err
	}
	if err := x.answer(ctx, nil); err != nil {
		x.close()
		return nil, err
	}
	t := newTunnel(x.stream, x.close)
	t.frames, t.writer = x.reader, x.writer
	return t, nil
}

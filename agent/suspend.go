package agent

import (
	"context"
	"syscall"
	"time"

	"shoal/sandbox"
)

const (
	// holdFor is how long the clocks stand still at most: whoever asked for it
	// may have died before it could pause the sandbox.
	holdFor = 10 * time.Second
	// termFor is how long commands may take to end after SIGTERM.
	termFor = 3 * time.Second
)

var errSuspending = sandbox.Errorf(sandbox.Unavailable, "the sandbox is being suspended; nothing starts any more").Because("suspending")

func handleHold(c *channel, _ []byte) error {
	s := c.link.server
	if err := s.underFence(c.link, s.holdLocked); err != nil {
		return err
	}
	return c.answer(nil)
}

// holdLocked makes the clocks stand still; it ends by itself.
func (s *Server) holdLocked() {
	if s.held == nil {
		s.held = time.AfterFunc(holdFor, s.release)
	}
	s.clock.hold()
}

func handleRelease(c *channel, _ []byte) error {
	c.link.server.release()
	return c.answer(nil)
}

// release lets the clocks go on and commands start again.
func (s *Server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		s.held.Stop()
		s.held = nil
	}
	s.clock.release()
}

func handleSuspend(c *channel, _ []byte) error {
	if err := c.link.server.Suspend(c.link.server.ctx); err != nil {
		return err
	}
	return c.answer(nil)
}

// Suspend ends all commands for a sandbox that is about to stop: no new starts,
// SIGTERM, 3 s, kill, sync. Their ends say Suspended.
func (s *Server) Suspend(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	running := s.commandsLocked()
	s.mu.Unlock()
	why := cause{reason: sandbox.Suspended}
	for _, k := range running {
		if k.blame(why) {
			k.terminate()
		}
	}
	wait, stop := context.WithTimeout(ctx, termFor)
	for _, k := range running {
		select {
		case <-k.over:
		case <-wait.Done():
		}
	}
	stop()
	bounded, stop := context.WithTimeout(ctx, killBound)
	defer stop()
	_, err := s.kill(bounded, sandbox.KillRequest{All: true}, why)
	s.host.Sync()
	return err
}

// terminate asks the command's main process and its group to end.
func (k *command) terminate() {
	select {
	case <-k.ready:
	default:
		k.cancel()
		return
	}
	k.mu.Lock()
	p := k.process
	k.mu.Unlock()
	if p != nil {
		_ = p.Signal(syscall.SIGTERM)
	}
}

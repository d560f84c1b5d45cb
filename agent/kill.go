package agent

import (
	"context"
	"slices"
	"time"

	"shoal/sandbox"
)

const (
	// killBound is how long a kill may take in all; then the fleet resets.
	killBound = 5 * time.Second
	// settleFor is how long the ends of killed commands may take to be written.
	settleFor = 4 * time.Second
)

func handleKill(c *channel, body []byte) error {
	q, err := read[sandbox.KillRequest](body)
	if err != nil {
		return err
	}
	if err := q.Validate(); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(c.link.server.ctx, killBound)
	defer stop()
	r, err := c.link.server.kill(ctx, q, cause{reason: sandbox.Killed, by: killer(q)})
	if err != nil {
		return err
	}
	return c.answer(r)
}

// killer says who killed, for the ends.
func killer(q sandbox.KillRequest) string {
	switch {
	case q.By != "":
		return cut(printable(q.By), maxWord/2)
	case q.All:
		return "all"
	case len(q.Tags) > 0:
		return "tag"
	}
	return "kill"
}

// kill ends the selected commands and what ended ones have left. It works on
// although the session that asked for it may end meanwhile.
func (s *Server) kill(ctx context.Context, q sandbox.KillRequest, why cause) (sandbox.KillResult, error) {
	commands, processes := s.selected(q)
	for _, k := range commands {
		if k.blame(why) {
			k.cancel() // a start under way is invisible to a scan
		}
	}
	for _, k := range commands {
		if k.awaitStart(ctx) != nil {
			continue
		}
		k.mu.Lock()
		processes = append(processes, k.process)
		k.mu.Unlock()
	}
	if len(processes) == 0 && !q.All && len(commands) == 0 {
		return sandbox.KillResult{}, nil
	}
	killed, err := s.host.Kill(ctx, processes, q.All)
	if err != nil {
		return sandbox.KillResult{}, err
	}
	r := sandbox.KillResult{Processes: killed.Processes, Survivors: bound(killed.Survivors)}
	r.Commands = settled(ctx, commands)
	return r, nil
}

// selected returns what a kill takes: commands that have not ended, and the
// processes of those that have.
func (s *Server) selected(q sandbox.KillRequest) (running []*command, left []Process) {
	wanted := func(k *command) bool {
		return q.All || slices.Contains(q.IDs, k.request.ID) || k.request.Tag != "" && slices.Contains(q.Tags, k.request.Tag)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.commandsLocked() {
		if wanted(k) {
			running = append(running, k)
		}
	}
	for k, p := range s.registry.lingering {
		if wanted(k) {
			left = append(left, p)
		}
	}
	return running, left
}

// settled waits until the killed commands have their ends.
func settled(ctx context.Context, commands []*command) []sandbox.CommandID {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), settleFor)
	defer stop()
	var ids []sandbox.CommandID
	for _, k := range commands {
		select {
		case <-k.over:
			ids = append(ids, k.request.ID)
		case <-ctx.Done():
		}
	}
	return ids
}

func bound(pids []int) []int { return pids[:min(len(pids), maxSurvivors)] }

// killTree ends one command's processes.
func (s *Server) killTree(k *command, p Process) {
	ctx, stop := context.WithTimeout(s.ctx, killBound)
	defer stop()
	r, err := s.host.Kill(ctx, []Process{p}, false)
	if err != nil || len(r.Survivors) > 0 {
		s.log.Warn("kill not confirmed", "command", k.request.ID, "survivors", len(r.Survivors), "error", err)
	}
}

// finishTree ends what a foreground command has left.
func (s *Server) finishTree(k *command, p Process) Killed {
	ctx, stop := context.WithTimeout(s.ctx, killBound)
	defer stop()
	r, err := p.Finish(ctx)
	if err != nil {
		s.log.Warn("what a command left could not be looked at", "command", k.request.ID, "error", err)
	}
	r.Survivors = bound(r.Survivors)
	return r
}

// ended moves a command to the ended ones and lets finish, which holds the
// command's lock, write its end: nobody can acknowledge it before it is there.
func (s *Server) ended(k *command, p Process, finish func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registry.end(k)
	if k.request.Background {
		s.registry.lingering[k] = p
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	finish()
}

// startFailed removes a command that did not start.
func (s *Server) startFailed(k *command) {
	s.mu.Lock()
	s.registry.failed(k)
	s.mu.Unlock()
	s.pool.give(k.charged)
}

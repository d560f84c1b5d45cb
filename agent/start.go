package agent

import (
	"context"
	"maps"
	"time"

	"shoal/sandbox"
)

func handleStart(c *channel, body []byte) error {
	q, err := read[StartRequest](body)
	if err != nil {
		return err
	}
	k, fresh, err := c.link.server.start(c.link, q)
	if err != nil {
		return err
	}
	if err := k.awaitStart(c.link.ctx); err != nil {
		return err
	}
	return c.follow(k, FollowRequest{ID: q.Command.ID, Offset: -1, Window: q.Window}, fresh)
}

// start registers a command and begins to start it, or finds the one that the
// same request started before.
func (s *Server) start(l *link, q StartRequest) (k *command, fresh bool, err error) {
	if err := q.Command.Validate(); err != nil {
		return nil, false, err
	}
	c := q.Command.WithDefaults()
	if q.Command.Cwd == "" {
		c.Cwd = s.cfg.Home
	}
	d, err := digestRequest(c)
	if err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The fence and the registration are one critical section with the claim's.
	if err := s.fenceLocked(l); err != nil {
		return nil, false, err
	}
	if q.Boot != s.boot {
		return nil, false, &sandbox.Error{Code: sandbox.Restarted, Boot: s.boot, Message: "the sandbox has restarted since; nothing was started"}
	}
	if k := s.registry.commands[c.ID]; k != nil && once {
		return k, false, sameRequest(k, d)
	}
	if err := s.admitLocked(c); err != nil {
		return nil, false, err
	}
	k = newCommand(s, c, d)
	ctx, cancel := context.WithCancel(s.ctx)
	k.cancel = cancel
	s.registry.add(k)
	s.wg.Go(func() {
		defer cancel()
		k.run(ctx)
	})
	return k, true, nil
}

func sameRequest(k *command, d digest) error {
	if k.digest != d {
		return sandbox.Errorf(sandbox.Conflict, "the command id %s was used for another request", k.request.ID).Because("request")
	}
	return nil
}

// admitLocked judges whether a new command may start. On success its ring's
// least room is taken from the pool.
func (s *Server) admitLocked(c sandbox.Command) error {
	switch {
	case once && s.registry.past.has(digestOf([]byte(c.ID))):
		return sandbox.Errorf(sandbox.Conflict, "the command %s has ended and its end was acknowledged; it is not run again", c.ID).Because("ended")
	case s.stopping:
		return errSuspending
	case s.held != nil:
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox is being suspended; try again in a moment").Because("held").After(time.Second)
	}
	if err := s.judgeTokenLocked(c.Tag, c.Token); err != nil {
		return err
	}
	if most := s.pool.commands(); s.registry.running >= most {
		return sandbox.Errorf(sandbox.Busy, "%d commands run in the sandbox, no more are allowed at once", most).Because("commands").After(time.Second)
	}
	if s.registry.unacked >= maxUnacked {
		return sandbox.Errorf(sandbox.Busy, "%d ended commands wait for their acknowledgement", maxUnacked).Because("unacknowledged").After(time.Second)
	}
	if !s.pool.take(ringLeast) {
		s.free(s.registry.trim(0, 0, time.Now()))
		if !s.pool.take(ringLeast) {
			return sandbox.Errorf(sandbox.Busy, "output that nobody has taken fills the sandbox's buffers").Because("output").After(time.Second)
		}
	}
	return nil
}

// awaitStart waits until the program is being executed. A command whose start
// failed has no record, so that the same id may be tried again.
func (k *command) awaitStart(ctx context.Context) error {
	select {
	case <-k.ready:
	case <-ctx.Done():
		return sandbox.AsError(context.Cause(ctx))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failed
}

// environment is what a command finds: exactly this, the spec's, the request's.
func (s *Server) environment(c sandbox.Command) []string {
	proxy := "http://" + ProxyAddress
	const local = "localhost,127.0.0.1,::1"
	env := map[string]string{
		"HOME": s.cfg.Home, "USER": s.cfg.User, "LOGNAME": s.cfg.User, "LANG": "C.UTF-8",
		"PATH":  "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"SHELL": "/bin/bash", "TMPDIR": "/tmp", "PWD": c.Cwd,
	}
	// Where the proxy is the only way out its variables win; where there is a
	// network it would only refuse.
	proxies := map[string]string{
		"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "NO_PROXY": local,
		"http_proxy": proxy, "https_proxy": proxy, "no_proxy": local,
	}
	if s.store.open() {
		proxies = nil
	}
	if c.TTY != nil {
		env["TERM"] = "xterm-256color"
	}
	for _, more := range []map[string]string{s.store.env(), c.Env, proxies} {
		maps.Copy(env, more)
	}
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

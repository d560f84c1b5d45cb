package agent

import (
	"context"
	"slices"
	"syscall"
	"time"

	"shoal/sandbox"
)

// find returns a command that has started.
func (s *Server) find(ctx context.Context, id sandbox.CommandID) (*command, error) {
	s.mu.Lock()
	k := s.registry.commands[id]
	past := s.registry.past.has(digestOf([]byte(id)))
	s.mu.Unlock()
	switch {
	case k != nil:
		return k, k.awaitStart(ctx)
	case past:
		return nil, sandbox.Errorf(sandbox.NotFound, "the command %s has ended and its end was acknowledged", id).Because("ended")
	}
	return nil, sandbox.Errorf(sandbox.NotFound, "the sandbox knows no command %s", id)
}

func handleFollow(c *channel, body []byte) error {
	q, err := read[FollowRequest](body)
	if err != nil {
		return err
	}
	k, err := c.link.server.find(c.link.ctx, q.ID)
	if err != nil {
		return err
	}
	return c.follow(k, q, false)
}

func handleWait(c *channel, body []byte) error {
	q, err := read[waitRequest](body)
	if err != nil {
		return err
	}
	k, err := c.link.server.find(c.link.ctx, q.ID)
	if err != nil {
		return err
	}
	select {
	case <-k.over:
	case <-c.watchClose():
		return nil
	case <-c.link.ctx.Done():
		return nil
	}
	k.mu.Lock()
	end := *k.end
	k.mu.Unlock()
	return c.answer(ended{End: end})
}

// watchClose returns a channel that is closed when the worker has closed the
// stream. Nothing else may read the stream then.
func (c *channel) watchClose() <-chan struct{} {
	c.closed = make(chan struct{})
	c.link.wg.Go(func() {
		defer close(c.closed)
		c.awaitClose()
	})
	return c.closed
}

func handleCommands(c *channel, _ []byte) error {
	s := c.link.server
	s.mu.Lock()
	all := make([]*command, 0, len(s.registry.commands))
	for _, k := range s.registry.commands {
		all = append(all, k)
	}
	s.mu.Unlock()
	list := commands{Commands: make([]sandbox.CommandInfo, 0, len(all))}
	for _, k := range all {
		list.Commands = append(list.Commands, k.info())
	}
	slices.SortFunc(list.Commands, func(a, b sandbox.CommandInfo) int { return a.Started.Compare(b.Started) })
	return c.answer(list)
}

// follow serves a command's stream until the end is acknowledged or the worker
// closes it.
func (c *channel) follow(k *command, q FollowRequest, fresh bool) error {
	f, started, err := k.follow(q.Offset, window(q.Window), q.Watch)
	if err != nil {
		return err
	}
	defer k.unfollow(f)
	started.Fresh = fresh
	if err := c.answer(started); err != nil {
		return err
	}
	done := make(chan struct{})
	c.link.wg.Go(func() {
		defer close(done)
		c.listen(f)
	})
	c.speak(f, done)
	_ = c.stream.Close()
	_ = c.stream.SetDeadline(past)
	<-done
	return nil
}

// A command whose output is in bulk writes some KiB at a time, and a frame for each
// piece costs more than the piece: a reader that has had everything then lets the
// pieces of a lull come together.
const (
	lull    = time.Millisecond
	bulkFor = 16 << 10 // bytes in a lull, from which on it is bulk
)

// speak sends what there is for the reader until done or the stream breaks.
func (c *channel) speak(f *follower, done <-chan struct{}) {
	since, from, bulk := time.Now(), f.offset, false
	for {
		more, err := c.speakOnce(f)
		if err != nil {
			return
		}
		if more {
			continue
		}
		if !await(c.link.ctx, f.wake, done) {
			return
		}
		if passed := time.Since(since); passed >= lull {
			bulk = (f.offset-from)*int64(lull) >= bulkFor*int64(passed)
			since, from = since.Add(passed), f.offset
		}
		if bulk && !await(c.link.ctx, time.After(lull), done) {
			return
		}
	}
}

// await waits for a word; false means that nobody is left to speak to.
func await[T any](ctx context.Context, word <-chan T, done <-chan struct{}) bool {
	select {
	case <-word:
		return true
	case <-done:
		return false
	case <-ctx.Done():
		return false
	}
}

// speakOnce sends one frame, if there is one; a waiting reader holds no buffer.
func (c *channel) speakOnce(f *follower) (more bool, err error) {
	buf := largeBuffers.Get().(*[largeBuffer]byte) //nolint:forcetypeassert // only such are put
	defer largeBuffers.Put(buf)
	k, v := f.next(buf[:])
	if k == 0 {
		return false, nil
	}
	return true, c.writer.write(k, v)
}

// listen takes what the reader says until it has acknowledged the end or is gone.
func (c *channel) listen(f *follower) {
	s := c.link.server
	for {
		k, body, err := c.reader.next()
		if err != nil {
			return
		}
		if s.fence(c.link) != nil {
			return
		}
		switch k {
		case kindAck:
			var a ack
			if decode(body, &a) != nil {
				return
			}
			if f.acknowledge(a) {
				s.acknowledged(f.command)
				return
			}
		case kindStdin:
			err = f.takeStdin(body)
		case kindSignal:
			err = f.takeSignal(body)
		case kindResize:
			err = f.takeResize(body)
		default: // a newer worker's
		}
		if err != nil {
			return
		}
	}
}

func (f *follower) takeStdin(body []byte) error {
	var in stdin
	if err := decode(body, &in); err != nil {
		return err
	}
	q := f.queue()
	if q == nil {
		return nil
	}
	q.take(in.Offset, in.Data)
	if in.Close {
		q.finish(in.Offset+int64(len(in.Data)), f.command.request.TTY != nil)
	}
	f.command.inputChanged()
	return nil
}

func (f *follower) takeSignal(body []byte) error {
	var sig signal
	if err := decode(body, &sig); err != nil {
		return err
	}
	if sig.Signal <= 0 || sig.Signal > 64 {
		return nil
	}
	if p, ok := f.inOrder(sig.Seq); ok {
		_ = p.Signal(syscall.Signal(sig.Signal)) // it may have ended just now
	}
	return nil
}

func (f *follower) takeResize(body []byte) error {
	var r resize
	if err := decode(body, &r); err != nil {
		return err
	}
	if p, ok := f.inOrder(r.Seq); ok && r.Rows > 0 && r.Cols > 0 && f.command.request.TTY != nil {
		_ = p.Resize(sandbox.TTY{Rows: r.Rows, Cols: r.Cols})
	}
	return nil
}

// acknowledged notes that a command's end was consumed.
func (s *Server) acknowledged(k *command) {
	s.mu.Lock()
	gone := s.registry.ack(k, time.Now())
	s.mu.Unlock()
	s.free(gone)
}

package agent

import (
	"io"

	"shoal/sandbox"
)

func handleStats(c *channel, _ []byte) error {
	s := c.link.server
	st, err := s.host.Stats(c.link.ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	st.Running = s.registry.running
	s.mu.Unlock()
	return c.answer(st)
}

func handleStat(c *channel, body []byte) error {
	q, err := read[pathRequest](body)
	if err != nil {
		return err
	}
	if err := sandbox.ValidatePath("path", q.Path); err != nil {
		return err
	}
	info, err := c.link.server.host.Files().Stat(c.link.ctx, q.Path, q.Hash)
	if err != nil {
		return err
	}
	return c.answer(info)
}

func handleList(c *channel, body []byte) error {
	q, err := read[listRequest](body)
	if err != nil {
		return err
	}
	if err := sandbox.ValidatePath("path", q.Path); err != nil {
		return err
	}
	if err := q.Options.Validate(); err != nil {
		return err
	}
	page, err := c.link.server.host.Files().List(c.link.ctx, q.Path, q.Options)
	if err != nil {
		return err
	}
	return c.answer(page)
}

func handleMkdir(c *channel, body []byte) error {
	return c.change(body, func(f Files, q pathRequest) error { return f.Mkdir(c.link.ctx, q.Path, q.Mode) })
}

func handleRemove(c *channel, body []byte) error {
	return c.change(body, func(f Files, q pathRequest) error { return f.Remove(c.link.ctx, q.Path, q.All) })
}

// change makes a short change while the session is the one that is served.
func (c *channel) change(body []byte, do func(Files, pathRequest) error) error {
	q, err := read[pathRequest](body)
	if err != nil {
		return err
	}
	if err := sandbox.ValidatePath("path", q.Path); err != nil {
		return err
	}
	step := func() error { return do(c.link.server.host.Files(), q) }
	if q.All { // a whole tree takes too long to hold up a claim
		err = step()
	} else {
		err = c.link.server.commit(c.link)(step)
	}
	if err != nil {
		return err
	}
	return c.answer(nil)
}

func handleRename(c *channel, body []byte) error {
	q, err := read[renameRequest](body)
	if err != nil {
		return err
	}
	if err := sandbox.ValidatePath("from", q.From); err != nil {
		return err
	}
	if err := sandbox.ValidatePath("to", q.To); err != nil {
		return err
	}
	s := c.link.server
	err = s.commit(c.link)(func() error { return s.host.Files().Rename(c.link.ctx, q.From, q.To, !q.Fresh) })
	if err != nil {
		return err
	}
	return c.answer(nil)
}

func handleRead(c *channel, body []byte) error {
	q, err := read[readRequest](body)
	if err != nil {
		return err
	}
	if err := sandbox.ValidatePath("path", q.Path); err != nil {
		return err
	}
	if err := q.Options.Validate(); err != nil {
		return err
	}
	r, err := c.link.server.host.Files().Read(c.link.ctx, q.Path, q.Options, c)
	if err != nil {
		return err
	}
	return c.answer(readEnd(r))
}

func handlePack(c *channel, body []byte) error {
	q, err := read[pathRequest](body)
	if err != nil {
		return err
	}
	if err := sandbox.ValidatePath("path", q.Path); err != nil {
		return err
	}
	if err := c.link.server.host.Files().Pack(c.link.ctx, q.Path, c); err != nil {
		return err
	}
	return c.answer(readEnd{})
}

func handleWrite(c *channel, body []byte) error {
	q, err := read[writeRequest](body)
	if err != nil {
		return err
	}
	if err := sandbox.ValidatePath("path", q.Path); err != nil {
		return err
	}
	if err := q.Options.Validate(); err != nil {
		return err
	}
	s := c.link.server
	info, err := s.host.Files().Write(c.link.ctx, q.Path, q.Options, &upload{frames: c.reader}, s.commit(c.link))
	if err != nil {
		return err
	}
	return c.answer(wrote{Info: info})
}

func handleUnpack(c *channel, body []byte) error {
	q, err := read[pathRequest](body)
	if err != nil {
		return err
	}
	if err := sandbox.ValidatePath("path", q.Path); err != nil {
		return err
	}
	s := c.link.server
	entries, err := s.host.Files().Unpack(c.link.ctx, q.Path, &upload{frames: c.reader}, s.commit(c.link))
	if err != nil {
		return err
	}
	return c.answer(wrote{Entries: entries})
}

// Write sends p as raw bytes: a channel is where a read's content goes. The
// answer that follows takes the last of them along.
func (c *channel) Write(p []byte) (int, error) {
	if err := c.writer.hold(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// upload is the content that a worker sends. It ends with io.EOF only where the
// worker said that it was all.
type upload struct {
	frames *frameReader
	rest   []byte
	whole  bool
}

func (u *upload) Read(p []byte) (int, error) {
	for len(u.rest) == 0 {
		if u.whole {
			return 0, io.EOF
		}
		k, body, err := u.frames.next()
		switch {
		case err != nil:
			return 0, sandbox.Errorf(sandbox.Canceled, "the upload was cut off; nothing was changed").Wrap(endOf(err, false))
		case k == kindBytes:
			u.rest = body
		case k == kindEOF:
			u.whole = true
		}
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

package agent

import (
	"context"

	"shoal/sandbox"
)

// AllTags is the tag of the lock over all tags.
const AllTags sandbox.Tag = "*"

func validateLock(tag sandbox.Tag, token string) error {
	if tag != AllTags {
		if err := tag.Validate(); err != nil {
			return err
		}
	}
	return sandbox.ValidateID("token", token)
}

// judgeTokenLocked decides whether a command may start under the tag locks: with
// a token only if it is a live one of its tag or of all tags, without only while
// nothing locks its tag. While all tags are locked, commands without a tag wait
// as well.
func (s *Server) judgeTokenLocked(tag sandbox.Tag, token string) error {
	own, all := s.locks[tag], s.locks[AllTags]
	switch {
	case token != "" && (token == own && tag != AllTags || token == all):
		return nil
	case token != "":
		return sandbox.Errorf(sandbox.Fenced, "the lock of tag %s has another holder; acquire it again", tag).Because("token")
	case own == "" && all == "":
		return nil
	case own == "":
		tag = AllTags
	}
	return sandbox.Errorf(sandbox.Locked, "tag %s is locked; only its holder may start commands", tag).Because("tag")
}

func handleTag(c *channel, body []byte) error {
	q, err := read[TagRequest](body)
	if err != nil {
		return err
	}
	if err := validateLock(q.Tag, q.Token); err != nil {
		return err
	}
	s := c.link.server
	err = s.underFence(c.link, func() { s.locks[q.Tag] = q.Token })
	if err != nil {
		return err
	}
	return s.endTag(c, q.Tag, q.Kill)
}

func handleExpire(c *channel, body []byte) error {
	q, err := read[expireRequest](body)
	if err != nil {
		return err
	}
	if err := validateLock(q.Tag, q.Token); err != nil {
		return err
	}
	s := c.link.server
	err = s.underFence(c.link, func() {
		if s.locks[q.Tag] == q.Token { // a newer holder's is not touched
			delete(s.locks, q.Tag)
		}
	})
	if err != nil {
		return err
	}
	return s.endTag(c, q.Tag, q.Kill)
}

// underFence runs fn while l is the session that is served.
func (s *Server) underFence(l *link, fn func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fenceLocked(l); err != nil {
		return err
	}
	fn()
	return nil
}

// endTag kills what runs under a tag, if asked, and answers with what it did.
// The tokens were changed before, so nothing of the old holder starts after it.
func (s *Server) endTag(c *channel, tag sandbox.Tag, kill bool) error {
	if !kill {
		return c.answer(sandbox.KillResult{})
	}
	q := sandbox.KillRequest{Tags: []sandbox.Tag{tag}}
	if tag == AllTags {
		q = sandbox.KillRequest{All: true}
	}
	ctx, stop := context.WithTimeout(s.ctx, killBound)
	defer stop()
	r, err := s.kill(ctx, q, cause{reason: sandbox.Killed, by: "takeover"})
	if err != nil {
		return err
	}
	return c.answer(r)
}

package messaging

import (
	"context"
	"errors"
	"io"
	"time"
	"unicode/utf8"

	"shoal/sandbox"
)

// RunOptions say how [Client.Run] collects output.
type RunOptions struct {
	// MaxOutput is the most bytes kept over both streams. Defaults to 1 MiB.
	MaxOutput int64
}

// DefaultMaxOutput is what Run keeps unless told otherwise.
const DefaultMaxOutput = 1 << 20

// RunResult is a command that has ended, with its output.
type RunResult struct {
	ID  sandbox.CommandID
	End sandbox.End
	// Code is the exit code as a shell would say it: 128 + n for a signal.
	Code   int
	Stdout []byte
	Stderr []byte
	// Truncated: there was more output than MaxOutput. What is kept of a
	// stream that was cut ends at a character's end.
	Truncated bool
	// Lost bytes were not kept by the sandbox.
	Lost int64
	Meta Meta
}

// killTime bounds the kill of a command whose Run was given up.
const killTime = 10 * time.Second

// Run starts a command, collects its output and returns when it has ended. When
// ctx ends first the command is killed, and the result holds what came so far.
func (c *Client) Run(ctx context.Context, t Target, cmd sandbox.Command, o RunOptions) (*RunResult, error) {
	p, err := c.Exec(ctx, t, cmd)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	most := o.MaxOutput
	if most <= 0 {
		most = DefaultMaxOutput
	}
	r := &RunResult{ID: p.ID()}
	err = r.collect(ctx, p, most)
	r.Lost, r.Meta = p.Lost(), p.Meta()
	if err != nil && ctx.Err() != nil {
		kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		if _, kerr := p.Kill(kctx); kerr != nil {
			err = errors.Join(err, kerr)
		}
	}
	return r, err
}

func (r *RunResult) collect(ctx context.Context, p *Process, most int64) error {
	left := most
	var cut [3]bool
	for {
		g, err := p.Next(ctx)
		if errors.Is(err, io.EOF) {
			return r.finish(p, cut)
		}
		if err != nil {
			return err
		}
		n := min(int64(len(g.Data)), left)
		if n < int64(len(g.Data)) {
			r.Truncated = true
			cut[g.Stream%3] = true
		}
		left -= n
		if g.Stream == sandbox.Stderr {
			r.Stderr = append(r.Stderr, g.Data[:n]...)
		} else {
			r.Stdout = append(r.Stdout, g.Data[:n]...)
		}
	}
}

func (r *RunResult) finish(p *Process, cut [3]bool) (err error) {
	r.End, err = p.End()
	r.Code = r.End.ShellCode()
	whole := r.End.Truncated // by the command's own cap, on whichever stream
	r.Truncated = r.Truncated || whole
	if whole || cut[sandbox.Stdout] {
		r.Stdout = cutText(r.Stdout)
	}
	if whole || cut[sandbox.Stderr] {
		r.Stderr = cutText(r.Stderr)
	}
	return err
}

// cutText drops an incomplete character from the end of b; bytes that are no
// text at all stay.
func cutText(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		last := b[len(b)-i]
		if !utf8.RuneStart(last) {
			continue
		}
		if !utf8.FullRune(b[len(b)-i:]) {
			return b[:len(b)-i]
		}
		break
	}
	return b
}

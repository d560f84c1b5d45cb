package fleet

import (
	"bytes"
	"context"
	"errors"
	"io"

	"shoal/agent"
	"shoal/messaging"
	"shoal/sandbox"
)

// read streams a file's content.
func (w *Worker) read(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.ReadRequest](r)
	return w.download(ctx, r, req.Path, func(ctx context.Context, s *agent.Session) (*agent.FileReader, error) {
		return s.ReadFile(ctx, req.Path, req.ReadOptions)
	})
}

// tarGet streams a directory as a tar archive.
func (w *Worker) tarGet(ctx context.Context, r *messaging.Request) (any, error) {
	path := body[messaging.TarGetRequest](r).Path
	return w.download(ctx, r, path, func(ctx context.Context, s *agent.Session) (*agent.FileReader, error) {
		return s.Pack(ctx, path)
	})
}

// download sends what open gives to the client. It is repeated after a broken
// stream only while nothing has been sent.
func (w *Worker) download(ctx context.Context, r *messaging.Request, path string, open func(context.Context, *agent.Session) (*agent.FileReader, error)) (any, error) {
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	b.holds.Add(1)
	defer b.holds.Add(-1)
	b.moving.Add(1)
	defer b.moving.Add(-1)
	end := messaging.ReadEnd{Info: sandbox.FileInfo{Path: path}}
	err = b.free(ctx, func(ctx context.Context, s *agent.Session) error {
		f, err := open(ctx, s)
		if err != nil {
			return err
		}
		defer f.Close()
		end.Bytes, err = sendFile(ctx, r.Output(), f)
		end.Info.Size, end.Truncated = f.Size(), f.Truncated()
		if err != nil && end.Bytes > 0 && detached(err) {
			return sandbox.Errorf(sandbox.Unavailable, "the stream to the sandbox broke in the middle of %s; read it again", path).Wrap(err).From(sandbox.FromWorker)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	b.fill(r)
	return end, nil
}

// sendFile copies f to the client. The stream begins with the first bytes, so
// that a file that cannot be read is a plain error.
func sendFile(ctx context.Context, out *messaging.Output, f io.Reader) (sent int64, err error) {
	buf := make([]byte, messaging.MaxChunk)
	begun := false
	for {
		n, err := io.ReadFull(f, buf)
		over := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !over {
			return sent, err
		}
		if !begun {
			if err := out.Started(0, messaging.Done{}); err != nil {
				return sent, err
			}
			begun = true
		}
		if n > 0 {
			if err := out.Data(ctx, sandbox.Stdout, buf[:n]); err != nil {
				return sent, err
			}
			sent += int64(n)
		}
		if over {
			return sent, nil
		}
	}
}

// write replaces a file, all or nothing.
func (w *Worker) write(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.WriteRequest](r)
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	opts := req.WriteOptions
	var info sandbox.FileInfo
	if req.Upload {
		err = b.upload(ctx, r, func(ctx context.Context, s *agent.Session, in io.Reader) (err error) {
			info, err = s.WriteFile(ctx, req.Path, opts, in)
			return err
		})
		return info, err
	}
	opts.Size = int64(len(req.Data))
	sent := false
	err = b.call(ctx, func(ctx context.Context, s *agent.Session) (err error) {
		if sent && (opts.IfAbsent || opts.IfHash != "") {
			return errWriteUnknown() // a repeat would be judged against the first try's own result
		}
		info, err = s.WriteFile(ctx, req.Path, opts, bytes.NewReader(req.Data))
		sent = sent || sandbox.CodeOf(err) == sandbox.OutcomeUnknown
		return err
	})
	if err != nil && sent && (opts.IfAbsent || opts.IfHash != "") {
		err = errWriteUnknown()
	}
	return info, err
}

func errWriteUnknown() error {
	return sandbox.Errorf(sandbox.OutcomeUnknown, "the stream to the sandbox broke while a conditional write was under way; read the file to learn its outcome").From(sandbox.FromWorker)
}

// upload runs fn with what the client sends; it cannot be repeated.
func (b *box) upload(ctx context.Context, r *messaging.Request, fn func(context.Context, *agent.Session, io.Reader) error) error {
	b.holds.Add(1)
	defer b.holds.Add(-1)
	b.moving.Add(1)
	defer b.moving.Add(-1)
	s, err := b.awake(ctx)
	if err != nil {
		return err
	}
	in := r.Input()
	stop := context.AfterFunc(ctx, in.Close)
	defer stop()
	return fn(ctx, s, in)
}

// tarPut unpacks an archive into a directory.
func (w *Worker) tarPut(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.TarPutRequest](r)
	b, err := w.owned(ctx, r)
	if err != nil {
		return nil, err
	}
	counted, entries := &countingReader{}, 0
	err = b.upload(ctx, r, func(ctx context.Context, s *agent.Session, in io.Reader) (err error) {
		counted.r = in
		entries, err = s.Unpack(ctx, req.Path, counted)
		return err
	})
	return messaging.TarPutAnswer{Entries: entries, Bytes: counted.n}, err
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func (w *Worker) stat(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.StatRequest](r)
	var info sandbox.FileInfo
	err := w.onFiles(ctx, r, func(ctx context.Context, s *agent.Session) (err error) {
		info, err = s.Stat(ctx, req.Path, req.Hash)
		return err
	})
	return info, err
}

func (w *Worker) files(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.FilesRequest](r)
	var list sandbox.FileList
	err := w.onFiles(ctx, r, func(ctx context.Context, s *agent.Session) (err error) {
		list, err = s.ListDir(ctx, req.Path, req.ListOptions)
		return err
	})
	return list, err
}

func (w *Worker) mkdir(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.MkdirRequest](r)
	return messaging.Done{}, w.onFiles(ctx, r, func(ctx context.Context, s *agent.Session) error {
		return s.Mkdir(ctx, req.Path, req.Mode)
	})
}

func (w *Worker) removeFile(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.RemoveRequest](r)
	return messaging.Done{}, w.onceOnFiles(ctx, r, func(ctx context.Context, s *agent.Session) error {
		return s.Remove(ctx, req.Path, req.Recursive)
	})
}

func (w *Worker) rename(ctx context.Context, r *messaging.Request) (any, error) {
	req := body[messaging.RenameRequest](r)
	return messaging.Done{}, w.onceOnFiles(ctx, r, func(ctx context.Context, s *agent.Session) error {
		return s.Rename(ctx, req.Path, req.To, req.Replace)
	})
}

// onFiles runs a short file operation that may be repeated.
func (w *Worker) onFiles(ctx context.Context, r *messaging.Request, fn func(context.Context, *agent.Session) error) error {
	b, err := w.owned(ctx, r)
	if err != nil {
		return err
	}
	err = b.call(ctx, fn)
	b.fill(r)
	return err
}

// onceOnFiles runs a file operation whose repeat would be judged against its
// own first try: a stream that breaks after it was sent is OutcomeUnknown.
func (w *Worker) onceOnFiles(ctx context.Context, r *messaging.Request, fn func(context.Context, *agent.Session) error) error {
	sent := false
	unknown := sandbox.Errorf(sandbox.OutcomeUnknown, "the stream to the sandbox broke before the answer; look at the files").From(sandbox.FromWorker)
	err := w.onFiles(ctx, r, func(ctx context.Context, s *agent.Session) error {
		if sent {
			return unknown
		}
		err := fn(ctx, s)
		sent = sandbox.CodeOf(err) == sandbox.OutcomeUnknown
		return err
	})
	if sent && err != nil {
		return unknown
	}
	return err
}

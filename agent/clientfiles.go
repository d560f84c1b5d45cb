package agent

import (
	"context"
	"errors"
	"io"

	"shoal/sandbox"
)

// Stat describes a file without following a link at its end, with the SHA-256
// of a regular file when asked.
func (s *Session) Stat(ctx context.Context, path string, hash bool) (sandbox.FileInfo, error) {
	var a sandbox.FileInfo
	if err := s.call(ctx, opStat, pathRequest{Path: path, Hash: hash}, &a); err != nil {
		return a, err
	}
	return a, s.checkFile(&a)
}

// ListDir returns one page of a directory.
func (s *Session) ListDir(ctx context.Context, path string, o sandbox.ListOptions) (sandbox.FileList, error) {
	var a sandbox.FileList
	if err := s.call(ctx, opList, listRequest{Path: path, Options: o}, &a); err != nil {
		return a, err
	}
	if len(a.Entries) > sandbox.MaxListPage || len(a.Next) > maxPathBytes {
		return sandbox.FileList{}, s.lied("a directory page out of bounds")
	}
	for i := range a.Entries {
		if err := s.checkFile(&a.Entries[i]); err != nil {
			return sandbox.FileList{}, err
		}
	}
	return a, nil
}

const maxPathBytes = 8192 // a directory's path and a name

func (s *Session) checkFile(f *sandbox.FileInfo) error {
	if len(f.Path) > maxPathBytes || len(f.Target) > maxPathBytes || len(f.SHA256) > maxWord || f.Size < 0 || f.Mode > 0o7777 || len(f.Kind) > maxWord {
		return s.lied("a file out of bounds")
	}
	return nil
}

// Mkdir makes a directory and its parents; an existing one is success. mode 0 =
// 0755.
func (s *Session) Mkdir(ctx context.Context, path string, mode uint32) error {
	return s.call(ctx, opMkdir, pathRequest{Path: path, Mode: mode}, nil)
}

// Remove removes a file or an empty directory, with all a whole tree.
func (s *Session) Remove(ctx context.Context, path string, all bool) error {
	return s.call(ctx, opRemove, pathRequest{Path: path, All: all}, nil)
}

// Rename renames a file or directory. An existing file is replaced, or is Exists.
func (s *Session) Rename(ctx context.Context, from, to string, replace bool) error {
	return s.call(ctx, opRename, renameRequest{From: from, To: to, Fresh: !replace}, nil)
}

// FileReader reads a file's content, or a tar. It belongs to one goroutine and
// must be closed.
type FileReader struct {
	x     *exchange
	ctx   context.Context //nolint:containedctx // of the call that made it: it bounds the reading
	stop  func()
	most  int64 // more than this is not taken
	taken int64
	rest  []byte
	end   readEnd
	err   error // final
}

// ReadFile reads a regular file. The ctx bounds the reading, not only the call;
// an error of the file comes with the first Read.
func (s *Session) ReadFile(ctx context.Context, path string, o sandbox.ReadOptions) (*FileReader, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	most := int64(maxOffset)
	if o.Limit > 0 {
		most = o.Limit
	}
	return s.reader(ctx, opRead, readRequest{Path: path, Options: o}, most)
}

// Pack reads a directory as tar, names relative to it.
func (s *Session) Pack(ctx context.Context, path string) (*FileReader, error) {
	return s.reader(ctx, opPack, pathRequest{Path: path}, maxOffset)
}

func (s *Session) reader(ctx context.Context, op string, body any, most int64) (*FileReader, error) {
	x, err := s.open(ctx, op, body)
	if err != nil {
		return nil, err
	}
	return &FileReader{x: x, ctx: ctx, stop: x.until(ctx), most: most}, nil
}

// Read returns content; io.EOF after all of it has come, never for less.
func (r *FileReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.err = r.next()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *FileReader) next() error {
	k, body, err := r.x.reader.next()
	switch {
	case err != nil:
		return r.x.session.failed(r.ctx, err)
	case k == kindError:
		return r.x.said(body)
	case k == kindBytes:
		if r.taken += int64(len(body)); r.taken > r.most {
			return r.x.session.lied("more of a file than asked for")
		}
		r.rest = body
	case k == kindAnswer:
		if err := decode(body, &r.end); err != nil || r.end.Size < 0 {
			return r.x.session.lied("a file's end that cannot be read")
		}
		return io.EOF
	}
	return nil
}

// Truncated reports, after io.EOF, that the limit came before the file's end.
func (r *FileReader) Truncated() bool { return r.end.Truncated }

// Size is, after io.EOF, the file's size when it was opened.
func (r *FileReader) Size() int64 { return r.end.Size }

// Close ends the reading.
func (r *FileReader) Close() error {
	r.stop()
	r.x.close()
	return nil
}

// WriteFile replaces a file by what r holds, all or nothing. An error of r
// changes nothing.
func (s *Session) WriteFile(ctx context.Context, path string, o sandbox.WriteOptions, r io.Reader) (sandbox.FileInfo, error) {
	if err := o.Validate(); err != nil {
		return sandbox.FileInfo{}, err
	}
	a, err := s.upload(ctx, opWrite, writeRequest{Path: path, Options: o}, r)
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	return a.Info, s.checkFile(&a.Info)
}

// Unpack makes the entries of a tar below a directory, and counts them.
func (s *Session) Unpack(ctx context.Context, path string, r io.Reader) (entries int, err error) {
	a, err := s.upload(ctx, opUnpack, pathRequest{Path: path}, r)
	if err == nil && a.Entries < 0 {
		err = s.lied("a negative number of entries")
	}
	return a.Entries, err
}

// upload sends r while it waits for the one answer, which may come early: a
// refusal stops the sending.
func (s *Session) upload(ctx context.Context, op string, body any, r io.Reader) (wrote, error) {
	x, err := s.openUpload(ctx, op, body, r)
	if err != nil {
		return wrote{}, err
	}
	defer x.close()
	var a wrote
	var answered error
	done := make(chan struct{})
	s.wg.Go(func() {
		defer close(done)
		answered = x.answer(ctx, &a)
		if answered != nil {
			_ = x.stream.SetWriteDeadline(past)
		}
	})
	sendErr := x.copyFrom(ctx, r)
	if sendErr != nil {
		x.close() // without the end that would make it count
	}
	<-done
	switch {
	case sendErr == nil:
		return a, answered
	case answered != nil && sandbox.CodeOf(answered) != sandbox.OutcomeUnknown && !errors.Is(sendErr, errSource):
		return wrote{}, answered
	}
	return wrote{}, sendErr
}

// openUpload opens the stream of an upload. What is short and there already
// goes out together with the request.
func (s *Session) openUpload(ctx context.Context, op string, body any, r io.Reader) (*exchange, error) {
	if n, ok := left(r); !ok || n > largeBuffer {
		return s.open(ctx, op, body)
	}
	x, first, err := s.openHeld(ctx, op, body)
	if err != nil {
		return nil, err
	}
	x.writer.holdFrame(first)
	return x, nil
}

// left returns how many bytes r still has, where it knows.
func left(r io.Reader) (int, bool) {
	l, ok := r.(interface{ Len() int })
	if !ok {
		return 0, false
	}
	return l.Len(), true
}

// errSource marks an error of what the caller gave to read.
var errSource = errors.New("read what is to be written")

func (x *exchange) copyFrom(ctx context.Context, r io.Reader) error {
	buf := make([]byte, largeBuffer)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			send := x.writer.bytes
			if rest, ok := left(r); ok && rest == 0 {
				send = x.writer.hold // the end follows at once
			}
			if err := x.sent(ctx, func() error { return send(buf[:n]) }); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return x.send(ctx, kindEOF, nil)
		}
		if err != nil {
			return sandbox.Errorf(sandbox.Canceled, "the content could not be read to its end; nothing was changed").
				From(sandbox.FromClient).Wrap(errors.Join(errSource, err))
		}
	}
}

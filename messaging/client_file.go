package messaging

import (
	"bytes"
	"context"
	"errors"
	"io"

	"shoal/sandbox"
)

// File names a path in a sandbox.
func (t Target) File(path string) PathTarget { return PathTarget{Target: t, Path: path} }

// Stat describes a path; with hash also by the SHA-256 of its content.
func (c *Client) Stat(ctx context.Context, f PathTarget, hash bool) (sandbox.FileInfo, error) {
	return call[sandbox.FileInfo](ctx, c, OpStat, &StatRequest{PathTarget: f, Hash: hash})
}

// Files returns one page of a directory.
func (c *Client) Files(ctx context.Context, f PathTarget, o sandbox.ListOptions) (sandbox.FileList, error) {
	return call[sandbox.FileList](ctx, c, OpFiles, &FilesRequest{PathTarget: f, ListOptions: o})
}

// Mkdir makes a directory and its parents; mode 0 is 0755.
func (c *Client) Mkdir(ctx context.Context, f PathTarget, mode uint32) error {
	_, err := call[Done](ctx, c, OpMkdir, &MkdirRequest{PathTarget: f, Mode: mode})
	return err
}

// Remove removes a file, a link or, when recursive, a directory.
func (c *Client) Remove(ctx context.Context, f PathTarget, recursive bool) error {
	_, err := call[Done](ctx, c, OpRemove, &RemoveRequest{PathTarget: f, Recursive: recursive})
	return err
}

// Rename moves a file or directory within its sandbox.
func (c *Client) Rename(ctx context.Context, f PathTarget, to string, replace bool) error {
	_, err := call[Done](ctx, c, OpRename, &RenameRequest{PathTarget: f, To: to, Replace: replace})
	return err
}

// ReadFile returns a file's content, or what o selects of it, at most
// most bytes: more is TooLarge. When the worker is lost in the middle it reads
// again from the beginning, since the file may be another by then.
func (c *Client) ReadFile(ctx context.Context, f PathTarget, o sandbox.ReadOptions, most int64) ([]byte, error) {
	const tries = 3
	for try := 1; ; try++ {
		b, err := c.readFile(ctx, f, o, most)
		if try == tries || sandbox.CodeOf(err) != sandbox.Unavailable || ctx.Err() != nil {
			return b, err
		}
	}
}

func (c *Client) readFile(ctx context.Context, f PathTarget, o sandbox.ReadOptions, most int64) ([]byte, error) {
	r, err := c.Open(ctx, f, o)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(b)) > most {
		err = sandbox.Errorf(sandbox.TooLarge, "%s has more than %d bytes; read it as a stream", f.Path, most).From(sandbox.FromClient)
	}
	return b, err
}

// FileReader reads a file, or a directory as a tar archive, as a stream. Close
// it always.
type FileReader struct {
	ctx  context.Context //nolint:containedctx // an io.Reader has no other way to end its waits
	s    *stream
	rest []byte
}

// Open opens a file for reading; ctx bounds the whole reading.
func (c *Client) Open(ctx context.Context, f PathTarget, o sandbox.ReadOptions) (*FileReader, error) {
	r := &ReadRequest{PathTarget: f, ReadOptions: o}
	return c.openFile(ctx, OpRead, f, r, func(w int64) { r.Window = w })
}

// OpenTar opens a directory as a tar archive; ctx bounds the whole reading.
func (c *Client) OpenTar(ctx context.Context, f PathTarget) (*FileReader, error) {
	r := &TarGetRequest{PathTarget: f}
	return c.openFile(ctx, OpTarGet, f, r, func(w int64) { r.Window = w })
}

// openFile opens a stream that is not carried on elsewhere once bytes have
// come: the file may be another by then.
func (c *Client) openFile(ctx context.Context, op Op, f PathTarget, r request, window func(int64)) (*FileReader, error) {
	if err := r.Validate(); err != nil {
		return nil, sandbox.AsError(err).From(sandbox.FromClient)
	}
	s := c.newStream(AreaFile, f.Sandbox, "", startDeadline(ctx), func(s *stream, _ WorkerID) (Op, request) {
		if s.begun() {
			return op, nil
		}
		window(s.window)
		return op, r
	})
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return &FileReader{ctx: ctx, s: s}, nil
}

// Read returns the next bytes; io.EOF only after the whole stream has arrived.
func (r *FileReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		r.s.consumeAll()
		g, err := r.s.next(r.ctx)
		if err != nil {
			return 0, err
		}
		if g.Lost > 0 {
			return 0, sandbox.Errorf(sandbox.Internal, "a gap in a file").From(sandbox.FromClient)
		}
		r.rest = g.Data
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// End says what was read; call it after Read returned io.EOF.
func (r *FileReader) End() (ReadEnd, error) {
	var a answer[ReadEnd]
	err := r.s.decodeEnd(&a)
	return a.Result, err
}

// Close leaves the stream.
func (r *FileReader) Close() error {
	r.s.close()
	return nil
}

// WriteFile writes a file whole and returns what it is now, with its hash.
func (c *Client) WriteFile(ctx context.Context, f PathTarget, data []byte, o sandbox.WriteOptions) (sandbox.FileInfo, error) {
	o.Size = int64(len(data))
	if len(data) > MaxInline {
		return c.Upload(ctx, f, bytes.NewReader(data), o)
	}
	return call[sandbox.FileInfo](ctx, c, OpWrite, &WriteRequest{PathTarget: f, WriteOptions: o, Data: data})
}

// Upload writes a file of any size from r. A failing or short r changes
// nothing.
func (c *Client) Upload(ctx context.Context, f PathTarget, r io.Reader, o sandbox.WriteOptions) (sandbox.FileInfo, error) {
	body := &WriteRequest{PathTarget: f, WriteOptions: o, Upload: true}
	return upload[sandbox.FileInfo](ctx, c, OpWrite, f.Sandbox, body, r)
}

// PutTar unpacks a tar archive into a directory, which is made when missing.
// size is -1 when it is not known.
func (c *Client) PutTar(ctx context.Context, f PathTarget, r io.Reader, size int64) (TarPutAnswer, error) {
	return upload[TarPutAnswer](ctx, c, OpTarPut, f.Sandbox, &TarPutRequest{PathTarget: f, Size: size}, r)
}

// upload makes a request whose content is sent beside it.
func upload[T any](ctx context.Context, c *Client, op Op, name sandbox.Name, body request, r io.Reader) (T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &inputWriter{c: c, area: AreaFile, name: name, id: sandbox.NewID(), at: make(chan WorkerID, 1)}
	sent := make(chan error, 1)
	go func() {
		err := w.copy(ctx, r)
		if err != nil && !errors.Is(err, errInputClosed) {
			w.abort()
			cancel(err) // the answer would only say that the upload was short
		}
		sent <- err
	}()
	result, err := callUpload[T](ctx, c, op, w, body)
	cancel(errInputClosed)
	if serr := <-sent; serr != nil && !errors.Is(serr, errInputClosed) && err != nil {
		err = serr
	}
	return result, err
}

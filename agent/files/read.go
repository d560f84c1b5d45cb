package files

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"shoal/agent"
	"shoal/sandbox"
)

const (
	chunk = 32 << 10
	// endless bounds the read of a file that has no size, as in /proc.
	endless = 1 << 20
)

var buffers = sync.Pool{New: func() any { return new([chunk]byte) }}

// copyBytes is io.Copy by chunks, with an end.
func copyBytes(ctx context.Context, w io.Writer, r io.Reader) (int64, error) {
	buf := buffers.Get().(*[chunk]byte)
	defer buffers.Put(buf)
	var total int64
	for {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		n, err := r.Read(buf[:])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return total, err
			}
			total += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// Read implements agent.Files. What is appended after the open is not part of it.
func (f *Files) Read(ctx context.Context, path string, o sandbox.ReadOptions, w io.Writer) (agent.ReadResult, error) {
	if err := f.check(path); err != nil {
		return agent.ReadResult{}, err
	}
	var file *os.File
	var st *unix.Stat_t
	err := f.asUser(ctx, "read", func() (err error) {
		file, st, err = openRegular(f.real(path))
		if errors.Is(err, errIsDir) {
			err = errNoFile // there is no file of that name to read
		}
		return err
	})
	if err != nil {
		return agent.ReadResult{}, err
	}
	defer file.Close()
	end := st.Size
	if end == 0 {
		end = endless
	}
	length := max(end-o.Offset, 0)
	if o.Limit > 0 {
		length = min(length, o.Limit)
	}
	sent, err := copyBytes(ctx, w, io.NewSectionReader(file, o.Offset, length))
	if err != nil {
		return agent.ReadResult{}, told("read", err)
	}
	cut := length < end-o.Offset
	if st.Size == 0 {
		cut = sent > 0 && sent == length
	}
	return agent.ReadResult{Size: st.Size, Truncated: cut}, nil
}

package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"shoal/agent"
	"shoal/agent/threads"
	"shoal/sandbox"
)

// place is a folder that files are put into, and nothing outside of it: with the
// user's rights or, for skills, with root's.
type place struct {
	root    *os.Root
	threads threads.Runner
	commit  agent.Commit
	most    int64 // bytes of a file, 0 = no bound
	tooMuch error
	mode    func(uint32) fs.FileMode // of a file
}

func userMode(mode uint32) fs.FileMode { return fs.FileMode(mode & 0o777) }

// skillMode makes a skill readable for everybody and writable for nobody but root.
func skillMode(mode uint32) fs.FileMode {
	if mode&0o111 != 0 {
		return 0o755
	}
	return 0o644
}

func (p *place) do(ctx context.Context, fn func() error) error {
	var err error
	if e := p.threads.Do(ctx, func() { err = fn() }); e != nil {
		return e
	}
	return err
}

// put writes one file: to a temporary name, then renamed. ifAbsent does not replace.
func (p *place) put(ctx context.Context, name string, o sandbox.WriteOptions, r io.Reader) (sum string, err error) {
	temp := filepath.Join(filepath.Dir(name), temporary())
	var file *os.File
	err = p.do(ctx, func() (err error) {
		if err := makeDirs(p.root, filepath.Dir(name)); err != nil {
			return err
		}
		file, err = p.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return "", err
	}
	defer func() {
		file.Close()
		if err != nil {
			_ = p.threads.Do(context.WithoutCancel(ctx), func() { _ = p.root.Remove(temp) })
		}
	}()
	if p.most > 0 {
		r = &capped{r: r, left: p.most, err: p.tooMuch}
	}
	if sum, err = receive(ctx, file, r, o); err != nil {
		return "", err
	}
	return sum, p.commit(func() error {
		return p.do(ctx, func() error { return p.settle(file, temp, name, o) })
	})
}

func (p *place) settle(file *os.File, temp, name string, o sandbox.WriteOptions) error {
	if err := file.Chmod(p.mode(o.Mode)); err != nil {
		return err
	}
	if info, err := p.root.Lstat(name); err == nil {
		switch {
		case info.IsDir():
			return errIsDir
		case o.IfAbsent:
			return errExists
		case !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink:
			return errNotRegular
		}
	}
	if o.IfAbsent {
		if err := p.root.Link(temp, name); err != nil {
			return err
		}
		return p.root.Remove(temp)
	}
	return p.root.Rename(temp, name)
}

// capped fails when more comes than is allowed.
type capped struct {
	r    io.Reader
	left int64
	err  error
}

func (c *capped) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if c.left -= int64(n); c.left < 0 {
		return 0, c.err
	}
	return n, err
}

// noLinks fails when a folder on the way is a link. What is missing is none. The
// os.Root alone does not hold under gVisor (2022): its MkdirAll went through "l -> ..".
func noLinks(root *os.Root, dir string) error {
	for ; dir != "."; dir = filepath.Dir(dir) {
		info, err := root.Lstat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.Mode().Type() == fs.ModeSymlink {
			return errEscapes
		}
	}
	return nil
}

package files

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"shoal/agent"
	"shoal/sandbox"
)

const (
	defaultMode = 0o644
	dirMode     = 0o755
	mostLinks   = 40 // as Linux has it
)

// temporary is the name of a file that has no content yet.
func temporary() string { return ".shoal-" + strings.ToLower(rand.Text()) + ".tmp" }

// target is where a write goes: a name in an open directory, links resolved.
type target struct {
	dir  *os.File // opened with O_PATH
	name string
	old  *unix.Stat_t // what is there, nil for nothing
	temp string
	file *os.File
}

func (t *target) fd() int { return int(t.dir.Fd()) }

// Write implements agent.Files.
func (f *Files) Write(ctx context.Context, path string, o sandbox.WriteOptions, r io.Reader, commit agent.Commit) (sandbox.FileInfo, error) {
	if err := f.checkChange(path); err != nil {
		return sandbox.FileInfo{}, err
	}
	if err := o.Validate(); err != nil {
		return sandbox.FileInfo{}, err
	}
	if name, ok := skill(path); ok {
		return f.writeSkill(ctx, path, name, o, r, commit)
	}
	t, err := f.openTarget(ctx, path, o)
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	defer f.closeTarget(ctx, t)
	sum, err := receive(ctx, t.file, r, o)
	if err != nil {
		return sandbox.FileInfo{}, told("write", err)
	}
	var info sandbox.FileInfo
	err = commit(func() error {
		return f.asUser(ctx, "write", func() (err error) {
			if err = t.place(o); err == nil {
				info, err = describe(unix.AT_FDCWD, f.real(path), path)
			}
			return err
		})
	})
	info.SHA256 = sum
	return info, err
}

// openTarget resolves the path, checks what is there and opens a temporary file
// beside it.
func (f *Files) openTarget(ctx context.Context, path string, o sandbox.WriteOptions) (*target, error) {
	var t *target
	var old *os.File
	err := f.asUser(ctx, "write", func() (err error) {
		place := f.real(path)
		if err := makeDirs(whole{}, filepath.Dir(place)); err != nil {
			return err
		}
		if t, err = resolve(place); err != nil {
			return err
		}
		if err := t.judge(o); err != nil {
			return err
		}
		if o.IfHash == "" {
			return t.create()
		}
		old, err = t.openOld()
		return err
	})
	if old != nil { // read outside the user's threads, which are few
		defer old.Close()
		var sum string
		if sum, err = hashOf(ctx, old); err == nil && sum != o.IfHash {
			err = errHash
		}
		if err == nil {
			err = f.asUser(ctx, "write", t.create)
		}
	}
	if err != nil {
		f.closeTarget(ctx, t)
		return nil, told("write", err)
	}
	return t, nil
}

// resolve follows links at the path's end to where the file is or would be.
func resolve(path string) (*target, error) {
	at := unix.AT_FDCWD
	var dir *os.File
	for range mostLinks {
		fd, err := openAt(at, filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY)
		if dir != nil {
			dir.Close()
		}
		if err != nil {
			return nil, err
		}
		dir = os.NewFile(uintptr(fd), "directory")
		t := &target{dir: dir, name: filepath.Base(path)}
		var st unix.Stat_t
		err = unix.Fstatat(fd, t.name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return t, nil
		}
		if err != nil {
			return t, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			t.old = &st
			return t, nil
		}
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, t.name, buf)
		if err != nil {
			return t, err
		}
		path, at = string(buf[:n]), fd
	}
	dir.Close()
	return nil, errLoop
}

// judge refuses what the options or the present file do not allow.
func (t *target) judge(o sandbox.WriteOptions) error {
	switch {
	case t.old == nil && o.IfHash != "":
		return errHash
	case t.old == nil:
		return nil
	case o.IfAbsent:
		return errExists
	}
	if err := regular(t.old); err != nil {
		return err
	}
	// A rename asks for the directory alone; a file that may not be written stays.
	return unix.Faccessat(t.fd(), t.name, unix.W_OK, unix.AT_EACCESS)
}

func (t *target) openOld() (*os.File, error) {
	fd, err := unix.Openat(t.fd(), t.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "old"), nil
}

func (t *target) create() error {
	t.temp = temporary()
	fd, err := unix.Openat(t.fd(), t.temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.temp = ""
		return err
	}
	t.file = os.NewFile(uintptr(fd), "temporary")
	return nil
}

// receive fills the temporary file and returns the hash of what came.
func receive(ctx context.Context, file *os.File, r io.Reader, o sandbox.WriteOptions) (string, error) {
	h := &counting{hash: sha256.New(), most: o.Size}
	if _, err := copyBytes(ctx, io.MultiWriter(h, file), r); err != nil {
		return "", err
	}
	if o.Size >= 0 && h.n != o.Size {
		return "", sandbox.InvalidField("size", "%d bytes came instead of %d; nothing was changed", h.n, o.Size)
	}
	if o.Durable {
		if err := file.Sync(); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.hash.Sum(nil)), nil
}

// counting hashes and refuses more than was announced.
type counting struct {
	hash hash.Hash
	n    int64
	most int64 // -1 = no bound
}

func (c *counting) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	if c.most >= 0 && c.n > c.most {
		return 0, sandbox.InvalidField("size", "more than the announced %d bytes came; nothing was changed", c.most)
	}
	return c.hash.Write(p)
}

// place makes the write take effect, unless the path has changed meanwhile.
func (t *target) place(o sandbox.WriteOptions) error {
	mode := o.Mode
	if mode == 0 {
		mode = defaultMode
	}
	if t.old != nil {
		mode = t.old.Mode
	}
	if err := unix.Fchmod(int(t.file.Fd()), mode&0o777); err != nil {
		return err
	}
	if err := t.replace(o); err != nil {
		return err
	}
	if o.Durable {
		return syncDir(t.fd())
	}
	return nil
}

func (t *target) replace(o sandbox.WriteOptions) error {
	if o.IfAbsent { // a link does not replace
		if err := unix.Linkat(t.fd(), t.temp, t.fd(), t.name, 0); err != nil {
			return err
		}
		err := unix.Unlinkat(t.fd(), t.temp, 0)
		t.temp = ""
		return err
	}
	if o.IfHash != "" {
		var st unix.Stat_t
		if err := unix.Fstatat(t.fd(), t.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Ino != t.old.Ino || st.Size != t.old.Size || st.Mtim != t.old.Mtim || st.Ctim != t.old.Ctim {
			return errHash
		}
	}
	if err := unix.Renameat(t.fd(), t.temp, t.fd(), t.name); err != nil {
		return err
	}
	t.temp = ""
	return nil
}

// syncDir makes a rename durable. A descriptor opened with O_PATH cannot be synced.
func syncDir(dir int) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fsync(fd)
}

// closeTarget removes a temporary file that was not placed, also when ctx is over.
func (f *Files) closeTarget(ctx context.Context, t *target) {
	if t == nil {
		return
	}
	if t.file != nil {
		t.file.Close()
	}
	if t.temp != "" {
		_ = f.cfg.Threads.Do(context.WithoutCancel(ctx), func() { _ = unix.Unlinkat(t.fd(), t.temp, 0) })
	}
	t.dir.Close()
}

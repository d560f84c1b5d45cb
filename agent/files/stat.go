package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"shoal/sandbox"
)

// Stat implements agent.Files. It does not follow a link at the path's end. The
// hash is of regular files only.
func (f *Files) Stat(ctx context.Context, path string, hash bool) (sandbox.FileInfo, error) {
	if err := f.check(path); err != nil {
		return sandbox.FileInfo{}, err
	}
	var info sandbox.FileInfo
	var file *os.File
	err := f.asUser(ctx, "stat", func() (err error) {
		if info, err = describe(unix.AT_FDCWD, f.real(path), path); err == nil && hash && info.Kind == sandbox.FileRegular {
			file, _, err = openRegular(f.real(path))
		}
		return err
	})
	if file == nil {
		return info, err
	}
	defer file.Close()
	info.SHA256, err = hashOf(ctx, file)
	return info, told("stat", err)
}

// describe is lstat with what a link leads to. It runs with the user's rights.
func describe(dir int, name, shown string) (sandbox.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return sandbox.FileInfo{}, err
	}
	info := infoOf(&st, shown)
	if info.Kind == sandbox.FileLink {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return sandbox.FileInfo{}, err
		}
		info.Target = string(buf[:n])
		info.Dangling = unix.Fstatat(dir, name, &st, 0) != nil
	}
	return info, nil
}

func infoOf(st *unix.Stat_t, shown string) sandbox.FileInfo {
	info := sandbox.FileInfo{
		Path: shown, Kind: sandbox.FileOther, Size: st.Size, Mode: st.Mode & 0o777,
		UID: st.Uid, GID: st.Gid, MTime: time.Unix(st.Mtim.Unix()).UTC(),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		info.Kind = sandbox.FileRegular
	case unix.S_IFDIR:
		info.Kind = sandbox.FileDir
	case unix.S_IFLNK:
		info.Kind = sandbox.FileLink
	}
	return info
}

// openRegular opens a file for reading if it is a regular one. It looks before,
// as the mere opening of a FIFO or a device can have effects, and after.
func openRegular(path string) (*os.File, *unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, nil, err
	}
	if err := regular(&st); err != nil {
		return nil, nil, err
	}
	fd, err := openPath(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fd), "file")
	if err := unix.Fstat(fd, &st); err != nil {
		file.Close()
		return nil, nil, err
	}
	if err := regular(&st); err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, &st, nil
}

func regular(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return errIsDir
	}
	return errNotRegular
}

// openPath opens a path, but not through links of /proc, which lead into the
// agent itself: its own /proc/self is what they would show.
func openPath(path string, flags int) (int, error) { return openAt(unix.AT_FDCWD, path, flags) }

func openAt(dir int, path string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(dir, path, &how)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // not in gVisor (2022), or refused by an engine's profile
		return unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0)
	}
	return fd, err
}

func hashOf(ctx context.Context, r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := copyBytes(ctx, h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// List implements agent.Files. A link to a directory is followed.
func (f *Files) List(ctx context.Context, dir string, o sandbox.ListOptions) (sandbox.FileList, error) {
	if err := f.check(dir); err != nil {
		return sandbox.FileList{}, err
	}
	if o.Limit <= 0 || o.Limit > sandbox.MaxListPage {
		o.Limit = sandbox.MaxListPage
	}
	var d *os.File
	err := f.asUser(ctx, "list", func() (err error) {
		d, err = openDir(f.real(dir))
		return err
	})
	if err != nil {
		return sandbox.FileList{}, err
	}
	defer d.Close()
	names, err := firstNames(ctx, d, o.After, o.Limit+1)
	if err != nil {
		return sandbox.FileList{}, told("list", err)
	}
	list := sandbox.FileList{More: len(names) > o.Limit}
	names = names[:min(len(names), o.Limit)]
	if list.More {
		list.Next = names[len(names)-1]
	}
	list.Entries = make([]sandbox.FileInfo, 0, len(names))
	err = f.asUser(ctx, "list", func() error {
		for _, name := range names {
			shown := filepath.Join(dir, name)
			if f.reserved(shown) {
				continue
			}
			if info, err := describe(int(d.Fd()), name, shown); err == nil { // else it vanished meanwhile
				list.Entries = append(list.Entries, info)
			}
		}
		return nil
	})
	return list, err
}

// openDir opens a directory for reading, with the user's rights.
func openDir(path string) (*os.File, error) {
	fd, err := openPath(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "directory"), nil
}

// nameBatch is how many names are read at once, and kept beyond those asked for.
const nameBatch = 2048

// firstNames returns the first n names after a name, in order. However many the
// directory has, it keeps few of them.
func firstNames(ctx context.Context, d *os.File, after string, n int) ([]string, error) {
	var kept []string
	cut := func() {
		slices.Sort(kept)
		kept = kept[:min(len(kept), n)]
	}
	for {
		names, err := d.Readdirnames(nameBatch)
		for _, name := range names {
			if name > after {
				kept = append(kept, name)
			}
		}
		if len(kept) > n+nameBatch {
			cut()
		}
		if errors.Is(err, io.EOF) {
			cut()
			return kept, nil
		}
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

package files

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxDepth bounds the folders that are open at once while a tree is followed.
const maxDepth = 256

// Mkdir implements agent.Files: with its parents, and without complaint where
// the directory is there. The mode, 0 for 0755, is a new directory's own.
func (f *Files) Mkdir(ctx context.Context, path string, mode uint32) error {
	if err := f.check(path); err != nil {
		return err
	}
	if mode&0o777 == 0 {
		mode = dirMode
	}
	if name, ok := skill(path); ok {
		return f.changeSkills("mkdir", func(root *os.Root) error { return makeDirs(root, name) }, name)
	}
	return f.asUser(ctx, "mkdir", func() error {
		place := f.real(path)
		if err := makeDirs(whole{}, filepath.Dir(place)); err != nil {
			return err
		}
		err := os.Mkdir(place, os.FileMode(mode&0o777))
		if errors.Is(err, unix.EEXIST) {
			return mustBeDir(place)
		}
		if err != nil {
			return err
		}
		return os.Chmod(place, os.FileMode(mode&0o777)) // whatever the umask is
	})
}

// maker makes folders: [whole] or an os.Root.
type maker interface {
	Stat(name string) (os.FileInfo, error)
	Mkdir(name string, perm os.FileMode) error
	Chmod(name string, perm os.FileMode) error
}

// whole is the whole file system.
type whole struct{}

func (whole) Stat(name string) (os.FileInfo, error)     { return os.Stat(name) }
func (whole) Mkdir(name string, perm os.FileMode) error { return os.Mkdir(name, perm) }
func (whole) Chmod(name string, perm os.FileMode) error { return os.Chmod(name, perm) }

// makeDirs makes a folder with its parents. The process's umask, which keeps the
// agent's own files to itself, does not matter.
func makeDirs(m maker, dir string) error {
	info, err := m.Stat(dir)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return unix.ENOTDIR
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := makeDirs(m, parent); err != nil {
			return err
		}
	}
	if err := m.Mkdir(dir, dirMode); err != nil {
		if errors.Is(err, os.ErrExist) { // somebody else made it
			return nil
		}
		return err
	}
	return m.Chmod(dir, dirMode)
}

func mustBeDir(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errExists
	}
	return nil
}

// Remove implements agent.Files. It never follows a link.
func (f *Files) Remove(ctx context.Context, path string, all bool) error {
	if err := f.checkChange(path); err != nil {
		return err
	}
	if name, ok := skill(path); ok {
		return f.changeSkills("remove", func(root *os.Root) error { return removeSkill(root, name, all) }, name)
	}
	return f.asUser(ctx, "remove", func() error {
		place := f.real(path)
		fd, err := openPath(filepath.Dir(place), unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return remove(ctx, fd, filepath.Base(place), all, maxDepth)
	})
}

// remove removes a name in a directory, with all what is below it too.
func remove(ctx context.Context, dir int, name string, all bool, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := unix.Unlinkat(dir, name, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	notFile := err
	err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return notFile // a file that may not be removed
	case !all || !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
		return err
	case depth == 0:
		return errTooDeep
	}
	if err := removeContent(ctx, dir, name, depth-1); err != nil {
		return err
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

func removeContent(ctx context.Context, dir int, name string, depth int) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), "directory")
	defer d.Close()
	for {
		names, err := d.Readdirnames(nameBatch)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := remove(ctx, fd, name, true, depth); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		// Some file systems skip names when others are removed under the reading.
		if _, err := d.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// Rename implements agent.Files: as rename(2), which replaces a file or an
// empty directory and needs one file system. Without replace a target that exists
// is Exists, and nobody's file is lost to a race for the name.
func (f *Files) Rename(ctx context.Context, from, to string, replace bool) error {
	if err := f.checkChange(from); err != nil {
		return err
	}
	if err := f.checkChange(to); err != nil {
		return err
	}
	oldName, fromSkills := skill(from)
	newName, toSkills := skill(to)
	switch {
	case fromSkills && toSkills:
		return f.changeSkills("rename", func(root *os.Root) error { return renameSkill(root, oldName, newName, replace) }, oldName, newName)
	case fromSkills || toSkills:
		return told("rename", unix.EXDEV)
	}
	return f.asUser(ctx, "rename", func() error { return rename(f.real(from), f.real(to), replace) })
}

func rename(from, to string, replace bool) error {
	if replace {
		return os.Rename(from, to)
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// A file system or a gVisor without that flag: look first.
	if _, err := os.Lstat(to); err == nil {
		return unix.EEXIST
	}
	return os.Rename(from, to)
}

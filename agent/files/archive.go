package files

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"shoal/agent"
	"shoal/sandbox"
)

// The bounds of an archive.
const (
	maxEntries = 1_000_000
	maxName    = 4096
)

// Pack implements agent.Files. Entries are named relative to the directory.
// Links are packed as links; FIFOs, sockets and devices are left out. A file that
// shrinks under the reading is an error (Conflict).
func (f *Files) Pack(ctx context.Context, dir string, w io.Writer) error {
	if err := f.check(dir); err != nil {
		return err
	}
	var d *os.File
	err := f.asUser(ctx, "pack", func() (err error) {
		d, err = openDir(f.real(dir))
		return err
	})
	if err != nil {
		return err
	}
	p := &packer{files: f, w: tar.NewWriter(w)}
	if err := p.dir(ctx, d, dir, "", maxDepth); err != nil {
		return told("pack", err)
	}
	return told("pack", p.w.Close())
}

type packer struct {
	files   *Files
	w       *tar.Writer
	entries int
}

// dir packs what is in d, and closes it.
func (p *packer) dir(ctx context.Context, d *os.File, shown, name string, depth int) error {
	defer d.Close()
	if depth == 0 {
		return errTooDeep
	}
	for {
		names, err := d.Readdirnames(nameBatch)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, base := range names {
			if p.files.reserved(path.Join(shown, base)) {
				continue
			}
			if err := p.entry(ctx, d, path.Join(shown, base), path.Join(name, base), depth); err != nil {
				return err
			}
		}
	}
}

func (p *packer) entry(ctx context.Context, d *os.File, shown, name string, depth int) error {
	if p.entries++; p.entries > maxEntries {
		return sandbox.Errorf(sandbox.TooLarge, "more than %d entries; pack a part of it", maxEntries)
	}
	base := path.Base(name)
	var info sandbox.FileInfo
	var file *os.File
	err := p.files.asUser(ctx, "pack", func() (err error) {
		if info, err = describe(int(d.Fd()), base, shown); err != nil {
			return err
		}
		flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
		switch info.Kind {
		case sandbox.FileDir:
			flags |= unix.O_DIRECTORY
		case sandbox.FileRegular:
		default:
			return nil
		}
		fd, err := unix.Openat(int(d.Fd()), base, flags, 0)
		if err == nil {
			file = os.NewFile(uintptr(fd), base)
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil // it vanished meanwhile
	}
	if err != nil {
		return err
	}
	header := &tar.Header{Name: name, Mode: int64(info.Mode), ModTime: info.MTime.Truncate(time.Second)}
	switch info.Kind {
	case sandbox.FileDir:
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
		if err := p.w.WriteHeader(header); err != nil {
			file.Close()
			return err
		}
		return p.dir(ctx, file, shown, name, depth-1)
	case sandbox.FileRegular:
		defer file.Close()
		return p.file(ctx, file, header)
	case sandbox.FileLink:
		header.Typeflag, header.Linkname = tar.TypeSymlink, info.Target
		return p.w.WriteHeader(header)
	default:
		return nil
	}
}

func (p *packer) file(ctx context.Context, file *os.File, header *tar.Header) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return err
	}
	if err := regular(&st); err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, st.Size
	if err := p.w.WriteHeader(header); err != nil {
		return err
	}
	n, err := copyBytes(ctx, p.w, io.LimitReader(file, st.Size))
	if err == nil && n < st.Size {
		err = sandbox.Errorf(sandbox.Conflict, "a file shrank while it was read; pack again").Because("changed").From(sandbox.FromSandbox)
	}
	return err
}

// Unpack implements agent.Files. The directory is made if it is missing. Files
// are replaced one by one; what an archive that breaks off has brought stays.
// Nothing is put outside of the directory, through no link. Owners in the archive
// are ignored, modes masked with 0777.
func (f *Files) Unpack(ctx context.Context, dir string, r io.Reader, commit agent.Commit) (entries int, err error) {
	if err := f.check(dir); err != nil {
		return 0, err
	}
	p, err := f.openPlace(ctx, dir, commit)
	if err != nil {
		return 0, err
	}
	defer p.root.Close()
	u := &unpacker{files: f, place: p, dir: dir}
	archive := tar.NewReader(r)
	for ; entries < maxEntries; entries++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if errors.Is(err, tar.ErrHeader) {
			return entries, sandbox.Errorf(sandbox.Invalid, "the archive is damaged").Wrap(err)
		}
		if err == nil {
			err = u.entry(ctx, header, archive)
		}
		if err != nil {
			return entries, told("unpack", err)
		}
	}
	return entries, sandbox.Errorf(sandbox.TooLarge, "more than %d entries", maxEntries)
}

// openPlace opens the folder to unpack into.
func (f *Files) openPlace(ctx context.Context, dir string, commit agent.Commit) (*place, error) {
	if name, ok := skill(dir); ok {
		p, err := f.openSkillsPlace(name, commit)
		return p, told("unpack", err)
	}
	p := &place{threads: f.cfg.Threads, commit: commit, mode: userMode}
	err := f.asUser(ctx, "unpack", func() (err error) {
		if err = makeDirs(whole{}, f.real(dir)); err == nil {
			p.root, err = os.OpenRoot(f.real(dir))
		}
		return err
	})
	return p, err
}

type unpacker struct {
	files *Files
	place *place
	dir   string
}

func (u *unpacker) entry(ctx context.Context, header *tar.Header, content io.Reader) error {
	name := filepath.Clean(header.Name)
	if len(header.Name) > maxName || !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return sandbox.Errorf(sandbox.Invalid, "the archive's entry %.100q leads out of the folder", header.Name)
	}
	if err := u.files.check(path.Join(u.dir, name)); err != nil {
		return err
	}
	p := u.place
	if err := p.do(ctx, func() error { return noLinks(p.root, filepath.Dir(name)) }); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return p.commit(func() error { return p.do(ctx, func() error { return u.folder(name, header) }) })
	case tar.TypeReg:
		return u.file(ctx, name, header, content)
	case tar.TypeSymlink:
		return p.commit(func() error { return p.do(ctx, func() error { return u.link(name, header.Linkname) }) })
	case tar.TypeLink:
		old := filepath.Clean(header.Linkname)
		if err := u.files.check(path.Join(u.dir, "/"+old)); err != nil {
			return err
		}
		return p.commit(func() error {
			return p.do(ctx, func() error {
				if err := u.clear(name); err != nil {
					return err
				}
				return p.root.Link(old, name)
			})
		})
	}
	return sandbox.Errorf(sandbox.Invalid, "the archive's entry %.100q is no file, folder or link", header.Name)
}

func (u *unpacker) folder(name string, header *tar.Header) error {
	if err := makeDirs(u.place.root, name); err != nil {
		return err
	}
	if name == "." || u.place.most > 0 { // a skill's folders are all alike
		return nil
	}
	// A folder that its owner cannot enter or write could not be filled.
	return u.place.root.Chmod(name, fs.FileMode(header.Mode&0o777)|0o700)
}

func (u *unpacker) file(ctx context.Context, name string, header *tar.Header, content io.Reader) error {
	o := sandbox.WriteOptions{Mode: uint32(header.Mode & 0o777), Size: header.Size}
	if _, err := u.place.put(ctx, name, o, content); err != nil {
		return err
	}
	if header.ModTime.Unix() <= 0 {
		return nil
	}
	return u.place.do(ctx, func() error { return u.place.root.Chtimes(name, time.Time{}, header.ModTime) })
}

// link makes a symbolic link; where it leads is not our business, as nothing
// here follows it out of the folder.
func (u *unpacker) link(name, target string) error {
	if err := u.clear(name); err != nil {
		return err
	}
	return u.place.root.Symlink(target, name)
}

// clear makes room for a link.
func (u *unpacker) clear(name string) error {
	if err := makeDirs(u.place.root, filepath.Dir(name)); err != nil {
		return err
	}
	err := u.place.root.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

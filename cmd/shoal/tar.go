package main

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// packTree writes a directory to w as a tar archive with relative names.
func packTree(dir string, w io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tw := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		return packEntry(root, tw, name, d)
	})
	return errors.Join(err, tw.Close())
}

func packEntry(root *os.Root, tw *tar.Writer, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if link, err = root.Readlink(name); err != nil {
			return err
		}
	case !info.Mode().IsRegular() && !info.IsDir():
		return nil // sockets, pipes and devices do not travel
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = filepath.ToSlash(name)
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	if info.IsDir() {
		h.Name += "/"
	}
	if err := tw.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(tw, f, info.Size()) // a file that shrinks meanwhile is an error, one that grows is cut
	return err
}

// unpackTree makes what the archive says below root, which nothing in it can
// leave. It returns the names that it left out.
func unpackTree(root *os.Root, r io.Reader) (skipped []string, err error) {
	const most = 1000 // names that are kept to be told
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r) // the stream's own end tells whether it is whole
			return skipped, err
		}
		if err != nil {
			return skipped, err
		}
		done, err := unpackEntry(root, tr, h)
		if err != nil {
			return skipped, err
		}
		if !done && len(skipped) < most {
			skipped = append(skipped, h.Name)
		}
	}
}

func unpackEntry(root *os.Root, tr io.Reader, h *tar.Header) (done bool, err error) {
	name := path.Clean(h.Name)
	if name == "." {
		return true, nil
	}
	if !filepath.IsLocal(name) {
		return false, nil
	}
	mode := fs.FileMode(h.Mode).Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		return true, root.MkdirAll(name, mode|0o700)
	case tar.TypeReg:
		return true, unpackFile(root, tr, name, mode)
	case tar.TypeSymlink:
		return unpackLink(root, name, h.Linkname)
	}
	return false, nil
}

func unpackFile(root *os.Root, r io.Reader, name string, mode fs.FileMode) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	// A file or link that is there is replaced, not written through.
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// unpackLink makes a link when it leads to somewhere inside.
func unpackLink(root *os.Root, name, target string) (bool, error) {
	if path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(name), target)) || strings.Contains(target, "\x00") {
		return false, nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return false, err
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, root.Symlink(target, name)
}

package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"shoal/agent"
	"shoal/agent/threads"
	"shoal/sandbox"
)

// The skills folder is root's. Its os.Root lets no path leave it, and paths
// through links are refused, as a link could lead to the reserved file.

// openSkills opens the writable skills folder and checks the names to be used in it.
func (f *Files) openSkills(names ...string) (*os.Root, error) {
	root, err := os.OpenRoot(f.cfg.SkillsWrite)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := noLinks(root, filepath.Dir(name)); err != nil {
			root.Close()
			return nil, err
		}
	}
	return root, nil
}

func (f *Files) changeSkills(what string, change func(*os.Root) error, names ...string) error {
	root, err := f.openSkills(names...)
	if err != nil {
		return told(what, err)
	}
	defer root.Close()
	return told(what, change(root))
}

// renameSkill needs no help of the kernel: only the agent writes here, one
// change at a time.
func renameSkill(root *os.Root, from, to string, replace bool) error {
	if _, err := root.Lstat(to); err == nil && !replace {
		return syscall.EEXIST
	}
	return root.Rename(from, to)
}

func removeSkill(root *os.Root, name string, all bool) error {
	if !all {
		return root.Remove(name)
	}
	if _, err := root.Lstat(name); err != nil { // RemoveAll does not complain
		return err
	}
	return root.RemoveAll(name)
}

func (f *Files) skillsPlace(root *os.Root, commit agent.Commit) *place {
	return &place{
		root: root, threads: threads.Self{}, commit: commit,
		most: f.cfg.SkillsMax, mode: skillMode,
		tooMuch: sandbox.Errorf(sandbox.TooLarge, "a file below %s has at most %d bytes", skills, f.cfg.SkillsMax),
	}
}

// writeSkill writes below /skills. A link at the path's end is replaced.
func (f *Files) writeSkill(ctx context.Context, path, name string, o sandbox.WriteOptions, r io.Reader, commit agent.Commit) (sandbox.FileInfo, error) {
	root, err := f.openSkills(name)
	if err != nil {
		return sandbox.FileInfo{}, told("write", err)
	}
	defer root.Close()
	if err := checkSkillHash(ctx, root, name, o); err != nil {
		return sandbox.FileInfo{}, told("write", err)
	}
	sum, err := f.skillsPlace(root, commit).put(ctx, name, o, r)
	if err != nil {
		return sandbox.FileInfo{}, told("write", err)
	}
	st, err := root.Lstat(name)
	if err != nil {
		return sandbox.FileInfo{}, told("write", err)
	}
	return sandbox.FileInfo{
		Path: path, Kind: sandbox.FileRegular, Size: st.Size(), Mode: uint32(st.Mode().Perm()),
		MTime: st.ModTime().UTC(), SHA256: sum,
	}, nil
}

func checkSkillHash(ctx context.Context, root *os.Root, name string, o sandbox.WriteOptions) error {
	if o.IfHash == "" {
		return nil
	}
	file, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return errHash
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if sum, err := hashOf(ctx, file); err != nil || sum != o.IfHash {
		return errors.Join(errHash, err)
	}
	return nil
}

// openSkillsPlace opens the folder to unpack a skill into.
func (f *Files) openSkillsPlace(name string, commit agent.Commit) (*place, error) {
	root, err := f.openSkills(filepath.Join(name, "x"))
	if err != nil || name == "" {
		return f.skillsPlace(root, commit), err
	}
	defer root.Close()
	if err := makeDirs(root, name); err != nil {
		return nil, err
	}
	sub, err := root.OpenRoot(name)
	return f.skillsPlace(sub, commit), err
}

package envd

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// entry is a file as the file-system service describes it. A link has the type
// and the mode of what it leads to, everything else is its own.
type entry struct {
	Name          string            `json:"name"`
	Type          string            `json:"type,omitempty"`
	Path          string            `json:"path"`
	Size          string            `json:"size,omitempty"` // an int64 of protobuf
	Mode          uint32            `json:"mode,omitempty"`
	Permissions   string            `json:"permissions"`
	Owner         string            `json:"owner"`
	Group         string            `json:"group"`
	ModifiedTime  string            `json:"modifiedTime"`
	SymlinkTarget string            `json:"symlinkTarget,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
}

type entryAnswer struct {
	Entry *entry `json:"entry"`
}

func (s *Server) describeFile(path string) (*entry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	e := &entry{
		Name: filepath.Base(path), Path: path, Permissions: info.Mode().String(),
		ModifiedTime: info.ModTime().UTC().Format(time.RFC3339Nano), Metadata: s.metadataOf(path),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Owner, e.Group = ownerNames(st)
	}
	if info.Size() > 0 {
		e.Size = strconv.FormatInt(info.Size(), 10)
	}
	led := info
	if info.Mode().Type() == fs.ModeSymlink {
		e.SymlinkTarget = path
		if target, err := filepath.EvalSymlinks(path); err == nil {
			e.SymlinkTarget = target
		}
		if led, err = os.Stat(path); err != nil {
			return e, nil //nolint:nilerr // a link that leads nowhere has no type
		}
	}
	e.Mode = uint32(led.Mode().Perm())
	switch {
	case led.IsDir():
		e.Type = "FILE_TYPE_DIRECTORY"
	case led.Mode().IsRegular():
		e.Type = "FILE_TYPE_FILE"
	}
	return e, nil
}

// ownerNames gives names, else numbers.
func ownerNames(st *syscall.Stat_t) (owner, group string) {
	owner, group = strconv.FormatUint(uint64(st.Uid), 10), strconv.FormatUint(uint64(st.Gid), 10)
	if u, err := user.LookupId(owner); err == nil {
		owner = u.Username
	}
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	return owner, group
}

// pathRequest is what most methods take.
type pathRequest struct {
	Path  string `json:"path"`
	Depth int    `json:"depth"`
}

// pathOf decodes a request and makes its path absolute.
func (s *Server) pathOf(r *http.Request, name string, body []byte) (pathRequest, account, *rpcError) {
	var req pathRequest
	if err := unmarshal(name, body, &req); err != nil {
		return req, account{}, err
	}
	a, rpcErr := s.userOf(r)
	if rpcErr != nil {
		return req, a, rpcErr
	}
	path, err := s.resolve(req.Path, a)
	if err != nil {
		return req, a, rpcErrorf("invalid_argument", "%v", err)
	}
	req.Path = path
	return req, a, nil
}

func (s *Server) stat(r *http.Request, body []byte) (any, *rpcError) {
	req, _, rpcErr := s.pathOf(r, "StatRequest", body)
	if rpcErr != nil {
		return nil, rpcErr
	}
	return s.entryOf(req.Path)
}

func (s *Server) entryOf(path string) (any, *rpcError) {
	e, err := s.describeFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, rpcErrorf("not_found", "file not found: %v", err)
	case err != nil:
		return nil, rpcErrorf("internal", "error getting file info: %v", err)
	}
	return entryAnswer{e}, nil
}

func (s *Server) listDir(r *http.Request, body []byte) (any, *rpcError) {
	req, _, rpcErr := s.pathOf(r, "ListDirRequest", body)
	if rpcErr != nil {
		return nil, rpcErr
	}
	info, err := os.Lstat(req.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, rpcErrorf("not_found", "path not found: %v", err)
	case err != nil:
		return nil, rpcErrorf("internal", "error getting file info: %v", err)
	case !info.IsDir():
		return nil, rpcErrorf("invalid_argument", "path is not a directory: %s", req.Path)
	}
	var out struct {
		Entries []*entry `json:"entries,omitempty"`
	}
	err = filepath.WalkDir(req.Path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == req.Path {
			return err
		}
		e, err := s.describeFile(path)
		if err != nil {
			return err
		}
		out.Entries = append(out.Entries, e)
		if d.IsDir() && strings.Count(strings.TrimPrefix(path, req.Path), "/") >= max(req.Depth, 1) {
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, rpcErrorf("internal", "error reading directory: %v", err)
	}
	return out, nil
}

func (s *Server) makeDir(r *http.Request, body []byte) (any, *rpcError) {
	req, a, rpcErr := s.pathOf(r, "MakeDirRequest", body)
	if rpcErr != nil {
		return nil, rpcErr
	}
	info, err := os.Stat(req.Path)
	switch {
	case err == nil && info.IsDir():
		return nil, rpcErrorf("already_exists", "directory already exists: %s", req.Path)
	case err == nil:
		return nil, rpcErrorf("invalid_argument", "path already exists but it is not a directory: %s", req.Path)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, rpcErrorf("internal", "error getting file info: %v", err)
	}
	if err := s.parents(req.Path, a); err != nil {
		return nil, rpcErrorf("internal", "%v", err)
	}
	return s.entryOf(req.Path)
}

func (s *Server) moveFile(r *http.Request, body []byte) (any, *rpcError) {
	var req struct {
		Source      string `json:"source"`
		Destination string `json:"destination"`
	}
	if err := unmarshal("MoveRequest", body, &req); err != nil {
		return nil, err
	}
	a, rpcErr := s.userOf(r)
	if rpcErr != nil {
		return nil, rpcErr
	}
	from, fromErr := s.resolve(req.Source, a)
	to, toErr := s.resolve(req.Destination, a)
	if err := errors.Join(fromErr, toErr); err != nil {
		return nil, rpcErrorf("invalid_argument", "%v", err)
	}
	if err := s.parents(filepath.Dir(to), a); err != nil {
		return nil, rpcErrorf("internal", "%v", err)
	}
	err := os.Rename(from, to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, rpcErrorf("not_found", "source file not found: %v", err)
	case err != nil:
		return nil, rpcErrorf("internal", "error renaming: %v", err)
	}
	return s.entryOf(to)
}

// removeFile takes what is missing for removed.
func (s *Server) removeFile(r *http.Request, body []byte) (any, *rpcError) {
	req, _, rpcErr := s.pathOf(r, "RemoveRequest", body)
	if rpcErr != nil {
		return nil, rpcErr
	}
	if err := os.RemoveAll(req.Path); err != nil {
		return nil, rpcErrorf("internal", "error removing file or directory: %v", err)
	}
	return struct{}{}, nil
}

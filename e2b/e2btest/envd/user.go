package envd

import (
	"fmt"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is a user as processes and files need it.
type account struct {
	name string
	home string
	uid  int
	gid  int
}

// userOf resolves the user that a call names; an unknown one fails every call.
func (s *Server) userOf(r *http.Request) (account, *rpcError) {
	name, ok := basicUser(r)
	if !ok {
		name = s.cfg.DefaultUser
	}
	a, err := s.lookup(name)
	if err != nil {
		return account{}, rpcErrorf("unauthenticated", "invalid username: '%s'", name)
	}
	return a, nil
}

func (s *Server) lookup(name string) (account, error) {
	if s.cfg.AnyUser {
		if name != "root" && name != "sandbox" {
			return account{}, user.UnknownUserError(name)
		}
		return account{name: name, home: os.TempDir(), uid: os.Getuid(), gid: os.Getgid()}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, err
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if uidErr != nil || gidErr != nil {
		return account{}, fmt.Errorf("user %s has no numeric ids", name)
	}
	return account{name: name, home: u.HomeDir, uid: uid, gid: gid}, nil
}

// credential is what a process of a runs with; nil keeps the daemon's own.
func (s *Server) credential(a account) *syscall.Credential {
	if s.cfg.AnyUser || a.uid == os.Getuid() {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// resolve makes a path of a request absolute: relative ones hang off the home,
// not the working directory.
func (s *Server) resolve(path string, a account) (string, error) {
	switch {
	case path == "":
		if s.cfg.Workdir != "" {
			return s.cfg.Workdir, nil
		}
		return a.home, nil
	case path == "~" || strings.HasPrefix(path, "~/"):
		return filepath.Join(a.home, path[1:]), nil
	case strings.HasPrefix(path, "~"):
		return "", fmt.Errorf("failed to expand path '' for user '%s': cannot expand user-specific home dir", a.name)
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	default:
		return filepath.Join(a.home, path), nil
	}
}

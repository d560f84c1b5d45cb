package files

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"shoal/agent"
	"shoal/agent/threads"
	"shoal/sandbox"
)

// Where sandboxes have their folders.
const (
	home   = "/workspace"
	skills = "/skills"
)

// Config says where files are and with whose rights they are touched.
type Config struct {
	// Threads run with the user's rights.
	Threads threads.Runner
	// Workspace is the folder that stands for /workspace. Defaults to itself.
	Workspace string
	// Skills is the folder that stands for /skills when reading. Defaults to itself.
	Skills string
	// SkillsWrite is where the agent writes what is read at /skills. Defaults to
	// /opt/shoal/skills.
	SkillsWrite string
	// SkillsMax is the most bytes that one file below /skills may have. Defaults
	// to 256 MiB.
	SkillsMax int64
	// Reserved is the name of a file of the agent's own at the top of the skills
	// folder, which the methods neither show nor touch; "" = none.
	Reserved string
}

// Files is a sandbox's file system.
type Files struct {
	cfg Config
}

var _ agent.Files = (*Files)(nil)

// New checks the configuration and opens nothing.
func New(cfg Config) (*Files, error) {
	if cfg.Threads == nil {
		return nil, errors.New("files: Threads must be set")
	}
	for _, d := range []struct {
		path  *string
		usual string
	}{{&cfg.Workspace, home}, {&cfg.Skills, skills}, {&cfg.SkillsWrite, "/opt/shoal/skills"}} {
		if *d.path == "" {
			*d.path = d.usual
		}
		if !filepath.IsAbs(*d.path) {
			return nil, errors.New("files: Workspace, Skills and SkillsWrite must be absolute")
		}
	}
	if cfg.SkillsMax < 0 || strings.ContainsRune(cfg.Reserved, '/') {
		return nil, errors.New("files: SkillsMax must not be negative and Reserved be a plain name")
	}
	if cfg.SkillsMax == 0 {
		cfg.SkillsMax = 256 << 20
	}
	return &Files{cfg: cfg}, nil
}

// below returns the rest of path under dir: "" for dir itself.
func below(path, dir string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, dir)
	return strings.TrimPrefix(rest, "/"), ok && (rest == "" || rest[0] == '/')
}

// real is where a path of the sandbox is found.
func (f *Files) real(path string) string {
	if rest, ok := below(path, home); ok {
		return filepath.Join(f.cfg.Workspace, rest)
	}
	if rest, ok := below(path, skills); ok {
		return filepath.Join(f.cfg.Skills, rest)
	}
	return path
}

// asUser runs fn with the user's rights. fn's errors become [sandbox.Error]s.
func (f *Files) asUser(ctx context.Context, what string, fn func() error) error {
	var err error
	if e := f.cfg.Threads.Do(ctx, func() { err = fn() }); e != nil {
		return e
	}
	return told(what, err)
}

// reserved says whether path is the agent's own file.
func (f *Files) reserved(path string) bool {
	rest, ok := below(path, skills)
	return ok && f.cfg.Reserved != "" && rest == f.cfg.Reserved
}

// check refuses what no operation may touch.
func (f *Files) check(path string) error {
	if err := sandbox.ValidatePath("path", path); err != nil {
		return err
	}
	if f.reserved(path) {
		return sandbox.Errorf(sandbox.Permission, "the file belongs to the sandbox itself").From(sandbox.FromSandbox)
	}
	return nil
}

// fixed are the folders that a sandbox cannot do without.
var fixed = []string{"/", home, skills, "/tmp"}

// checkChange is check for an operation that moves or removes path itself.
func (f *Files) checkChange(path string) error {
	if err := f.check(path); err != nil {
		return err
	}
	for _, dir := range fixed {
		if path == dir {
			return sandbox.Errorf(sandbox.Permission, "%s itself stays; name something in it", dir).From(sandbox.FromSandbox)
		}
	}
	return nil
}

// skill returns the path within the skills folder, if it leads there.
func skill(path string) (rest string, ok bool) { return below(path, skills) }

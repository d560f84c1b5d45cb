package filter

import (
	"path"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

type execBody struct {
	User         string                    `json:"User,omitempty"`
	Tty          bool                      `json:"Tty"`
	AttachStdin  bool                      `json:"AttachStdin"`
	AttachStdout bool                      `json:"AttachStdout"`
	AttachStderr bool                      `json:"AttachStderr"`
	Env          []string                  `json:"Env,omitempty"`
	WorkingDir   string                    `json:"WorkingDir,omitempty"`
	Cmd          []string                  `json:"Cmd"`
	Extra        map[string]jsontext.Value `json:",embed"`
}

// judgeExec judges the body of an exec create and writes it anew.
func judgeExec(p *Policy, c *Call, body []byte) *Refusal {
	var b execBody
	if r := decodeStrict(body, &b); r != nil {
		return r
	}
	if r := checkInert(b.Extra, p.InertKeys, inertExec); r != nil {
		return r
	}
	rule := &p.Exec
	switch {
	case !rule.admitsCmd(b.Cmd):
		return refuse("exec.cmd", "the command is not one that may be started")
	case !slices.Contains(rule.Users, b.User):
		return refuse("exec.user", "the user is not on the list")
	case len(b.Env) > 0 && !rule.FreeEnv || len(b.Env) > maxEnv:
		return refuse("exec.env", "an environment is not admitted here, or it is too long")
	case b.WorkingDir != "" && !(rule.FreeDir && safeDir(b.WorkingDir)):
		return refuse("exec.workdir", "the working directory is not admitted")
	case b.Tty:
		return refuse("exec.tty", "a terminal is not admitted")
	}
	b.Extra = nil
	var r *Refusal
	c.Body, r = encode(b)
	return r
}

func (e *ExecRule) admitsCmd(cmd []string) bool {
	if len(cmd) == 0 || cmd[0] == "" {
		return false
	}
	return len(e.Cmds) == 0 || slices.ContainsFunc(e.Cmds, func(c []string) bool { return slices.Equal(c, cmd) })
}

// safeDir refuses directories that may be leaked descriptors or devices
// (CVE-2024-21626: a working directory below /proc/self/fd escaped).
func safeDir(dir string) bool {
	if !strings.HasPrefix(dir, "/") || path.Clean(dir) != dir || strings.ContainsRune(dir, 0) {
		return false
	}
	for _, bad := range []string{"/proc", "/sys", "/dev"} {
		if dir == bad || strings.HasPrefix(dir, bad+"/") {
			return false
		}
	}
	return true
}

type execStartBody struct {
	Detach bool `json:"Detach"`
	Tty    bool `json:"Tty"`
}

// judgeExecStart admits only an attached start without a terminal: a detached
// one would run without anybody reading it.
func judgeExecStart(_ *Policy, c *Call, body []byte) *Refusal {
	var b execStartBody
	if r := decodeStrict(body, &b); r != nil {
		return r
	}
	if b.Detach || b.Tty {
		return refuse("exec.start", "Detach and Tty must be false")
	}
	var r *Refusal
	c.Body, r = encode(b)
	return r
}

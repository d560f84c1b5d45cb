package filter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Level says how bad a finding is.
type Level string

// The levels of a [Finding].
const (
	LevelOK      Level = "ok"
	LevelWarning Level = "warning" // weaker than it could be
	LevelProblem Level = "problem" // sandboxes would not be safe
)

// A Finding is one thing to know about an engine, and what to do about it.
type Finding struct {
	Level  Level  `json:"level"`
	Name   string `json:"name"` // stable, such as "seccomp"
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"` // "" for LevelOK
}

// Findings judges the state.
func (s *EngineState) Findings() []Finding {
	var out []Finding
	add := func(bad bool, level Level, name, detail, remedy string) {
		if !bad {
			level, remedy = LevelOK, ""
		}
		out = append(out, Finding{level, name, detail, remedy})
	}
	add(s.apiTooOld(), LevelProblem, "api", fmt.Sprintf("engine %s speaks API %s to %s", s.Version, s.MinAPI, s.API),
		"use an engine that speaks API 1.41: older ones make private namespaces only when asked")
	add(s.Seccomp == "" || s.Seccomp == "unconfined", LevelProblem, "seccomp", "profile "+orNone(s.Seccomp),
		"let the engine apply its default seccomp profile, or run sandboxes under runsc")
	add(!s.AppArmor && !s.SELinux, LevelWarning, "mandatory access control", s.mac(),
		"enable AppArmor or SELinux on the host")
	add(!s.UserNS && !s.Rootless, LevelWarning, "user namespaces", s.userns(),
		"set userns-remap in the engine's configuration: root in a container is then nobody on the host")
	add(len(s.Missing) > 0, LevelProblem, "limits", "not enforced: "+orNone(strings.Join(s.Missing, ", ")),
		"enable the missing cgroup controllers in the kernel")
	add(!slices.Contains(s.Runtimes, "runsc"), LevelWarning, "runtimes", strings.Join(s.Runtimes, ", ")+"; default "+s.Runtime,
		"install gVisor's runsc and register it as a runtime: it is the stronger wall")
	add(s.Storage == "vfs" || s.Storage == "devicemapper" || s.Storage == "aufs", LevelWarning, "storage",
		fmt.Sprintf("driver %s on %s", s.Storage, orNone(s.Filesystem)), "use overlay2")
	add(s.Cgroup != "2", LevelWarning, "cgroups", "version "+orNone(s.Cgroup), "boot the host with cgroup version 2")
	return append(out, s.escapes()...)
}

func (s *EngineState) apiTooOld() bool {
	v, err := parseAPIVersion(s.API)
	return err != nil || v.less(apiVersion{1, 41})
}

func (s *EngineState) mac() string {
	switch {
	case s.AppArmor:
		return "AppArmor"
	case s.SELinux:
		return "SELinux"
	}
	return "none"
}

func (s *EngineState) userns() string {
	switch {
	case s.UserNS:
		return "remapped"
	case s.Rootless:
		return "rootless"
	}
	return "root in a container is root on the host"
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// An escape is a known way out and the releases that closed it, one for each
// branch that was mended, ascending.
type escape struct {
	component, id, what string
	fixed               []string
}

// escapes are the known ways out that a sandbox's code could try.
var escapes = []escape{
	{"runc", "CVE-2024-21626", "a leaked descriptor as working directory", []string{"1.1.12"}},
	{"runc", "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", "races on masked paths and /dev/console", []string{"1.2.8", "1.3.3", "1.4.0"}},
	{"engine", "CVE-2024-29018", "an internal network resolves outside names", []string{"23.0.11", "25.0.5", "26.0.0"}},
	{"engine", "CVE-2026-41567, CVE-2026-41568, CVE-2026-42306", "docker cp and mount set-up", []string{"29.5.1"}},
	{"containerd", "2026 image advisories", "an image exhausts memory", []string{"1.7.33", "2.0.10", "2.1.9", "2.2.5", "2.3.2"}},
}

// escapes compares versions. Distributors mend old versions without changing
// their number, so a lower number is a warning.
func (s *EngineState) escapes() (out []Finding) {
	versions := map[string]string{"runc": s.Runc, "engine": s.Version, "containerd": s.Containerd}
	for _, e := range escapes {
		have := versions[e.component]
		f := Finding{LevelOK, e.id, e.component + " " + orNone(have) + " has the fix (" + e.what + ")", ""}
		if !hasFix(have, e.fixed) {
			f = Finding{
				LevelWarning, e.id,
				fmt.Sprintf("%s %s is older than the release with the fix (%s)", e.component, orNone(have), e.what),
				"update to " + strings.Join(e.fixed, " or ") + ", or make sure that your distributor has mended its version",
			}
		}
		out = append(out, f)
	}
	return out
}

// hasFix reports whether version is at least the fixed release of its own
// branch (major.minor), or of a branch newer than all that were mended.
func hasFix(version string, fixed []string) bool {
	v := numbers(version)
	for _, f := range fixed {
		w := numbers(f)
		if v[0] == w[0] && v[1] == w[1] {
			return v[2] >= w[2]
		}
	}
	last := numbers(fixed[len(fixed)-1])
	return slices.Compare(v[:], last[:]) > 0
}

// numbers reads "1.6.20~ds1" as 1, 6, 20; what is missing is 0.
func numbers(version string) (n [3]int) {
	for i, part := range strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3) {
		end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(part)
		}
		n[i], _ = strconv.Atoi(part[:end])
	}
	return n
}

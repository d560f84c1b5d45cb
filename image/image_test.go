package image_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"shoal/agent"
	"shoal/image"
)

// programs are the static programs that the image carries.
var programs = []string{"agent", "launch", "attach"}

// docker runs the command line with a bound and returns what it printed.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("docker %s: %v (is the engine up and the image built? run: make image)\n%s%s",
			strings.Join(args, " "), err, stdout.Bytes(), stderr.Bytes())
	}
	return strings.TrimRight(stdout.String(), "\n")
}

func needEngine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a Docker engine: run without -short")
	}
}

// box starts a container of the image that idles as a sandbox would be started:
// as root without most capabilities, root file system read-only, no network.
func box(t *testing.T) string {
	t.Helper()
	name := "shoal-imagetest-" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() { _ = exec.Command("docker", "rm", "-f", name).Run() })
	docker(t, "run", "-d", "--name", name, "--label", "shoal.imagetest="+name, "--init", "--user", "0:0",
		"--read-only", "--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--tmpfs", "/tmp:nosuid,nodev,exec,mode=1777", "--entrypoint", "sleep", image.Name(), "600")
	return name
}

// TestFiles lists what a sandbox finds in the image. Each script runs in bash and
// must print exactly want, on standard output and error together.
func TestFiles(t *testing.T) {
	needEngine(t)
	t.Parallel()
	name := box(t)
	marks := marksInOrder()
	tests := map[string]struct{ user, script, want string }{
		"programs": {
			user: "1000",
			script: `for p in bash ls sort timeout find xargs grep ps pgrep setsid flock curl git jq python3 pip3 openssl; do
				command -v $p >/dev/null || echo missing $p; done`,
		},
		"certificates":      {user: "1000", script: `grep -c 'BEGIN CERTIFICATE' /etc/ssl/certs/ca-certificates.crt | awk '{ print ($1 > 50) }'`, want: "1"},
		"python with venv":  {user: "1000", script: `python3 -m venv /tmp/venv && /tmp/venv/bin/pip --version | cut -d' ' -f1`, want: "pip"},
		"git works":         {user: "1000", script: `cd /tmp && git init -q repo && cd repo && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --format=%s`, want: "x"},
		"user":              {user: "1000", script: `id -un; id -gn; id -u; id -g; getent passwd 1000 | cut -d: -f6,7`, want: "sandbox\nsandbox\n1000\n1000\n/workspace:/bin/bash"},
		"no password":       {user: "0", script: `grep ^sandbox: /etc/shadow | cut -d: -f2`, want: "!"},
		"marks are named":   {user: "0", script: `getent group | awk -F: '$3 > 60000 && $3 < 65000 { print $3 }' | sort -n`, want: marks},
		"workspace":         {user: "0", script: `stat -c '%a %u %g' /workspace`, want: "755 1000 1000"},
		"skills":            {user: "0", script: `stat -c '%a %u %g' /skills /opt/shoal/skills`, want: "755 0 0\n755 0 0"},
		"opt shoal is shut": {user: "0", script: `stat -c '%a %u %g' /opt/shoal /run/shoal`, want: "700 0 0\n700 0 0"},
		"commands stay out": {user: "1000", script: `ls /opt/shoal /opt/shoal/bin 2>&1 | grep -c 'Permission denied'`, want: "2"},
		"our programs":      {user: "0", script: `cd /opt/shoal/bin && stat -c '%n %a %u %g' *`, want: "agent 755 0 0\nattach 755 0 0\nlaunch 755 0 0"},
		"no setuid":         {user: "0", script: `find / -xdev ! -type l -perm /6000 -not -path '/proc/*'`},
		"no capabilities": {user: "0", script: `python3 -c '
import os
for d, _, fs in os.walk("/usr"):
    for f in fs:
        try: print(os.path.join(d, f), os.getxattr(os.path.join(d, f), "security.capability", follow_symlinks=False))
        except OSError: pass'`},
		"root's, not others'": {user: "0", script: `find / -xdev \( -path /proc -o -path /sys -o -path /dev \) -prune -o ! -type l -perm /o+w -not -perm -1000 -print`},
		"owned by the user":   {user: "0", script: `find / -xdev \( -path /proc -o -path /sys -o -path /tmp \) -prune -o -user 1000 -print`, want: "/workspace"},
		"login shell":         {user: "1000", script: `bash -lc 'pwd; id -un'`, want: "/workspace\nsandbox"},
		"no proxy left":       {user: "0", script: `grep -rilE 'proxy' /etc/apt /etc/environment /etc/profile.d 2>/dev/null; env | grep -i proxy`},
	}
	for promise, tt := range tests {
		t.Run(promise, func(t *testing.T) {
			// A script may end with a grep that finds nothing, so its own exit code says nothing.
			got := docker(t, "exec", "-u", tt.user, name, "bash", "-c", "{ "+tt.script+"\n} 2>&1; true")
			if got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

func marksInOrder() string {
	var marks []string
	for gid := 61000; gid <= 62023; gid++ {
		marks = append(marks, strconv.Itoa(gid))
	}
	return strings.Join(marks, "\n")
}

// TestMarkIsQuiet runs id and groups with the groups that a command has.
func TestMarkIsQuiet(t *testing.T) {
	needEngine(t)
	t.Parallel()
	for _, mark := range []string{"61000", "61511", "62023"} {
		got := docker(t, "run", "--rm", "--network", "none", "--user", "1000:1000", "--group-add", mark,
			"--entrypoint", "bash", image.Name(), "-lc", "{ groups; id -Gn; } 2>&1")
		want := "sandbox mark" + mark
		if got != want+"\n"+want {
			t.Errorf("groups and id say %q, want twice %q", got, want)
		}
	}
}

// TestConfig checks what the engine reads from the image.
func TestConfig(t *testing.T) {
	needEngine(t)
	t.Parallel()
	want := config{
		Labels:     map[string]string{"shoal.agent": strconv.Itoa(agent.Protocol)},
		Entrypoint: []string{"/opt/shoal/bin/agent"}, Cmd: []string{"serve"}, WorkingDir: "/workspace",
	}
	inspect(t, image.Name()).check(t, want)
}

// TestDerived builds an image FROM ours: it keeps label and main process.
func TestDerived(t *testing.T) {
	needEngine(t)
	t.Parallel()
	dir, tag := t.TempDir(), "shoal-imagetest:"+strings.ToLower(rand.Text()[:12])
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM "+image.Name()+"\nRUN echo own > /etc/own\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", tag).Run() })
	docker(t, "build", "--quiet", "--network", "none", "--tag", tag, dir)
	inspect(t, tag).check(t, inspect(t, image.Name()))
}

// TestProgramsAreStatic reads the programs out of the image: they need no loader
// and no library, so nothing in a sandbox can get between.
func TestProgramsAreStatic(t *testing.T) {
	needEngine(t)
	t.Parallel()
	name, dir := box(t), t.TempDir()
	docker(t, "cp", name+":/opt/shoal/bin/.", dir)
	for _, program := range programs {
		file, err := elf.Open(filepath.Join(dir, program))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC }) {
			t.Errorf("%s is not static", program)
		}
	}
}

// config is what counts of the image's configuration.
type config struct {
	User, WorkingDir     string
	Entrypoint, Cmd, Env []string
	Labels               map[string]string
	ExposedPorts         map[string]struct{}
	Volumes              map[string]struct{}
}

func inspect(t *testing.T, ref string) config {
	t.Helper()
	var c config
	if err := json.Unmarshal([]byte(docker(t, "image", "inspect", "--format", "{{json .Config}}", ref)), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c config) check(t *testing.T, want config) {
	t.Helper()
	if c.User != want.User || c.WorkingDir != want.WorkingDir || !slices.Equal(c.Entrypoint, want.Entrypoint) || !slices.Equal(c.Cmd, want.Cmd) {
		t.Errorf("main process %+v, want %+v", c, want)
	}
	if c.Labels["shoal.agent"] != want.Labels["shoal.agent"] {
		t.Errorf("labels %v, want %v", c.Labels, want.Labels)
	}
	if len(c.ExposedPorts)+len(c.Volumes) > 0 {
		t.Errorf("ports %v and volumes %v, want none", c.ExposedPorts, c.Volumes)
	}
	if i := slices.IndexFunc(c.Env, func(e string) bool { return !strings.HasPrefix(e, "PATH=") }); i >= 0 {
		t.Errorf("environment %q, want PATH at most", c.Env)
	}
}

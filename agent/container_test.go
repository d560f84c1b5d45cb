package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"shoal/agent"
	"shoal/sandbox"
)

// runtimes are those of the engine that a sandbox may have.
func runtimes(t *testing.T) []string {
	t.Helper()
	all := []string{"runc"}
	if testing.Short() {
		return all
	}
	if strings.Contains(docker(t, "info", "--format", "{{json .Runtimes}}"), `"runsc"`) {
		all = append(all, "runsc")
	}
	return all
}

// TestSandbox runs the promises of a command inside a real sandbox.
func TestSandbox(t *testing.T) {
	for _, runtime := range runtimes(t) {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			s := sandboxed(t, runtime)
			t.Run("identity", func(t *testing.T) { identity(t, s) })
			t.Run("agent out of reach", func(t *testing.T) { outOfReach(t, s) })
			t.Run("files", func(t *testing.T) { filesInside(t, s) })
			t.Run("escape artists are killed", func(t *testing.T) { escapeArtists(t, s) })
			t.Run("memory", func(t *testing.T) { outOfMemory(t, s, runtime) })
		})
	}
}

func identity(t *testing.T, s *agent.Session) {
	c := drain(t, start(t, s, shell(`id -un; id -Gn; groups; umask; pwd; echo x > /dev/stderr; env | cut -d= -f1 | sort | tr '\n' ' '`)))
	lines := strings.Split(c.out, "\n")
	if len(lines) < 6 || lines[0] != "sandbox" || !strings.HasPrefix(lines[1], "sandbox mark61") || lines[1] != lines[2] || lines[3] != "0022" || lines[4] != "/workspace" {
		t.Errorf("%q", c.out)
	}
	const names = "HOME HTTPS_PROXY HTTP_PROXY LANG LOGNAME NO_PROXY PATH PWD SHELL SHLVL TMPDIR USER _ http_proxy https_proxy no_proxy "
	if lines[len(lines)-1] != names {
		t.Errorf("environment %q, want %q", lines[len(lines)-1], names)
	}
	if c.err != "x\n" {
		t.Errorf("standard error %q", c.err)
	}
}

func outOfReach(t *testing.T, s *agent.Session) {
	c := drain(t, start(t, s, shell(`
		for pid in $(seq 1 20); do
			grep -qs '^Uid:.0' /proc/$pid/status || continue
			kill -9 $pid 2>/dev/null && echo "killed $pid"
			{ : < /proc/$pid/mem; } 2>/dev/null && echo "opened memory of $pid"
		done
		cat /opt/shoal/bin/agent /opt/shoal/skills/.shoal-spec /skills/.shoal-spec 2>/dev/null | wc -c
		python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("/run/shoal/agent.sock")' 2>&1 | tail -1
		python3 -c 'import socket; socket.socket().bind(("127.0.0.1", 3128))' 2>&1 | tail -1
		kill -9 -1; kill -9 $$
	`)))
	if !strings.HasPrefix(c.out, "0\n") || !strings.Contains(c.out, "PermissionError") || !strings.Contains(c.out, "Address already in use") {
		t.Errorf("%q", c.out)
	}
	if c.end.Reason != sandbox.Signaled || c.end.Signal != 9 {
		t.Errorf("end %+v", c.end)
	}
	if c := drain(t, start(t, s, shell("echo alive"))); c.out != "alive\n" {
		t.Errorf("afterwards: %+v", c)
	}
}

func filesInside(t *testing.T, s *agent.Session) {
	ctx := t.Context()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	sum := sha256.Sum256(content)
	info, err := s.WriteFile(ctx, "/workspace/a/b", sandbox.WriteOptions{Size: int64(len(content))}, bytes.NewReader(content))
	if err != nil || info.Size != int64(len(content)) || info.UID != 1000 || info.Mode != 0o644 {
		t.Fatalf("write %+v, %v", info, err)
	}
	if c := drain(t, start(t, s, shell("sha256sum < a/b; echo secret > mine; chmod 600 mine"))); !strings.HasPrefix(c.out, hex.EncodeToString(sum[:])) {
		t.Errorf("%q", c.out)
	}
	if got := readAll(t, s, "/workspace/mine"); string(got) != "secret\n" {
		t.Errorf("read %q", got)
	}
	if _, err := s.WriteFile(ctx, "/skills/x/SKILL.md", sandbox.WriteOptions{Size: 5}, strings.NewReader("skill")); err != nil {
		t.Error(err)
	}
	_, err = s.WriteFile(ctx, "/etc/passwd", sandbox.WriteOptions{Size: 1}, strings.NewReader("x"))
	if !isCode(err, sandbox.Permission) {
		t.Errorf("write of a system file: %v", err)
	}
	if _, err := s.Stat(ctx, "/opt/shoal/bin/agent", false); !isCode(err, sandbox.Permission) {
		t.Errorf("stat of the agent: %v", err)
	}
}

func readAll(t *testing.T, s *agent.Session, path string) []byte {
	t.Helper()
	r, err := s.ReadFile(t.Context(), path, sandbox.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	return b
}

func escapeArtists(t *testing.T, s *agent.Session) {
	c := shell(`
		setsid sleep 311 & (setsid sleep 312 & disown) & env -i setsid -f sleep 313
		trap '' TERM HUP INT; sleep 314 & kill -STOP $!
		unshare -U setsid -f sleep 315 2>/dev/null
		until [ "$(pgrep -cx sleep)" -ge 3 ]; do :; done # the stopped one may not have got so far
		echo up; sleep 316`)
	c.Tag = "wild"
	st := start(t, s, c)
	recvUntil(t, st, func(e agent.Event) bool { return e.Kind == agent.EventOutput })
	bystander := start(t, s, shell("echo by; sleep 317"))
	recvUntil(t, bystander, func(e agent.Event) bool { return e.Kind == agent.EventOutput })
	r, err := s.Kill(t.Context(), sandbox.KillRequest{Tags: []sandbox.Tag{"wild"}})
	if err != nil || len(r.Survivors) > 0 || r.Processes < 5 {
		t.Errorf("kill %+v, %v", r, err)
	}
	left := drain(t, start(t, s, shell("pgrep -x sleep | wc -l; pgrep -f 'sleep 31[1-6]' | grep -vx $$ | wc -l")))
	if !strings.HasPrefix(left.out, "1\n") {
		t.Errorf("left: %q (the bystander alone should be)", left.out)
	}
	if _, err := s.Kill(t.Context(), sandbox.KillRequest{All: true}); err != nil {
		t.Error(err)
	}
}

func outOfMemory(t *testing.T, s *agent.Session, runtime string) {
	if runtime != "runc" {
		t.Skip("gVisor's memory limit is the engine's to tell")
	}
	c := drain(t, start(t, s, sandbox.Command{ID: "hog", Argv: []string{"python3", "-c", "x = bytearray(2 << 30)"}}))
	if c.end.Reason != sandbox.OutOfMemory || c.end.Code != nil {
		t.Errorf("end %+v", c.end)
	}
	if c := drain(t, start(t, s, shell("kill -9 $$"))); c.end.Reason != sandbox.Signaled {
		t.Errorf("a later kill: %+v", c.end)
	}
	st, err := s.Stats(t.Context())
	if err != nil || st.OOMKills == 0 || st.MemoryLimit != 512<<20 || st.Memory == 0 || st.DiskTotal == 0 {
		t.Errorf("stats %+v, %v", st, err)
	}
}

// TestSandboxStops checks that the engine's stop ends commands in order and that
// the next boot is another one with the same spec.
func TestSandboxStops(t *testing.T) {
	t.Parallel()
	name := container(t, "runc")
	s, err := agent.Connect(t.Context(), attachTo(t, name), agent.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	h := s.Hello()
	spec := sandbox.Spec{Tenant: "t", Name: "n", Generation: "g", Env: map[string]string{"A": "b"}}
	if _, err := s.Claim(t.Context(), agent.Claim{Boot: h.Boot, Epoch: 1, Spec: &spec}); err != nil {
		t.Fatal(err)
	}
	c := shell(`trap 'echo bye > last; exit' TERM; echo up; while :; do sleep 0.05; done`)
	st := start(t, s, c)
	recvUntil(t, st, func(e agent.Event) bool { return e.Kind == agent.EventOutput })
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	began := time.Now()
	if out, err := exec.CommandContext(ctx, "docker", "stop", "-t", "10", name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("the stop took %v: the agent did not end by itself", took)
	}
	docker(t, "start", name)
	s = claimed(t, attachTo(t, name))
	if s.Hello().Boot == h.Boot || s.Hello().Epoch != 0 {
		t.Errorf("hello %+v after %+v", s.Hello(), h)
	}
	if got := drain(t, start(t, s, shell("cat last; echo $A"))); got.out != "bye\nb\n" {
		t.Errorf("%q", got.out)
	}
}

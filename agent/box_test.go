package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"shoal/agent"
	"shoal/image"
)

// container starts the image as a sandbox under a runtime and returns its name.
func container(t *testing.T, runtime string, options ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a Docker engine: run without -short")
	}
	name := "shoal-agenttest-" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("docker", "logs", "--tail", "40", name).CombinedOutput()
			t.Logf("the agent's log:\n%s", out)
		}
		_ = exec.Command("docker", "rm", "-f", "-v", name).Run()
	})
	args := []string{
		"run", "-d", "--name", name, "--label", "shoal.agenttest=" + name, "--runtime", runtime,
		"--init", "--user", "0:0", "--read-only", "--network", "none",
		"--cap-drop", "ALL", "--cap-add", "SETUID", "--cap-add", "SETGID", "--cap-add", "KILL",
		"--security-opt", "no-new-privileges", "--memory", "512m", "--memory-swap", "512m", "--cpus", "1",
		"--tmpfs", "/tmp:nosuid,nodev,exec,mode=1777", "--tmpfs", "/run/shoal:mode=0700",
		"--mount", "type=volume,dst=/workspace",
		"--mount", "type=volume,dst=/opt/shoal/skills",
	}
	args = append(append(args, options...), image.Name())
	docker(t, args...)
	return name
}

func docker(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("docker %s: %v (is the engine up and the image built? run: make image)\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(stdout.String())
}

// execStream is a docker exec as a byte stream.
type execStream struct {
	io.Reader
	io.WriteCloser
	cmd *exec.Cmd
}

func (s execStream) Close() error {
	_ = s.WriteCloser.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	return nil
}

// attachTo opens a stream to the agent in a container.
func attachTo(t *testing.T, name string) io.ReadWriteCloser {
	t.Helper()
	cmd := exec.Command("docker", "exec", "-i", "-u", "0:0", name, "/opt/shoal/bin/attach", "/run/shoal/agent.sock")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return execStream{out, in, cmd}
}

// sandboxed starts a container and claims its agent.
func sandboxed(t *testing.T, runtime string, options ...string) *agent.Session {
	t.Helper()
	return claimed(t, attachTo(t, container(t, runtime, options...)))
}

func claimed(t *testing.T, rwc io.ReadWriteCloser) *agent.Session {
	t.Helper()
	s, err := agent.Connect(t.Context(), rwc, agent.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	h := s.Hello()
	if _, err := s.Claim(t.Context(), agent.Claim{Boot: h.Boot, Epoch: h.Epoch + 1}); err != nil {
		t.Fatal(err)
	}
	return s
}

// Package boxtest runs a package's tests inside real sandbox containers.
//
// The test function calls [Run] with a list of cases. On the host, Run compiles
// the package's test program without a C library, starts it in a container with
// a sandbox's options under each runtime of the engine, and reports what it
// says. Inside, the same call runs the cases, as root without most capabilities,
// just as the agent does.
package boxtest

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// UID and GID are the sandbox's user.
const (
	UID = 1000
	GID = 1000
)

const (
	inside  = "SHOAL_BOXTEST"
	mount   = "/opt/boxtest"
	label   = "shoal.boxtest"
	program = "box.test"
	bound   = 4 * time.Minute
)

// Program returns the path of a program that agent/launch/build.sh made, inside.
func Program(name string) string { return filepath.Join(mount, name) }

// Runtime is the engine's runtime that the case runs under, inside.
func Runtime() string { return os.Getenv(inside) }

// Case is one test that runs inside.
type Case struct {
	Name string
	Func func(t *testing.T)
	// Runtime restricts the case to one runtime; "" means each.
	Runtime string
}

// Run runs the cases in containers. The calling test must have no parent.
// Options are further arguments of docker run.
func Run(t *testing.T, cases []Case, options ...string) {
	t.Helper()
	if runtime := Runtime(); runtime != "" {
		for _, c := range cases {
			if c.Runtime == "" || c.Runtime == runtime {
				t.Run(c.Name, c.Func)
			}
		}
		return
	}
	if testing.Short() {
		t.Skip("needs a Docker engine; not in -short")
	}
	runtimes := runtimes(t)
	dir := build(t)
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) { contain(t, dir, runtime, options) })
	}
}

// runtimes fails the test with what to do when no engine answers.
func runtimes(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "docker", "info", "--format", "{{range $name, $_ := .Runtimes}}{{$name}} {{end}}").CombinedOutput()
	if err != nil {
		t.Fatalf("no Docker engine answers; start one, or let make test do it: %v\n%s", err, out)
	}
	found := []string{"runc"}
	for name := range strings.FieldsSeq(string(out)) {
		if name == "runsc" {
			found = append(found, name)
		}
	}
	return found
}

// build makes a folder with the test program and the programs of launch.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root := here
	for !exists(filepath.Join(root, "go.mod")) && root != "/" {
		root = filepath.Dir(root)
	}
	run(t, "go", "test", "-c", "-o", filepath.Join(dir, program), ".")
	run(t, filepath.Join(root, "agent", "launch", "build.sh"), dir)
	return open(t, dir)
}

// open lets the container's root in, who has no right to override modes.
func open(t *testing.T, dir string) string {
	t.Helper()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

func contain(t *testing.T, dir, runtime string, options []string) {
	t.Helper()
	name := "shoal-boxtest-" + strings.ToLower(rand.Text()[:12])
	top, _, _ := strings.Cut(t.Name(), "/")
	skills := open(t, t.TempDir())
	if err := os.Chmod(skills, 0o777); err != nil { // whoever runs the test, root inside writes here
		t.Fatal(err)
	}
	args := []string{
		"run", "--rm", "--name", name, "--label", label + "=" + name, "--runtime", runtime,
		"--init", "--user", "0:0", "--read-only", "--network", "none", "--ipc", "private",
		"--cap-drop", "ALL", "--cap-add", "SETUID", "--cap-add", "SETGID", "--cap-add", "KILL",
		"--security-opt", "no-new-privileges", "--memory", "1g", "--memory-swap", "1g", "--cpus", "1", "--cpu-shares", "128",
		"--ulimit", "nofile=8192", "--tmpfs", "/tmp:nosuid,nodev,exec,mode=1777", "--tmpfs", "/run/shoal:mode=0700",
		"--tmpfs", "/workspace:nosuid,nodev,exec,mode=0755,uid=1000,gid=1000",
		"--volume", skills + ":/opt/shoal/skills", "--volume", skills + ":/skills:ro",
		"--volume", dir + ":" + mount + ":ro", "--env", inside + "=" + runtime, "--workdir", "/", "--entrypoint", mount + "/" + program,
	}
	if runtime == "runc" { // gVisor counts the host's threads of the sandbox and ends it at the limit
		args = append(args, "--pids-limit", "160")
	}
	args = append(args, options...)
	args = append(args, cmp.Or(os.Getenv("SHOAL_IMAGE"), "shoal-sandbox:dev"),
		"-test.v", "-test.run", "^"+regexp.QuoteMeta(top)+"$", "-test.timeout", bound.String())
	t.Cleanup(func() { _ = exec.Command("docker", "rm", "-f", name).Run() })
	report(t, exec.CommandContext(t.Context(), "docker", args...))
}

func report(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	switch {
	case err != nil:
		t.Errorf("inside: %v\n%s", err, out.Bytes())
	case !bytes.Contains(out.Bytes(), []byte("--- PASS: ")):
		t.Errorf("no test ran inside:\n%s", out.Bytes())
	default:
		t.Logf("inside:\n%s", out.Bytes())
	}
}

package dockertest

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// standinSource is an agent's stand-in for tests of the engine's side alone:
// "serve" waits for SIGTERM, any other argument echoes stdin to stdout.
const standinSource = `package main

import ("io"; "os"; "os/signal"; "syscall")

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		<-stop
		return
	}
	io.Copy(os.Stdout, os.Stdin)
}
`

// standin is built once per test process.
var standin struct {
	once    sync.Once
	program []byte
	err     error
}

// layer returns a root file system as a tar archive that holds nothing but the
// stand-in and the directories of a sandbox.
func layer(t testing.TB) []byte {
	t.Helper()
	standin.once.Do(func() { standin.program, standin.err = buildStandin(t.TempDir()) })
	if standin.err != nil {
		t.Fatalf("build the agent's stand-in: %v", standin.err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	put := func(h *tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"workspace", "skills", "tmp", "run", "run/shoal", "opt", "opt/shoal", "opt/shoal/bin", "opt/shoal/skills"} {
		put(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, nil)
	}
	for _, name := range []string{"agent", "attach"} {
		put(&tar.Header{Typeflag: tar.TypeReg, Name: "opt/shoal/bin/" + name, Mode: 0o755}, standin.program)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func buildStandin(dir string) ([]byte, error) {
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "standin")
	if err := os.WriteFile(source, []byte(standinSource), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, &exec.Error{Name: string(text), Err: err}
	}
	return os.ReadFile(program)
}

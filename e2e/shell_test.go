package e2e_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"shoal/messaging"
	"shoal/sandbox"
)

// screen is what a terminal shows.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("the terminal shows %q", text), func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !strings.Contains(s.text.String(), text) {
			return fmt.Errorf("it shows %q", tail([]byte(s.text.String()), 500))
		}
		return nil
	})
}

// A shell goes on, with all that its programs know, when the worker that serves
// it is killed.
func TestShellAfterKill(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	box := f.create(messaging.CreateRequest{})
	cmd := exec.Command(filepath.Join(binaries, "shoal"), "--nats-url", f.bus.url, "shell", string(box.Sandbox))
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	shown := &screen{}
	done := make(chan error, 1)
	go func() {
		_, _ = io.Copy(shown, terminal)
		done <- cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = terminal.Close() // the shell's program ends with its terminal
		_ = cmd.Process.Kill()
	})
	typed := func(text string) {
		t.Helper()
		if _, err := io.WriteString(terminal, text); err != nil {
			t.Fatal(err)
		}
	}
	shown.await(t, "$ ")
	typed("kept=4; echo one$((kept+1))\n")
	shown.await(t, "one5")
	victim, _ := f.owner(box)
	victim.kill()
	typed("echo two$((kept+2))\n")
	shown.await(t, "two6")
	typed("exit $((kept+3))\n")
	select {
	case <-done:
		if code := cmd.ProcessState.ExitCode(); code != 7 {
			t.Errorf("code %d, want the shell's 7", code)
		}
	case <-time.After(time.Minute):
		t.Error("the command line does not end")
	}
}

// slowly reads r in small pieces, each a moment after the last, and says when
// half of it has been read.
type slowly struct {
	r     io.Reader
	left  int
	half  int
	heard chan struct{}
}

func (s *slowly) Read(p []byte) (int, error) {
	n, err := s.r.Read(p[:min(len(p), 64<<10)])
	s.left -= n
	if s.left <= s.half && s.heard != nil {
		close(s.heard)
		s.heard = nil
	}
	time.Sleep(5 * time.Millisecond)
	return n, err
}

// FS-02, EX-36: the worker dies in the middle of an upload: the target is the old
// file or the new one, and the error says that it is not known which. The command
// line, whose copies are whole, sends them again.
func TestFilesAfterKill(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	box := f.create(messaging.CreateRequest{})
	content := make([]byte, 16<<20)
	_, _ = rand.Read(content) // never fails
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	target := box.File("/workspace/target")
	if _, err := f.client.WriteFile(ctx, target, []byte("old"), sandbox.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	half := make(chan struct{})
	killed := make(chan struct{})
	victim, _ := f.owner(box)
	go func() {
		defer close(killed)
		<-half
		victim.kill()
	}()
	in := &slowly{r: bytes.NewReader(content), left: len(content), half: len(content) / 2, heard: half}
	_, err := f.client.Upload(ctx, target, in, sandbox.WriteOptions{Size: int64(len(content))})
	<-killed
	got, rerr := f.client.ReadFile(ctx, target, sandbox.ReadOptions{}, 1<<30)
	switch {
	case rerr != nil:
		t.Errorf("read: %v", rerr)
	case err == nil && !bytes.Equal(got, content):
		t.Errorf("the upload succeeded, the file has %d other bytes", len(got))
	case err != nil && string(got) != "old":
		t.Errorf("the upload failed with %v, the file has %d bytes", err, len(got))
	case err != nil && sandbox.CodeOf(err) != sandbox.Unavailable && sandbox.CodeOf(err) != sandbox.OutcomeUnknown:
		t.Errorf("%v, want unavailable or outcome_unknown", err)
	}
	t.Logf("upload: %v", err)
	f.workers = slices.DeleteFunc(f.workers, func(p *process) bool { return p == victim })
	f.add()
	copyAfterKill(t, f, box, content)
}

// copyAfterKill copies a file in and out by the command line, which sends it
// again when the worker dies.
func copyAfterKill(t *testing.T, f *fleet, box messaging.Target, content []byte) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "in")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{file, string(box.Sandbox) + ":copied"}, {string(box.Sandbox) + ":copied", filepath.Join(dir, "out")}} {
		victim, _ := f.owner(box)
		cmd := exec.Command(filepath.Join(binaries, "shoal"), append([]string{"--nats-url", f.bus.url, "cp"}, args...)...)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(60 * time.Millisecond) // somewhere in the middle, or before, or after
		victim.kill()
		f.workers = slices.DeleteFunc(f.workers, func(p *process) bool { return p == victim })
		if err := cmd.Wait(); err != nil {
			t.Errorf("cp %v: %v: %s", args, err, said.String())
		}
		f.add()
	}
	if got, err := os.ReadFile(filepath.Join(dir, "out")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
}

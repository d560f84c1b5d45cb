package files_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shoal/agent"
	"shoal/agent/boxtest"
	"shoal/agent/files"
	"shoal/agent/threads"
	"shoal/sandbox"
)

// box is the file system under test, in a container or, in a folder of the host,
// as the test's own user.
type box struct {
	*files.Files
	inside bool
	dir    string // a fresh folder of the user, as the sandbox sees it
	real   func(path string) string
	user   threads.Runner
}

// unpack is Unpack where only its error matters.
func (b *box) unpack(ctx context.Context, path string, r io.Reader, commit agent.Commit) error {
	_, err := b.Unpack(ctx, path, r, commit)
	return err
}

func setup(t *testing.T) *box {
	t.Helper()
	if boxtest.Runtime() == "" {
		return hostBox(t)
	}
	pool, err := threads.NewPool(threads.Config{UID: boxtest.UID, GID: boxtest.GID})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	unix.Umask(0o077) // as the agent's, for its own files
	f, err := files.New(files.Config{Threads: pool, SkillsMax: 1 << 20, Reserved: ".spec"})
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Files: f, inside: true, real: func(p string) string { return p }, user: pool}
	b.dir = fmt.Sprintf("/workspace/t%d", time.Now().UnixNano())
	b.as(t, func() error { return errors.Join(os.Mkdir(b.dir, 0o755), os.Chmod(b.dir, 0o755)) })
	return b
}

func hostBox(t *testing.T) *box {
	t.Helper()
	root := t.TempDir()
	for _, d := range []string{"work/t", "skills"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f, err := files.New(files.Config{
		Threads: threads.Self{}, Workspace: root + "/work", Skills: root + "/skills", SkillsWrite: root + "/skills",
		SkillsMax: 1 << 20, Reserved: ".spec",
	})
	if err != nil {
		t.Fatal(err)
	}
	place := func(p string) string {
		return strings.Replace(strings.Replace(p, "/workspace", root+"/work", 1), "/skills", root+"/skills", 1)
	}
	return &box{Files: f, dir: "/workspace/t", real: place, user: threads.Self{}}
}

// as does something as the sandbox's user, which stands for a command's doing.
func (b *box) as(t *testing.T, fn func() error) {
	t.Helper()
	var err error
	if e := b.user.Do(t.Context(), func() { err = fn() }); e != nil || err != nil {
		t.Fatal(e, err)
	}
}

func (b *box) path(name string) string { return b.dir + "/" + name }

func direct(step func() error) error { return step() }

func (b *box) write(t *testing.T, path, content string, change ...func(*sandbox.WriteOptions)) (sandbox.FileInfo, error) {
	t.Helper()
	o := sandbox.WriteOptions{Size: int64(len(content))}
	for _, f := range change {
		f(&o)
	}
	return b.Write(t.Context(), path, o, strings.NewReader(content), direct)
}

func (b *box) mustWrite(t *testing.T, path, content string, change ...func(*sandbox.WriteOptions)) sandbox.FileInfo {
	t.Helper()
	info, err := b.write(t, path, content, change...)
	if err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
	return info
}

func (b *box) read(t *testing.T, path string) (string, error) {
	t.Helper()
	var buf bytes.Buffer
	_, err := b.Read(t.Context(), path, sandbox.ReadOptions{}, &buf)
	return buf.String(), err
}

func (b *box) holds(t *testing.T, path, want string) {
	t.Helper()
	if got, err := b.read(t, path); err != nil || got != want {
		t.Errorf("%s holds %q (%v), want %q", path, got, err, want)
	}
}

// clean fails when a temporary file was left behind.
func (b *box) clean(t *testing.T) {
	t.Helper()
	b.as(t, func() error {
		return filepath.WalkDir(b.real(b.dir), func(path string, _ os.DirEntry, err error) error {
			if strings.HasSuffix(path, ".tmp") {
				t.Errorf("left behind: %s", path)
			}
			return err
		})
	})
}

func wantCode(t *testing.T, what string, err error, code sandbox.Code) {
	t.Helper()
	if sandbox.CodeOf(err) != code {
		t.Errorf("%s: got %v, want %s", what, err, code)
	}
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

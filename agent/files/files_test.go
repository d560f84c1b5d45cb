package files_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"shoal/agent/boxtest"
	"shoal/sandbox"
)

var cases = []boxtest.Case{
	{Name: "write and read", Func: writeAndRead},
	{Name: "read a range", Func: readRange},
	{Name: "conditions of a write", Func: conditions},
	{Name: "FS-01 no regular file", Func: notRegular},
	{Name: "FS-02 a cut upload changes nothing", Func: cutUpload},
	{Name: "FS-06 links", Func: links},
	{Name: "FS-09 names", Func: names},
	{Name: "FS-11 FS-12 pages of a listing", Func: pages},
	{Name: "mkdir, remove, rename", Func: changes},
	{Name: "archives", Func: archives},
	{Name: "hostile archives", Func: hostileArchives},
	{Name: "skills", Func: skills},
	{Name: "a refused commit changes nothing", Func: refusedCommit},
	{Name: "trees too deep", Func: tooDeep},
}

func TestSandbox(t *testing.T) {
	boxtest.Run(t, append(cases,
		boxtest.Case{Name: "FS-03 a full disk keeps the old content", Func: fullDisk},
		boxtest.Case{Name: "FS-04 links lead nowhere the user may not go", Func: plantedLinks},
		boxtest.Case{Name: "what the user may not", Func: permissions},
		boxtest.Case{Name: "FS-07 large files", Func: largeFile},
		boxtest.Case{Name: "the threads are out of reach", Func: outOfReach},
	), "--tmpfs", "/small:nosuid,nodev,size=1m,mode=0777")
}

func TestHost(t *testing.T) {
	if boxtest.Runtime() != "" {
		return
	}
	for _, c := range cases {
		t.Run(c.Name, c.Func)
	}
}

func writeAndRead(t *testing.T) {
	b := setup(t)
	for _, content := range []string{"", "x", strings.Repeat("0123456789", 9000)} {
		path := b.path("new/folder/file")
		info := b.mustWrite(t, path, content)
		if info.SHA256 != hash(content) || info.Size != int64(len(content)) || info.Mode != 0o644 || info.Path != path || info.Kind != sandbox.FileRegular {
			t.Errorf("got %+v", info)
		}
		if b.inside && (info.UID != boxtest.UID || info.GID != boxtest.GID) {
			t.Errorf("owner %d:%d", info.UID, info.GID)
		}
		b.holds(t, path, content)
		if dir, err := b.Stat(t.Context(), b.path("new/folder"), false); err != nil || dir.Mode != 0o755 {
			t.Errorf("the folder made: %+v, %v", dir, err)
		}
		stat, err := b.Stat(t.Context(), path, true)
		if err != nil || stat.SHA256 != info.SHA256 || !stat.MTime.Equal(info.MTime) {
			t.Errorf("stat: got %+v, %v", stat, err)
		}
	}
	path := b.path("mode")
	b.mustWrite(t, path, "1", func(o *sandbox.WriteOptions) { o.Mode = 0o755 })
	if info := b.mustWrite(t, path, "2", func(o *sandbox.WriteOptions) { o.Mode = 0o600; o.Durable = true }); info.Mode != 0o755 {
		t.Errorf("an existing file's mode became %o", info.Mode)
	}
	b.as(t, func() error { return os.Chmod(b.real(path), 0o4755) })
	b.mustWrite(t, path, "3")
	if st, err := os.Stat(b.real(path)); err != nil || st.Mode() != 0o755 {
		t.Errorf("a set-uid file's mode became %v, %v", st.Mode(), err)
	}
	if info := b.mustWrite(t, b.path("open"), "", func(o *sandbox.WriteOptions) { o.Mode = 0o666 }); info.Mode != 0o666 {
		t.Errorf("mode %o", info.Mode)
	}
	b.clean(t)
}

func readRange(t *testing.T) {
	b := setup(t)
	path := b.path("digits")
	b.mustWrite(t, path, "0123456789")
	for _, c := range []struct {
		offset, limit int64
		want          string
		truncated     bool
	}{{0, 0, "0123456789", false}, {3, 0, "3456789", false}, {3, 4, "3456", true}, {3, 7, "3456789", false}, {10, 0, "", false}, {11, 5, "", false}, {0, 99, "0123456789", false}} {
		var buf bytes.Buffer
		r, err := b.Read(t.Context(), path, sandbox.ReadOptions{Offset: c.offset, Limit: c.limit}, &buf)
		if err != nil || buf.String() != c.want || r.Truncated != c.truncated || r.Size != 10 {
			t.Errorf("%d+%d: got %q, %+v, %v", c.offset, c.limit, buf.String(), r, err)
		}
	}
	if text, err := b.read(t, "/proc/self/status"); err != nil || !strings.Contains(text, "State:") {
		t.Errorf("a file without a size: %q, %v", text, err)
	}
	wantCode(t, "missing", second(b.read(t, b.path("nope"))), sandbox.NotFound)
	wantCode(t, "a folder", second(b.read(t, b.dir)), sandbox.NotFound)
	wantCode(t, "below a file", second(b.read(t, path+"/x")), sandbox.Invalid)
	wantCode(t, "not clean", second(b.read(t, b.dir+"/../x")), sandbox.Invalid)
	wantCode(t, "relative", second(b.read(t, "x")), sandbox.Invalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Read(ctx, path, sandbox.ReadOptions{}, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func second[A any](_ A, err error) error { return err }

func conditions(t *testing.T) {
	b := setup(t)
	path := b.path("file")
	absent := func(o *sandbox.WriteOptions) { o.IfAbsent = true }
	ifHash := func(h string) func(*sandbox.WriteOptions) { return func(o *sandbox.WriteOptions) { o.IfHash = h } }
	wantCode(t, "hash of nothing", second(b.write(t, path, "x", ifHash(hash("")))), sandbox.Conflict)
	b.mustWrite(t, path, "one", absent)
	wantCode(t, "not absent", second(b.write(t, path, "two", absent)), sandbox.Exists)
	wantCode(t, "wrong hash", second(b.write(t, path, "two", ifHash(hash("zero")))), sandbox.Conflict)
	b.holds(t, path, "one")
	b.mustWrite(t, path, "two", ifHash(hash("one")))
	b.holds(t, path, "two")
	// Both come true only while nobody else writes meanwhile.
	meanwhile := func(o sandbox.WriteOptions, path string) error {
		_, err := b.Write(t.Context(), path, o, strings.NewReader("late"), func(step func() error) error {
			b.mustWrite(t, path, "meanwhile")
			return step()
		})
		return err
	}
	wantCode(t, "a write between", meanwhile(sandbox.WriteOptions{Size: -1, IfHash: hash("two")}, path), sandbox.Conflict)
	wantCode(t, "made between", meanwhile(sandbox.WriteOptions{Size: -1, IfAbsent: true}, b.path("other")), sandbox.Exists)
	b.holds(t, path, "meanwhile")
	b.holds(t, b.path("other"), "meanwhile")
	b.clean(t)
}

func notRegular(t *testing.T) {
	b := setup(t)
	fifo := b.path("fifo")
	b.as(t, func() error { return syscall.Mkfifo(b.real(fifo), 0o666) })
	sock := b.path("sock")
	b.as(t, func() error {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		return syscall.Bind(fd, &syscall.SockaddrUnix{Name: b.real(sock)})
	})
	for _, path := range []string{fifo, sock, "/dev/zero", "/dev/tty", "/dev/null"} {
		began := time.Now()
		err := second(b.read(t, path))
		wantCode(t, "read "+path, err, sandbox.Invalid)
		if e := sandbox.AsError(err); e.Reason != "not_regular" {
			t.Errorf("read %s: %v (%s)", path, err, e.Reason)
		}
		wantCode(t, "write "+path, second(b.write(t, path, "x")), sandbox.Invalid)
		if info, err := b.Stat(t.Context(), path, true); err != nil || info.Kind != sandbox.FileOther || info.SHA256 != "" {
			t.Errorf("stat %s: %+v, %v", path, info, err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s took %v", path, took)
		}
	}
	wantCode(t, "write a folder", second(b.write(t, b.dir, "x")), sandbox.Invalid)
	b.clean(t)
}

func cutUpload(t *testing.T) {
	b := setup(t)
	path := b.path("file")
	b.mustWrite(t, path, "old")
	cut := errors.New("the line is cut")
	_, err := b.Write(t.Context(), path, sandbox.WriteOptions{Size: 10}, io.MultiReader(strings.NewReader("half "), errorReader{cut}), direct)
	if !errors.Is(err, cut) {
		t.Errorf("cut: %v", err)
	}
	for _, size := range []int64{4, 6} {
		_, err := b.Write(t.Context(), path, sandbox.WriteOptions{Size: size}, strings.NewReader("12345"), direct)
		wantCode(t, fmt.Sprintf("5 bytes as %d", size), err, sandbox.Invalid)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = b.Write(ctx, path, sandbox.WriteOptions{Size: -1}, readerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), direct)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	b.holds(t, path, "old")
	b.clean(t)
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func refusedCommit(t *testing.T) {
	b := setup(t)
	path := b.path("file")
	b.mustWrite(t, path, "old")
	fenced := sandbox.Errorf(sandbox.Fenced, "not yours")
	refuse := func(func() error) error { return fenced }
	_, err := b.Write(t.Context(), path, sandbox.WriteOptions{Size: -1}, strings.NewReader("new"), refuse)
	wantCode(t, "write", err, sandbox.Fenced)
	_, err = b.Write(t.Context(), "/skills/refused", sandbox.WriteOptions{Size: -1}, strings.NewReader("new"), refuse)
	wantCode(t, "write a skill", err, sandbox.Fenced)
	err = b.unpack(t.Context(), b.dir, archive(t, entry{name: "file", content: "new"}), refuse)
	wantCode(t, "unpack", err, sandbox.Fenced)
	b.holds(t, path, "old")
	wantCode(t, "the skill", second(b.Stat(t.Context(), "/skills/refused", false)), sandbox.NotFound)
	b.clean(t)
}

func links(t *testing.T) {
	b := setup(t)
	b.mustWrite(t, b.path("folder/file"), "old", func(o *sandbox.WriteOptions) { o.Mode = 0o640 })
	link := func(target, name string) { b.as(t, func() error { return os.Symlink(target, b.real(b.path(name))) }) }
	link("folder/file", "link")
	link("link", "second")
	link("folder", "dir")
	link("missing", "dangling")
	link("loop", "loop")
	b.mustWrite(t, b.path("second"), "new")
	b.holds(t, b.path("folder/file"), "new")
	if info, err := b.Stat(t.Context(), b.path("second"), true); err != nil || info.Kind != sandbox.FileLink || info.Target != "link" || info.Dangling {
		t.Errorf("a link after a write through it: %+v, %v", info, err)
	}
	b.mustWrite(t, b.path("dir/made"), "x")
	b.holds(t, b.path("folder/made"), "x")
	if info, err := b.Stat(t.Context(), b.path("dangling"), true); err != nil || !info.Dangling || info.Target != "missing" {
		t.Errorf("a dangling link: %+v, %v", info, err)
	}
	wantCode(t, "read a dangling link", second(b.read(t, b.path("dangling"))), sandbox.NotFound)
	b.mustWrite(t, b.path("dangling"), "made")
	b.holds(t, b.path("missing"), "made")
	if info, err := b.Stat(t.Context(), b.path("loop"), false); err != nil || info.Kind != sandbox.FileLink || info.Target != "loop" {
		t.Errorf("a loop: %+v, %v", info, err)
	}
	wantCode(t, "read a loop", second(b.read(t, b.path("loop"))), sandbox.Invalid)
	wantCode(t, "write a loop", second(b.write(t, b.path("loop"), "x")), sandbox.Invalid)
	for _, name := range []string{"loop", "dir", "second"} {
		if err := b.Remove(t.Context(), b.path(name), true); err != nil {
			t.Errorf("remove %s: %v", name, err)
		}
	}
	b.holds(t, b.path("folder/made"), "x")
	b.clean(t)
}

func names(t *testing.T) {
	b := setup(t)
	for _, name := range []string{strings.Repeat("漢", 85), "a\nb", "-rf", " ", "a\\b", "\xff\xfe"} {
		b.mustWrite(t, b.path(name), name)
		b.holds(t, b.path(name), name)
	}
	err := second(b.write(t, b.path(strings.Repeat("漢", 85)+"1"), "x"))
	wantCode(t, "256 bytes", err, sandbox.Invalid)
	if e := sandbox.AsError(err); e.Reason != "name_too_long" {
		t.Errorf("256 bytes: %v (%s)", err, e.Reason)
	}
	wantCode(t, "NUL", second(b.write(t, b.path("a\x00b"), "x")), sandbox.Invalid)
	b.clean(t)
}

func pages(t *testing.T) {
	b := setup(t)
	var want []string
	b.as(t, func() error {
		for i := range 2500 {
			name := fmt.Sprintf("f%04d", (i*7919)%2500)
			want = append(want, name)
			if err := os.WriteFile(b.real(b.path(name)), nil, 0o644); err != nil {
				return err
			}
		}
		return os.MkdirAll(b.real(b.path(".git/.hidden")), 0o755)
	})
	want = append(want, ".git")
	slices.Sort(want)
	var got []string
	o := sandbox.ListOptions{Limit: 900}
	for {
		page, err := b.List(t.Context(), b.dir, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			got = append(got, filepath.Base(e.Path))
		}
		if len(page.Entries) > 900 || !page.More {
			break
		}
		o.After = page.Next
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d entries of %d", len(got), len(want))
	}
	inner, err := b.List(t.Context(), b.path(".git"), sandbox.ListOptions{})
	if err != nil || len(inner.Entries) != 1 || inner.Entries[0].Kind != sandbox.FileDir || inner.More {
		t.Errorf("inside .git: %+v, %v", inner, err)
	}
	wantCode(t, "a file", second(b.List(t.Context(), b.path("f0000"), sandbox.ListOptions{})), sandbox.Invalid)
	wantCode(t, "missing", second(b.List(t.Context(), b.path("nope"), sandbox.ListOptions{})), sandbox.NotFound)
	if err := b.Remove(t.Context(), b.dir, true); err != nil {
		t.Errorf("remove all: %v", err)
	}
}

func changes(t *testing.T) {
	b := setup(t)
	if err := b.Mkdir(t.Context(), b.path("a/b/c"), 0o700); err != nil {
		t.Fatal(err)
	}
	if info, err := b.Stat(t.Context(), b.path("a/b/c"), false); err != nil || info.Mode != 0o700 || info.Kind != sandbox.FileDir {
		t.Errorf("got %+v, %v", info, err)
	}
	if err := b.Mkdir(t.Context(), b.path("a/b/c"), 0); err != nil {
		t.Errorf("mkdir again: %v", err)
	}
	b.mustWrite(t, b.path("file"), "1")
	wantCode(t, "mkdir over a file", b.Mkdir(t.Context(), b.path("file"), 0), sandbox.Exists)
	wantCode(t, "remove a full folder", b.Remove(t.Context(), b.path("a"), false), sandbox.Conflict)
	wantCode(t, "remove nothing", b.Remove(t.Context(), b.path("nope"), false), sandbox.NotFound)
	wantCode(t, "remove all of nothing", b.Remove(t.Context(), b.path("nope"), true), sandbox.NotFound)
	if err := b.Remove(t.Context(), b.path("a/b/c"), false); err != nil {
		t.Errorf("remove an empty folder: %v", err)
	}
	b.mustWrite(t, b.path("a/b/x"), "2")
	if err := b.Remove(t.Context(), b.path("a"), true); err != nil {
		t.Errorf("remove a tree: %v", err)
	}
	b.mustWrite(t, b.path("other"), "2")
	if err := b.Rename(t.Context(), b.path("file"), b.path("other"), true); err != nil {
		t.Errorf("rename: %v", err)
	}
	b.holds(t, b.path("other"), "1")
	if err := b.Mkdir(t.Context(), b.path("taken"), 0); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "rename onto what is there", b.Rename(t.Context(), b.path("other"), b.path("taken"), false), sandbox.Exists)
	if err := errors.Join(b.Rename(t.Context(), b.path("other"), b.path("file"), false), b.Rename(t.Context(), b.path("file"), b.path("other"), true)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "rename nothing", b.Rename(t.Context(), b.path("file"), b.path("x"), true), sandbox.NotFound)
	for _, path := range []string{"/", "/workspace", "/skills", "/tmp"} {
		wantCode(t, "remove "+path, b.Remove(t.Context(), path, true), sandbox.Permission)
		wantCode(t, "rename "+path, b.Rename(t.Context(), path, b.path("x"), true), sandbox.Permission)
		wantCode(t, "rename to "+path, b.Rename(t.Context(), b.path("other"), path, true), sandbox.Permission)
		wantCode(t, "write "+path, second(b.write(t, path, "x")), sandbox.Permission)
	}
}

func tooDeep(t *testing.T) {
	b := setup(t)
	b.as(t, func() error {
		fd, err := syscall.Open(b.real(b.dir), syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
		for range 300 {
			if err == nil {
				err = syscall.Mkdirat(fd, "d", 0o755)
			}
			if err != nil {
				return err
			}
			next, e := syscall.Openat(fd, "d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
			syscall.Close(fd)
			fd, err = next, e
		}
		return errors.Join(err, syscall.Close(fd))
	})
	wantCode(t, "pack", b.Pack(t.Context(), b.dir, io.Discard), sandbox.TooLarge)
	wantCode(t, "remove", b.Remove(t.Context(), b.path("d"), true), sandbox.TooLarge)
	// What a shell can remove, so can the user.
	if out, err := exec.Command("rm", "-rf", b.real(b.path("d"))).CombinedOutput(); err != nil && !b.inside {
		t.Errorf("rm: %v %s", err, out)
	}
}

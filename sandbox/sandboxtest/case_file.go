package sandboxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"shoal/sandbox"
)

var fileCases = []Case{
	{Promise: "a file is written by the kernel, changed by a program and read back", run: fileThere},
	{Promise: "reads have ranges and say when they are truncated", run: fileRanges},
	{Promise: "what is missing, or no file, is told apart", run: fileMissing},
	{ID: "FS-01", Promise: "what is not a regular file is refused at once", run: fileKinds},
	{ID: "FS-02", Promise: "an upload that breaks off changes nothing", run: fileCut},
	{ID: "FS-03", Promise: "a write is the old content or the new", run: fileAtomic},
	{ID: "FS-03", Promise: "a write that finds no room leaves the old content", Needs: isReal, run: fileFull},
	{Promise: "writes under conditions are judged against what is there", run: fileConditions},
	{ID: "FS-04", Promise: "links lead nowhere that the user could not go", Needs: isReal, run: fileLinks},
	{ID: "FS-06", Promise: "a dangling link and a loop are seen as what they are", run: fileDangling},
	{ID: "FS-07", Promise: "files of any size keep their hash", run: fileSizes},
	{ID: "FS-09", Promise: "a name is measured in bytes", run: fileNames},
	{ID: "FS-11", Promise: "a large directory comes in pages", run: filePages},
	{ID: "FS-12", Promise: "hidden entries are listed", run: fileHidden},
	{Promise: "directories are made, renamed and removed", run: fileTree},
	{Promise: "a directory goes out and in as tar", run: fileTar},
	{Promise: "skills are written by the kernel alone", run: fileSkills},
}

// write writes content and fails the test when it cannot.
func (b *attached) write(t *testing.T, path string, content []byte) sandbox.FileInfo {
	t.Helper()
	info, err := b.s.WriteFile(t.Context(), path, sandbox.WriteOptions{Size: int64(len(content))}, bytes.NewReader(content))
	if err != nil {
		t.Fatalf("write %s: %v", path, explain(err))
	}
	return info
}

// read returns a file's content.
func (b *attached) read(t *testing.T, path string, o sandbox.ReadOptions) (content []byte, truncated bool, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := b.s.ReadFile(ctx, path, o)
	if err != nil {
		return nil, false, err
	}
	defer r.Close()
	content, err = io.ReadAll(r)
	return content, r.Truncated(), err
}

func (b *attached) wantFile(t *testing.T, path, want string) {
	t.Helper()
	got, _, err := b.read(t, path, sandbox.ReadOptions{})
	if err != nil || string(got) != want {
		t.Errorf("%s: %d bytes %.60q, %v; want %d bytes %.60q", path, len(got), got, explain(err), len(want), want)
	}
}

func fileThere(t *testing.T, x *suite) {
	b := x.box(t)
	info := b.write(t, "/workspace/new/dir/in.txt", []byte("two words"))
	if info.Kind != sandbox.FileRegular || info.Size != 9 || info.Mode != 0o644 || x.Real && info.UID != 1000 {
		t.Errorf("written as %+v", info)
	}
	b.output(t, "tr a-z A-Z < new/dir/in.txt > out.txt && chmod 600 out.txt")
	b.wantFile(t, "/workspace/out.txt", "TWO WORDS")
	b.write(t, "/workspace/out.txt", []byte("again")) // an existing file keeps its mode
	sum := sha256.Sum256([]byte("again"))
	if info, err := b.s.Stat(t.Context(), "/workspace/out.txt", true); err != nil || info.Mode != 0o600 || info.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("stat: %+v, %v", info, explain(err))
	}
	r := b.run(t, "find new -printf '%U:%G %m %p\n'")
	for line := range strings.Lines(r.out.String()) {
		if x.Real && !strings.HasPrefix(line, "1000:1000 ") {
			t.Errorf("another owner: %s", line)
		}
	}
}

func fileRanges(t *testing.T, x *suite) {
	b := x.box(t)
	b.write(t, "/workspace/range", []byte("0123456789"))
	for _, c := range []struct {
		o         sandbox.ReadOptions
		want      string
		truncated bool
	}{
		{sandbox.ReadOptions{}, "0123456789", false},
		{sandbox.ReadOptions{Limit: 9}, "012345678", true},
		{sandbox.ReadOptions{Limit: 10}, "0123456789", false},
		{sandbox.ReadOptions{Limit: 11}, "0123456789", false},
		{sandbox.ReadOptions{Offset: 3, Limit: 4}, "3456", true},
		{sandbox.ReadOptions{Offset: 9}, "9", false},
		{sandbox.ReadOptions{Offset: 10}, "", false},
		{sandbox.ReadOptions{Offset: 11}, "", false},
	} {
		got, truncated, err := b.read(t, "/workspace/range", c.o)
		if err != nil || string(got) != c.want || truncated != c.truncated {
			t.Errorf("%+v: %q, truncated %t, %v; want %q, %t", c.o, got, truncated, explain(err), c.want, c.truncated)
		}
	}
}

func fileMissing(t *testing.T, x *suite) {
	b := x.box(t)
	b.write(t, "/workspace/plain", nil)
	_, _, err := b.read(t, "/workspace/nowhere", sandbox.ReadOptions{})
	wantError(t, err, sandbox.NotFound)
	_, _, err = b.read(t, "/workspace", sandbox.ReadOptions{})
	wantError(t, err, sandbox.NotFound)
	_, err = b.s.Stat(t.Context(), "/workspace/nowhere", false)
	wantError(t, err, sandbox.NotFound)
	_, err = b.s.Stat(t.Context(), "/workspace/plain/below", false)
	if code := sandbox.CodeOf(err); code != sandbox.NotFound && code != sandbox.Invalid {
		t.Errorf("below a file: %v", explain(err))
	}
	if info, err := b.s.Stat(t.Context(), "/workspace", false); err != nil || info.Kind != sandbox.FileDir {
		t.Errorf("a directory: %+v, %v", info, explain(err))
	}
	for _, path := range []string{"relative", "/a/../b", "/workspace/", "", "/a\x00b", "/" + strings.Repeat("a", 4096)} {
		_, err := b.s.Stat(t.Context(), path, false)
		wantError(t, err, sandbox.Invalid)
	}
}

func fileKinds(t *testing.T, x *suite) {
	b := x.box(t)
	b.output(t, `mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'`)
	for _, path := range []string{"/workspace/fifo", "/workspace/socket", "/dev/zero", "/dev/tty"} {
		begun := time.Now()
		if _, _, err := b.read(t, path, sandbox.ReadOptions{}); err == nil || sandbox.CodeOf(err) == sandbox.Timeout {
			t.Errorf("read %s: %v, want a refusal", path, explain(err))
		}
		_, err := b.s.WriteFile(t.Context(), path, sandbox.WriteOptions{Size: 1}, strings.NewReader("x"))
		if err == nil {
			t.Errorf("write %s: no refusal", path)
		}
		if info, err := b.s.Stat(t.Context(), path, true); err != nil || info.Kind != sandbox.FileOther {
			t.Errorf("stat %s: %+v, %v; want other", path, info, explain(err))
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%s took %s", path, took)
		}
	}
}

// cutReader breaks after its content.
type cutReader struct{ io.Reader }

var errCut = errors.New("the client is gone")

func (r cutReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = errCut
	}
	return n, err
}

func fileCut(t *testing.T, x *suite) {
	b := x.box(t)
	b.write(t, "/workspace/target", []byte("old"))
	half := make([]byte, 10<<20)
	for what, c := range map[string]struct {
		size int64
		r    io.Reader
	}{
		"a client that is gone":  {20 << 20, cutReader{bytes.NewReader(half)}},
		"less than was said":     {20 << 20, bytes.NewReader(half)},
		"more than was said":     {3, strings.NewReader("four")},
		"a client without words": {-1, cutReader{strings.NewReader("part")}},
	} {
		if _, err := b.s.WriteFile(t.Context(), "/workspace/target", sandbox.WriteOptions{Size: c.size}, c.r); err == nil {
			t.Errorf("%s: the write succeeded", what)
		}
		b.wantFile(t, "/workspace/target", "old")
	}
	eventually(t, "no temporary file is left", func() bool {
		return b.output(t, "find . -maxdepth 1 -size +1M -name '.*' | wc -l") == "0"
	})
}

func fileAtomic(t *testing.T, x *suite) {
	b := x.box(t)
	long, short := strings.Repeat("long ", 100_000), "short"
	b.write(t, "/workspace/swap", []byte(long))
	st := b.start(t, sandbox.Command{Background: true, Shell: `
while [ ! -e swap.stop ]; do
  n=$(wc -c < swap) || { echo missing; continue; }
  [ $n = 5 ] || [ $n = 500000 ] || echo "mixed: $n"
done`})
	for i := range 20 {
		content := long
		if i%2 == 0 {
			content = short
		}
		b.write(t, "/workspace/swap", []byte(content))
	}
	b.write(t, "/workspace/swap", []byte(short))
	b.wantFile(t, "/workspace/swap", short)
	b.output(t, "touch swap.stop")
	r := drain(t, st)
	if r.wantCode(t, 0); r.out.Len() > 0 {
		t.Errorf("a reader saw %q", r.out.String())
	}
}

func fileFull(t *testing.T, x *suite) {
	b := x.box(t) // its /tmp has the size of its disk
	b.write(t, "/tmp/full/target", []byte("old text"))
	b.output(t, "head -c 1G /dev/zero > /tmp/full/hog 2>/dev/null; true")
	_, err := b.s.WriteFile(t.Context(), "/tmp/full/target", sandbox.WriteOptions{Size: 8 << 20}, bytes.NewReader(make([]byte, 8<<20)))
	wantError(t, err, sandbox.NoSpace)
	b.wantFile(t, "/tmp/full/target", "old text")
	b.output(t, "rm -rf /tmp/full")
}

func fileConditions(t *testing.T, x *suite) {
	b := x.box(t)
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	write := func(content string, o sandbox.WriteOptions) error {
		o.Size = int64(len(content))
		_, err := b.s.WriteFile(t.Context(), "/workspace/cas", o, strings.NewReader(content))
		return err
	}
	wantError(t, write("x", sandbox.WriteOptions{IfHash: sum("one")}), sandbox.Conflict)
	wantError(t, write("one", sandbox.WriteOptions{IfAbsent: true}), "")
	wantError(t, write("two", sandbox.WriteOptions{IfAbsent: true}), sandbox.Exists)
	wantError(t, write("two", sandbox.WriteOptions{IfHash: sum("zero")}), sandbox.Conflict)
	b.wantFile(t, "/workspace/cas", "one")
	wantError(t, write("two", sandbox.WriteOptions{IfHash: sum("one"), Durable: true}), "")
	b.wantFile(t, "/workspace/cas", "two")
	wantError(t, write("three", sandbox.WriteOptions{Mode: 0o4755}), sandbox.Invalid)
}

func fileLinks(t *testing.T, x *suite) {
	b := x.box(t)
	b.output(t, `
ln -s /etc/passwd passwd; ln -s /opt/shoal/bin programs; ln -s /etc/shoal-new unborn; ln -s /skills toskills
ln -s /run/shoal/agent.sock sock; ln -s /opt/shoal/skills writable; ln -s /proc/1/environ env1`)
	for _, path := range []string{
		"/workspace/passwd", "/workspace/programs/agent", "/workspace/programs/new", "/workspace/unborn", "/workspace/toskills/x",
		"/workspace/writable/x", "/workspace/writable/.shoal-spec", "/etc/passwd", "/etc/new", "/opt/shoal/bin/agent", "/proc/sys/kernel/hostname",
	} {
		_, err := b.s.WriteFile(t.Context(), path, sandbox.WriteOptions{Size: 1}, strings.NewReader("x"))
		if err == nil {
			t.Errorf("write through %s succeeded", path)
		}
	}
	for _, path := range []string{"/workspace/programs/agent", "/workspace/writable/.shoal-spec", "/opt/shoal/bin/agent", "/etc/shadow", "/skills/.shoal-spec", "/workspace/sock"} {
		if content, _, err := b.read(t, path, sandbox.ReadOptions{Limit: 100}); err == nil {
			t.Errorf("read %s: %q", path, content)
		}
	}
	if err := b.s.Remove(t.Context(), "/workspace/programs/agent", false); err == nil {
		t.Error("removed a program of the sandbox")
	}
	b.wantFile(t, "/workspace/passwd", b.output(t, "cat /etc/passwd")+"\n") // what the user may read is read
	if b.s.Err() != nil {
		t.Error(b.s.Err())
	}
}

func fileDangling(t *testing.T, x *suite) {
	b := x.box(t)
	b.output(t, "ln -sf nowhere dangling; ln -sf loop2 loop1; ln -sf loop1 loop2; echo real > real; ln -sf real good")
	info, err := b.s.Stat(t.Context(), "/workspace/dangling", false)
	if err != nil || info.Kind != sandbox.FileLink || info.Target != "nowhere" || !info.Dangling {
		t.Errorf("dangling link: %+v, %v", info, explain(err))
	}
	info, err = b.s.Stat(t.Context(), "/workspace/good", false)
	if err != nil || info.Kind != sandbox.FileLink || info.Target != "real" || info.Dangling {
		t.Errorf("link: %+v, %v", info, explain(err))
	}
	if _, _, err := b.read(t, "/workspace/loop1", sandbox.ReadOptions{}); err == nil {
		t.Error("a loop of links was read")
	}
	b.write(t, "/workspace/good", []byte("through")) // the target is written, the link stays
	b.wantFile(t, "/workspace/real", "through")
	for _, name := range []string{"dangling", "loop1", "good"} {
		if err := b.s.Remove(t.Context(), "/workspace/"+name, false); err != nil {
			t.Errorf("remove %s: %v", name, explain(err))
		}
	}
	b.wantFile(t, "/workspace/real", "through")
}

func fileSizes(t *testing.T, x *suite) {
	b := x.box(t)
	sizes := []int{0, 1, 4095, 96 << 10, 128 << 10, 1 << 20}
	if x.Heavy {
		sizes = append(sizes, 24<<20)
	}
	if whole {
		sizes = append(sizes, 64<<20)
	}
	for _, size := range sizes {
		content := make([]byte, size)
		_, _ = rand.Read(content) // never fails
		b.write(t, "/workspace/sized", content)
		sum := sha256.Sum256(content)
		if got := b.output(t, "sha256sum < sized | cut -d' ' -f1"); got != hex.EncodeToString(sum[:]) {
			t.Errorf("%d bytes: another hash inside", size)
		}
		back, _, err := b.read(t, "/workspace/sized", sandbox.ReadOptions{})
		if err != nil || !bytes.Equal(back, content) {
			t.Errorf("%d bytes: %d come back, %v", size, len(back), explain(err))
		}
	}
}

func fileNames(t *testing.T, x *suite) {
	b := x.box(t)
	longest := "/workspace/" + strings.Repeat("漢", 85) // 255 bytes
	b.write(t, longest, []byte("x"))
	b.wantFile(t, longest, "x")
	_, err := b.s.WriteFile(t.Context(), longest+"a", sandbox.WriteOptions{Size: 1}, strings.NewReader("x"))
	if e := sandbox.AsError(err); e == nil || e.Code == sandbox.Internal || e.Code == sandbox.OutcomeUnknown {
		t.Errorf("a name of 256 bytes: %v, want a word about the name", explain(err))
	}
	b.write(t, "/workspace/new\nline \x01", []byte("odd"))
	b.wantFile(t, "/workspace/new\nline \x01", "odd")
}

func filePages(t *testing.T, x *suite) {
	b := x.box(t)
	const n = 2500
	b.output(t, fmt.Sprintf("mkdir many && cd many && seq -f f%%05g %d | xargs touch", n))
	seen, after := 0, ""
	for {
		page, err := b.s.ListDir(t.Context(), "/workspace/many", sandbox.ListOptions{After: after})
		if err != nil {
			t.Fatal(explain(err))
		}
		for _, e := range page.Entries {
			seen++
			if want := fmt.Sprintf("/workspace/many/f%05d", seen); e.Path != want && !strings.HasSuffix(want, "/"+e.Path) {
				t.Fatalf("entry %d is %s, want %s", seen, e.Path, want)
			}
		}
		if !page.More {
			break
		}
		if after = page.Next; len(page.Entries) == 0 || seen > n {
			t.Fatalf("no progress after %d entries", seen)
		}
	}
	if seen != n {
		t.Errorf("%d entries, want %d", seen, n)
	}
	if err := b.s.Remove(t.Context(), "/workspace/many", true); err != nil {
		t.Error(explain(err))
	}
}

func fileHidden(t *testing.T, x *suite) {
	b := x.box(t)
	b.output(t, "mkdir -p .hidden/.deep && touch .hidden/.file .hidden/plain")
	page, err := b.s.ListDir(t.Context(), "/workspace/.hidden", sandbox.ListOptions{})
	if err != nil || len(page.Entries) != 3 || page.More {
		t.Errorf("%+v, %v; want three entries", page, explain(err))
	}
}

func fileTree(t *testing.T, x *suite) {
	b := x.box(t)
	ctx := t.Context()
	for range 2 { // an existing directory is success
		if err := b.s.Mkdir(ctx, "/workspace/tree/a/b", 0); err != nil {
			t.Fatal(explain(err))
		}
	}
	b.write(t, "/workspace/tree/a/b/file", []byte("x"))
	if err := b.s.Remove(ctx, "/workspace/tree", false); err == nil {
		t.Error("a directory that is not empty was removed without all")
	}
	b.write(t, "/workspace/tree/taken", []byte("y"))
	wantError(t, b.s.Rename(ctx, "/workspace/tree/taken", "/workspace/tree/a/b/file", false), sandbox.Exists)
	b.wantFile(t, "/workspace/tree/a/b/file", "x")
	if err := b.s.Rename(ctx, "/workspace/tree/a", "/workspace/tree/c", false); err != nil {
		t.Fatal(explain(err))
	}
	if err := b.s.Rename(ctx, "/workspace/tree/taken", "/workspace/tree/c/b/file", true); err != nil {
		t.Fatal(explain(err))
	}
	b.wantFile(t, "/workspace/tree/c/b/file", "y")
	b.write(t, "/workspace/tree/c/b/file", []byte("x"))
	b.wantFile(t, "/workspace/tree/c/b/file", "x")
	wantError(t, b.s.Rename(ctx, "/workspace/nowhere", "/workspace/there", true), sandbox.NotFound)
	b.output(t, "ln -s / tree/root") // the link is removed, not what it leads to
	if err := b.s.Remove(ctx, "/workspace/tree", true); err != nil {
		t.Fatal(explain(err))
	}
	_, err := b.s.Stat(ctx, "/workspace/tree", false)
	wantError(t, err, sandbox.NotFound)
	wantError(t, b.s.Remove(ctx, "/workspace/tree", true), sandbox.NotFound)
}

func fileTar(t *testing.T, x *suite) {
	b := x.box(t)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range []tar.Header{
		{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "dir/script", Typeflag: tar.TypeReg, Mode: 0o755, Size: 4},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "dir/script"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			_, _ = io.WriteString(w, "true") // the buffer does not fail
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := b.s.Unpack(t.Context(), "/workspace/in", bytes.NewReader(archive.Bytes())); n != 3 || err != nil {
		t.Fatalf("%d entries, %v; want 3", n, explain(err))
	}
	if info, err := b.s.Stat(t.Context(), "/workspace/in", false); err != nil || info.Mode != 0o755 {
		t.Errorf("the new directory: %+v, %v; want mode 0755 as mkdir gives", info, explain(err))
	}
	if got := b.output(t, "cd in && find dir -type f -printf '%m %p\\n' && cat link"); got != "755 dir/script\ntrue" {
		t.Errorf("unpacked as %q", got)
	}
	r, err := b.s.Pack(t.Context(), "/workspace/in")
	if err != nil {
		t.Fatal(explain(err))
	}
	defer r.Close()
	names := map[string]bool{}
	for back := tar.NewReader(r); ; {
		h, err := back.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names[strings.Trim(strings.TrimPrefix(h.Name, "./"), "/")] = true
	}
	for _, name := range []string{"dir", "dir/script", "link"} {
		if !names[name] {
			t.Errorf("%s is not in the archive: %v", name, names)
		}
	}
}

func fileSkills(t *testing.T, x *suite) {
	b := x.box(t)
	info := b.write(t, "/skills/tool/SKILL.md", []byte("# how"))
	if info.Mode != 0o644 || x.Real && info.UID != 0 {
		t.Errorf("written as %+v", info)
	}
	b.wantFile(t, "/skills/tool/SKILL.md", "# how")
	if !x.Real {
		return
	}
	if got := b.output(t, "cat /skills/tool/SKILL.md; (echo x > /skills/tool/SKILL.md) 2>/dev/null || echo refused; rm -rf /skills/tool 2>/dev/null || echo kept"); got != "# howrefused\nkept" {
		t.Errorf("inside: %q", got)
	}
}

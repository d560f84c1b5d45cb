package files_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"shoal/sandbox"
)

type entry struct {
	name, content, link string
	kind                byte
	mode                int64
}

func archive(t *testing.T, entries ...entry) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Size: int64(len(e.content)), Typeflag: e.kind, Mode: e.mode, Linkname: e.link, ModTime: time.Unix(1e9, 0), Uid: 12, Gid: 13}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

func archives(t *testing.T) {
	b := setup(t)
	from, to := b.path("from"), b.path("new/to")
	b.mustWrite(t, from+"/file", "content", func(o *sandbox.WriteOptions) { o.Mode = 0o750 })
	b.mustWrite(t, from+"/.hidden/"+strings.Repeat("long", 50), strings.Repeat("x", 100_000))
	b.as(t, func() error {
		return errors.Join(
			os.Symlink("/etc/passwd", b.real(from+"/link")),
			syscall.Mkfifo(b.real(from+"/fifo"), 0o666),
			os.Mkdir(b.real(from+"/empty"), 0o700), os.Chmod(b.real(from+"/empty"), 0o711),
		)
	})
	var buf bytes.Buffer
	if err := b.Pack(t.Context(), from, &buf); err != nil {
		t.Fatalf("pack: %v", err)
	}
	b.mustWrite(t, to+"/file", "is replaced")
	b.mustWrite(t, to+"/stays", "stays")
	if err := b.unpack(t.Context(), to, &buf, direct); err != nil {
		t.Fatalf("unpack: %v", err)
	}
	b.holds(t, to+"/file", "content")
	b.holds(t, to+"/stays", "stays")
	b.holds(t, to+"/.hidden/"+strings.Repeat("long", 50), strings.Repeat("x", 100_000))
	for name, want := range map[string]sandbox.FileInfo{
		"file": {Kind: sandbox.FileRegular, Mode: 0o750}, "empty": {Kind: sandbox.FileDir, Mode: 0o711},
		"link": {Kind: sandbox.FileLink, Mode: 0o777, Target: "/etc/passwd"},
	} {
		info, err := b.Stat(t.Context(), to+"/"+name, false)
		if err != nil || info.Kind != want.Kind || info.Mode != want.Mode || info.Target != want.Target {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
	wantCode(t, "the FIFO", second(b.Stat(t.Context(), to+"/fifo", false)), sandbox.NotFound)
	wantCode(t, "pack a file", b.Pack(t.Context(), from+"/file", io.Discard), sandbox.Invalid)
	wantCode(t, "pack nothing", b.Pack(t.Context(), b.path("nope"), io.Discard), sandbox.NotFound)
	full := errors.New("full")
	if err := b.Pack(t.Context(), from, writerFunc(func([]byte) (int, error) { return 0, full })); !errors.Is(err, full) {
		t.Errorf("a writer that fails: %v", err)
	}
	b.clean(t)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func hostileArchives(t *testing.T) {
	b := setup(t)
	b.mustWrite(t, b.path("outside"), "old")
	for name, entries := range map[string][]entry{
		"parent":           {{name: "../outside", content: "new"}},
		"absolute":         {{name: b.real(b.path("outside")), content: "new"}},
		"through a link":   {{name: "l", link: "..", kind: tar.TypeSymlink}, {name: "l/outside", content: "new"}},
		"absolute link":    {{name: "l", link: b.real(b.dir), kind: tar.TypeSymlink}, {name: "l/outside", content: "new"}},
		"folder by a link": {{name: "l", link: "..", kind: tar.TypeSymlink}, {name: "l/made/", kind: tar.TypeDir}},
		"hard link":        {{name: "h", link: "../outside", kind: tar.TypeLink}},
		"a device":         {{name: "d", kind: tar.TypeBlock}},
		"a FIFO":           {{name: "d", kind: tar.TypeFifo}},
	} {
		err := b.unpack(t.Context(), b.path("in-"+strings.ReplaceAll(name, " ", "")), archive(t, entries...), direct)
		if code := sandbox.CodeOf(err); code != sandbox.Invalid && code != sandbox.Permission {
			t.Errorf("%s: got %v", name, err)
		}
	}
	b.holds(t, b.path("outside"), "old")
	wantCode(t, "made", second(b.Stat(t.Context(), b.path("made"), false)), sandbox.NotFound)
	// A link at an entry's name is replaced, not followed.
	err := b.unpack(t.Context(), b.path("in"), archive(t, entry{name: "l", link: "../outside", kind: tar.TypeSymlink}, entry{name: "l", content: "new"}), direct)
	if err != nil {
		t.Errorf("over a link: %v", err)
	}
	b.holds(t, b.path("outside"), "old")
	b.holds(t, b.path("in/l"), "new")
	whole, _ := io.ReadAll(archive(t, entry{name: "one", content: "1"}, entry{name: "two", content: strings.Repeat("2", 9000)}))
	if err := b.unpack(t.Context(), b.path("cut"), bytes.NewReader(whole[:4000]), direct); err == nil {
		t.Error("a cut archive was taken for whole")
	}
	wantCode(t, "cut file", second(b.Stat(t.Context(), b.path("cut/two"), false)), sandbox.NotFound)
	wantCode(t, "no archive", b.unpack(t.Context(), b.path("no"), strings.NewReader(strings.Repeat("x", 2000)), direct), sandbox.Invalid)
	b.clean(t)
}

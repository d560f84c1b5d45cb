package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// An archive from a sandbox cannot write outside of the destination, whatever
// it says.
func TestHostileArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := os.WriteFile(outside, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "../outside", Typeflag: tar.TypeReg},
		{Name: "/etc/shoal-test", Typeflag: tar.TypeReg},
		{Name: "up", Typeflag: tar.TypeSymlink, Linkname: "../outside"},
		{Name: "abs", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../outside"},
		{Name: "dev", Typeflag: tar.TypeChar},
		{Name: "pipe", Typeflag: tar.TypeFifo},
		{Name: "in", Typeflag: tar.TypeSymlink, Linkname: "."},
		{Name: "in/../../outside", Typeflag: tar.TypeReg},
		{Name: "in/file", Typeflag: tar.TypeReg},
		{Name: "suid", Typeflag: tar.TypeReg, Mode: 0o6755},
		{Name: "over", Typeflag: tar.TypeSymlink, Linkname: "suid"},
		{Name: "over", Typeflag: tar.TypeReg},
	} {
		if h.Typeflag == tar.TypeReg {
			h.Size = 3
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := tw.Write([]byte("new")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "to")
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	skipped, err := unpackTree(root, &b)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"../outside", "/etc/shoal-test", "up", "abs", "hard", "dev", "pipe", "in/../../outside"}
	if !slices.Equal(skipped, want) {
		t.Errorf("left out %v, want %v", skipped, want)
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "before" {
		t.Errorf("outside: %q, %v", got, err)
	}
	if _, err := os.Stat("/etc/shoal-test"); err == nil {
		t.Error("an absolute name was written")
	}
	if st, err := root.Stat("suid"); err != nil || st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		t.Errorf("%v, %v", st, err)
	}
	if st, err := root.Lstat("over"); err != nil || !st.Mode().IsRegular() {
		t.Errorf("a link was written through: %v, %v", st, err)
	}
	if st, err := root.Stat("file"); err != nil || st.Size() != 3 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestPrintableKeepsATerminalSafe(t *testing.T) {
	t.Parallel()
	if got := printable("a\x1b]0;x\x07\u009bé"); got != "a�]0;x��é" {
		t.Errorf("%q", got)
	}
}

package files_test

import (
	"archive/tar"
	"bytes"
	"os"
	"strings"
	"testing"

	"shoal/sandbox"
)

func skills(t *testing.T) {
	b := setup(t)
	if info := b.mustWrite(t, "/skills/a/run.sh", "#!/bin/sh", func(o *sandbox.WriteOptions) { o.Mode = 0o700 }); info.Mode != 0o755 {
		t.Errorf("mode %o", info.Mode)
	}
	if info := b.mustWrite(t, "/skills/a/text", "x", func(o *sandbox.WriteOptions) { o.Mode = 0o666 }); info.Mode != 0o644 || info.UID != 0 {
		t.Errorf("got %+v", info)
	}
	wantCode(t, "absent", second(b.write(t, "/skills/a/text", "y", func(o *sandbox.WriteOptions) { o.IfAbsent = true })), sandbox.Exists)
	wantCode(t, "hash", second(b.write(t, "/skills/a/text", "y", func(o *sandbox.WriteOptions) { o.IfHash = hash("z") })), sandbox.Conflict)
	wantCode(t, "too large", second(b.write(t, "/skills/big", strings.Repeat("x", 1<<20+1))), sandbox.TooLarge)
	b.mustWrite(t, "/skills/big", strings.Repeat("x", 1<<20))
	wantCode(t, "over a folder", second(b.write(t, "/skills/a", "y")), sandbox.Invalid)
	if err := b.Mkdir(t.Context(), "/skills/b/c", 0o777); err != nil {
		t.Error(err)
	}
	if err := b.Rename(t.Context(), "/skills/a/text", "/skills/b/text", true); err != nil {
		t.Error(err)
	}
	wantCode(t, "rename onto what is there", b.Rename(t.Context(), "/skills/b/text", "/skills/b", false), sandbox.Exists)
	wantCode(t, "rename out", b.Rename(t.Context(), "/skills/b/text", b.path("x"), true), sandbox.Unsupported)
	if err := b.unpack(t.Context(), "/skills/un", archive(t, entry{name: "d/f", content: "1", mode: 0o777}, entry{name: "l", link: "d/f", kind: tar.TypeSymlink}), direct); err != nil {
		t.Errorf("unpack: %v", err)
	}
	b.holds(t, "/skills/un/l", "1")

	// The reserved file is neither shown nor touched, on no way.
	if err := os.WriteFile(b.skillsDir()+"/.spec", []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"read": second(b.read(t, "/skills/.spec")), "write": second(b.write(t, "/skills/.spec", "x")),
		"stat": second(b.Stat(t.Context(), "/skills/.spec", false)), "remove": b.Remove(t.Context(), "/skills/.spec", false),
		"rename": b.Rename(t.Context(), "/skills/.spec", "/skills/x", true), "replace": b.Rename(t.Context(), "/skills/big", "/skills/.spec", true),
		"unpack":           b.unpack(t.Context(), "/skills", archive(t, entry{name: ".spec", content: "x"}), direct),
		"link":             b.unpack(t.Context(), "/skills", archive(t, entry{name: "here", link: ".", kind: tar.TypeSymlink}, entry{name: "here/.spec", content: "x"}), direct),
		"hard":             b.unpack(t.Context(), "/skills", archive(t, entry{name: "h", link: ".spec", kind: tar.TypeLink}), direct),
		"later":            second(b.write(t, "/skills/here/.spec", "x")),
		"remove by a link": b.Remove(t.Context(), "/skills/here/.spec", false),
	} {
		wantCode(t, what, err, sandbox.Permission)
	}
	if text, err := os.ReadFile(b.skillsDir() + "/.spec"); err != nil || string(text) != "secret" {
		t.Errorf("the reserved file holds %q, %v", text, err)
	}
	list, err := b.List(t.Context(), "/skills", sandbox.ListOptions{})
	if err != nil || len(list.Entries) < 3 {
		t.Errorf("list: %+v, %v", list, err)
	}
	for _, e := range list.Entries {
		if strings.Contains(e.Path, ".spec") {
			t.Error("the reserved file is listed")
		}
	}
	var packed bytes.Buffer
	if err := b.Pack(t.Context(), "/skills", &packed); err != nil || bytes.Contains(packed.Bytes(), []byte("secret")) {
		t.Errorf("pack: %v", err)
	}
	for _, e := range list.Entries {
		if err := b.Remove(t.Context(), e.Path, true); err != nil {
			t.Errorf("remove %s: %v", e.Path, err)
		}
	}
}

func (b *box) skillsDir() string {
	if b.inside {
		return "/opt/shoal/skills"
	}
	return b.real("/skills")
}

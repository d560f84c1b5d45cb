package files_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shoal/agent/boxtest"
	"shoal/sandbox"
)

func fullDisk(t *testing.T) {
	b := setup(t)
	path := "/small/file"
	b.mustWrite(t, path, strings.Repeat("old ", 1000))
	_, err := b.Write(t.Context(), path, sandbox.WriteOptions{Size: -1}, io.LimitReader(zeros{}, 4<<20), direct)
	wantCode(t, "a full disk", err, sandbox.NoSpace)
	b.holds(t, path, strings.Repeat("old ", 1000))
	list, err := b.List(t.Context(), "/small", sandbox.ListOptions{})
	if err != nil || len(list.Entries) != 1 {
		t.Errorf("left: %+v, %v", list, err)
	}
	b.mustWrite(t, path, "short")
	b.holds(t, path, "short")
	wantCode(t, "to another file system", b.Rename(t.Context(), path, b.path("x"), true), sandbox.Unsupported)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A command plants links to root's files and folders, and to the agent itself.
func plantedLinks(t *testing.T) {
	b := setup(t)
	for name, target := range map[string]string{
		"shadow": "/etc/shadow", "passwd": "/etc/passwd", "opt": "/opt/shoal", "etc": "/etc", "run": "/run/shoal",
		"new": "/etc/planted", "skill": "/opt/shoal/skills/planted", "self": "/proc/self", "up": "../../../../etc/planted",
	} {
		b.as(t, func() error { return os.Symlink(target, b.path(name)) })
	}
	for what, err := range map[string]error{
		"read shadow":              second(b.read(t, b.path("shadow"))),
		"read in the agent's room": second(b.read(t, b.path("opt/bin/agent"))),
		"write passwd":             second(b.write(t, b.path("passwd"), "x")),
		"write in etc":             second(b.write(t, b.path("etc/planted"), "x")),
		"write a new file":         second(b.write(t, b.path("new"), "x")),
		"write upwards":            second(b.write(t, b.path("up"), "x")),
		"write in the agent's":     second(b.write(t, b.path("run/planted"), "x")),
		"write a skill":            second(b.write(t, b.path("skill"), "x")),
		"list the agent's room":    second(b.List(t.Context(), b.path("opt"), sandbox.ListOptions{})),
		"mkdir in etc":             b.Mkdir(t.Context(), b.path("etc/planted"), 0),
		"remove passwd":            b.Remove(t.Context(), b.path("etc/passwd"), true),
		"rename passwd":            b.Rename(t.Context(), b.path("etc/passwd"), b.path("etc/x"), true),
		"unpack into etc":          b.unpack(t.Context(), b.path("etc"), archive(t, entry{name: "planted", content: "x"}), direct),
		"the agent's memory":       second(b.read(t, b.path("self/mem"))),
	} {
		wantCode(t, what, err, sandbox.Permission)
	}
	if boxtest.Runtime() == "runc" { // gVisor (2022) shows it to everybody
		wantCode(t, "the agent's environment", second(b.read(t, b.path("self/environ"))), sandbox.Permission)
	}
	for fd := range 12 {
		if text, err := b.read(t, fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && boxtest.Runtime() == "runc" {
			t.Errorf("descriptor %d of the agent was read: %.40q", fd, text)
		}
	}
	b.clean(t)
}

func permissions(t *testing.T) {
	b := setup(t)
	if err := os.WriteFile("/tmp/roots", []byte("x"), 0o666); err != nil { // root's, in a sticky folder
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"write over root's file":  second(b.write(t, "/tmp/roots", "y")),
		"remove root's file":      b.Remove(t.Context(), "/tmp/roots", false),
		"write the image":         second(b.write(t, "/usr/bin/x", "y")),
		"pack the agent's folder": b.Pack(t.Context(), "/opt/shoal", io.Discard),
		"pack what holds some":    b.Pack(t.Context(), "/opt", io.Discard),
	} {
		wantCode(t, what, err, sandbox.Permission)
	}
	b.mustWrite(t, b.path("readonly"), "old", func(o *sandbox.WriteOptions) { o.Mode = 0o444 })
	wantCode(t, "write a read-only file", second(b.write(t, b.path("readonly"), "y")), sandbox.Permission)
	b.mustWrite(t, b.path("hidden"), "old", func(o *sandbox.WriteOptions) { o.Mode = 0o200 })
	wantCode(t, "read what has no r", second(b.read(t, b.path("hidden"))), sandbox.Permission)
	if err := b.Mkdir(t.Context(), b.path("closed"), 0o500); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "write into a closed folder", second(b.write(t, b.path("closed/x"), "y")), sandbox.Permission)
	b.clean(t)
}

func largeFile(t *testing.T) {
	b := setup(t)
	const size = 64 << 20
	began := time.Now()
	info, err := b.Write(t.Context(), b.path("large"), sandbox.WriteOptions{Size: size}, io.LimitReader(zeros{}, size), direct)
	if err != nil {
		t.Fatal(err)
	}
	wrote := time.Since(began)
	began = time.Now()
	h := &bytesCounter{}
	if _, err := b.Read(t.Context(), b.path("large"), sandbox.ReadOptions{}, h); err != nil || h.n != size {
		t.Errorf("read %d, %v", h.n, err)
	}
	t.Logf("64 MiB: written in %v, read in %v", wrote, time.Since(began))
	stat, err := b.Stat(t.Context(), b.path("large"), true)
	if err != nil || stat.SHA256 != info.SHA256 {
		t.Errorf("hash %s, %v, want %s", stat.SHA256, err, info.SHA256)
	}
	began = time.Now()
	const rounds = 50
	for range rounds {
		b.mustWrite(t, b.path("small"), strings.Repeat("x", 4096))
	}
	wrote = time.Since(began) / rounds
	began = time.Now()
	for range rounds {
		_, _ = b.read(t, b.path("small"))
	}
	t.Logf("4 KiB: written in %v, read in %v", wrote, time.Since(began)/rounds)
}

type bytesCounter struct{ n int64 }

func (c *bytesCounter) Write(p []byte) (int, error) {
	if bytes.ContainsFunc(p, func(r rune) bool { return r != 0 }) {
		return 0, errors.New("not zeros")
	}
	c.n += int64(len(p))
	return len(p), nil
}

// A process of the user can neither signal nor look into the threads that act as it.
func outOfReach(t *testing.T) {
	b := setup(t)
	var tid int
	b.as(t, func() error {
		tid = unix.Gettid()
		if ruid, euid, suid := unix.Getresuid(); ruid != 0 || euid != boxtest.UID || suid != 0 {
			t.Errorf("uids %d %d %d", ruid, euid, suid)
		}
		return nil
	})
	if tid == os.Getpid() {
		t.Error("the main thread has the user's rights")
	}
	pid, err := syscall.ForkExec("/usr/bin/python3", []string{"python3", "-c", `
import os, signal, sys
os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
for target in (int(sys.argv[1]), os.getppid()):
    for sig in (signal.SIGKILL, signal.SIGSTOP, 0):
        try: os.kill(target, sig); sys.exit(1)
        except PermissionError: pass
    try: os.open("/proc/%d/mem" % target, os.O_RDONLY); sys.exit(2)
    except OSError: pass
sys.exit(7)`, fmt.Sprint(tid)}, &syscall.ProcAttr{Env: []string{"PATH=/usr/bin"}, Files: []uintptr{0, 1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 7 {
		t.Errorf("exit %d, %v", status.ExitStatus(), err)
	}
}

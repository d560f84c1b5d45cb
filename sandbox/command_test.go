package sandbox_test

import (
	"strings"
	"testing"

	"shoal/sandbox"
)

func validCommand() sandbox.Command { return sandbox.Command{ID: "c", Shell: "true"} }

func TestCommand(t *testing.T) {
	type c = sandbox.Command
	argv := func(n int, arg string) func(*c) {
		return func(c *c) {
			c.Shell, c.Argv = "", make([]string, n)
			for i := range c.Argv {
				c.Argv[i] = arg
			}
		}
	}
	foreground, background := sandbox.Millis(sandbox.MaxForeground), sandbox.Millis(sandbox.MaxBackground)
	checkChanges(t, validCommand, (*c).Validate, []change[c]{
		{"no id", func(c *c) { c.ID = "" }, "id"},
		{"no program", func(c *c) { c.Shell = "" }, "shell"},
		{"two programs", func(c *c) { c.Argv = []string{"true"} }, "argv"},
		{"an empty program", argv(1, ""), "shell"},
		{"an argument with NUL", argv(2, "a\x00"), "argv"},
		{"the most arguments", argv(4096, "a"), ""},
		{"more arguments", argv(4097, "a"), "argv"},
		{"the longest argument", argv(1, x(128<<10-1)), ""},
		{"a longer argument", argv(1, x(128<<10)), "argv"},
		{"the most bytes of arguments", argv(8, x(128<<10-1)), ""},
		{"more bytes of arguments", argv(9, x(128<<10-1)), "argv"},
		{"a script with NUL", func(c *c) { c.Shell = "a\x00b" }, "shell"},
		{"the longest script", func(c *c) { c.Shell = x(128<<10 - 1) }, ""},
		{"a longer script", func(c *c) { c.Shell = x(128 << 10) }, "shell"},
		{"a relative cwd", func(c *c) { c.Cwd = "a" }, "cwd"},
		{"an absolute cwd", func(c *c) { c.Cwd = "/tmp" }, ""},
		{"a bad variable", func(c *c) { c.Env = map[string]string{"=": ""} }, "env"},
		{"a tag", func(c *c) { c.Tag = "t" }, ""},
		{"a bad tag", func(c *c) { c.Tag = "*" }, "tag"},
		{"a token without its tag", func(c *c) { c.Token = "t" }, "token"},
		{"a tag with its token", func(c *c) { c.Tag, c.Token = "t", "t" }, ""},
		{"a bad token", func(c *c) { c.Tag, c.Token = "t", "a b" }, "token"},
		{"the longest time limit", func(c *c) { c.Timeout = foreground }, ""},
		{"a longer time limit", func(c *c) { c.Timeout = foreground + 1 }, "timeoutMs"},
		{"a negative time limit", func(c *c) { c.Timeout = -1 }, "timeoutMs"},
		{"the longest background", func(c *c) { c.Background, c.Timeout = true, background }, ""},
		{"a longer background", func(c *c) { c.Background, c.Timeout = true, background+1 }, "timeoutMs"},
		{"the longest grace", func(c *c) { c.Grace = sandbox.Millis(sandbox.MaxGrace) }, ""},
		{"a longer grace", func(c *c) { c.Grace = sandbox.Millis(sandbox.MaxGrace) + 1 }, "graceMs"},
		{"a negative grace", func(c *c) { c.Grace = -1 }, "graceMs"},
		{"a negative cap", func(c *c) { c.MaxOutput = -1 }, "maxOutput"},
		{"an unknown stdin", func(c *c) { c.Stdin = "pipe" }, "stdin"},
		{"input", func(c *c) { c.Input = []byte("a") }, ""},
		{"the longest input", func(c *c) { c.Input = make([]byte, sandbox.MaxInput) }, ""},
		{"longer input", func(c *c) { c.Input = make([]byte, sandbox.MaxInput+1) }, "input"},
		{"input beside a stream", func(c *c) { c.Input, c.Stdin = []byte("a"), sandbox.StdinStream }, "input"},
		{"input for a terminal", func(c *c) { c.Input, c.TTY = []byte("a"), &sandbox.TTY{Rows: 1, Cols: 1} }, "input"},
		{"the largest terminal", func(c *c) { c.TTY = &sandbox.TTY{Rows: 4096, Cols: 4096} }, ""},
		{"a larger terminal", func(c *c) { c.TTY = &sandbox.TTY{Rows: 4097, Cols: 1} }, "tty"},
		{"a terminal without rows", func(c *c) { c.TTY = &sandbox.TTY{Cols: 1} }, "tty"},
		{"a terminal without columns", func(c *c) { c.TTY = &sandbox.TTY{Rows: 1} }, "tty"},
		{"an unknown disconnect", func(c *c) { c.OnDisconnect = "stop" }, "onDisconnect"},
		{"an unknown overflow", func(c *c) { c.Overflow = "grow" }, "overflow"},
		{"a foreground that keeps awake", func(c *c) { c.KeepAwake = true }, "keepAwake"},
		{"a background that keeps awake", func(c *c) { c.Background, c.KeepAwake = true, true }, ""},
	})
}

func TestCommandDefaults(t *testing.T) {
	foreground := validCommand().WithDefaults()
	if foreground.Cwd != "/workspace" || foreground.Stdin != sandbox.StdinNone || foreground.Overflow != sandbox.OverflowBlock ||
		foreground.OnDisconnect != sandbox.DisconnectKill || foreground.Timeout.Duration() != sandbox.DefaultForeground ||
		foreground.Grace.Duration() != sandbox.DefaultGrace {
		t.Errorf("foreground %+v", foreground)
	}
	c := validCommand()
	c.Background = true
	background := c.WithDefaults()
	if background.Overflow != sandbox.OverflowDrop || background.OnDisconnect != sandbox.DisconnectKeep || background.Timeout != 0 {
		t.Errorf("background %+v", background)
	}
	for _, c := range []sandbox.Command{foreground, background} {
		if err := c.Validate(); err != nil {
			t.Errorf("the defaults are not valid: %v", err)
		}
	}
	withInput := sandbox.Command{ID: "c", Shell: "cat", Input: []byte("a")}.WithDefaults()
	if err := withInput.Validate(); err != nil {
		t.Errorf("the defaults make input invalid: %v", err)
	}
}

func TestKillRequest(t *testing.T) {
	type k = sandbox.KillRequest
	tags := func(n int) []sandbox.Tag { return repeat(sandbox.Tag("t"), n) }
	checkChanges(t, func() k { return k{All: true} }, (*k).Validate, []change[k]{
		{"nothing", func(k *k) { k.All = false }, "kill"},
		{"two kinds", func(k *k) { k.Tags = tags(1) }, "kill"},
		{"tags", func(k *k) { k.All, k.Tags = false, tags(256) }, ""},
		{"more tags", func(k *k) { k.All, k.Tags = false, tags(257) }, "kill"},
		{"a bad tag", func(k *k) { k.All, k.Tags = false, []sandbox.Tag{"*"} }, "kill.tags"},
		{"ids", func(k *k) { k.All, k.IDs = false, []sandbox.CommandID{"a"} }, ""},
		{"a bad id", func(k *k) { k.All, k.IDs = false, []sandbox.CommandID{""} }, "kill.ids"},
	})
}

func repeat[T any](v T, n int) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = v
	}
	return all
}

func TestShellCode(t *testing.T) {
	for _, c := range []struct {
		end  sandbox.End
		want int
	}{
		{sandbox.End{Reason: sandbox.Exited, Code: new(0)}, 0},
		{sandbox.End{Reason: sandbox.Exited, Code: new(137)}, 137},
		{sandbox.End{Reason: sandbox.Signaled, Signal: 2}, 130},
		{sandbox.End{Reason: sandbox.TimedOut, Signal: 9}, 124},
		{sandbox.End{Reason: sandbox.Killed, Signal: 9}, 137},
		{sandbox.End{Reason: sandbox.Killed}, 137},
		{sandbox.End{Reason: sandbox.OutOfMemory, Signal: 9}, 137},
		{sandbox.End{Reason: sandbox.SandboxRestarted}, 137},
	} {
		if got := c.end.ShellCode(); got != c.want {
			t.Errorf("%+v: %d, want %d", c.end, got, c.want)
		}
	}
}

func TestFileOptions(t *testing.T) {
	type w = sandbox.WriteOptions
	hash := strings.Repeat("0a", 32)
	checkChanges(t, func() w { return w{} }, func(w *w) error { return w.Validate() }, []change[w]{
		{"all bits", func(w *w) { w.Mode = 0o777 }, ""},
		{"setuid", func(w *w) { w.Mode = 0o4755 }, "mode"},
		{"a mode above", func(w *w) { w.Mode = 0o1000 }, "mode"},
		{"an unknown size", func(w *w) { w.Size = -1 }, ""},
		{"a negative size", func(w *w) { w.Size = -2 }, "size"},
		{"a hash", func(w *w) { w.IfHash = hash }, ""},
		{"a short hash", func(w *w) { w.IfHash = hash[1:] }, "ifHash"},
		{"a hash in upper case", func(w *w) { w.IfHash = strings.ToUpper(hash) }, "ifHash"},
		{"a hash of what is absent", func(w *w) { w.IfHash, w.IfAbsent = hash, true }, "ifHash"},
	})
	type r = sandbox.ReadOptions
	checkChanges(t, func() r { return r{} }, func(r *r) error { return r.Validate() }, []change[r]{
		{"a range", func(r *r) { r.Offset, r.Limit = 1, 1 }, ""},
		{"a negative offset", func(r *r) { r.Offset = -1 }, "offset"},
		{"a negative limit", func(r *r) { r.Limit = -1 }, "limit"},
	})
	type l = sandbox.ListOptions
	checkChanges(t, func() l { return l{} }, func(l *l) error { return l.Validate() }, []change[l]{
		{"a full page", func(l *l) { l.Limit = sandbox.MaxListPage }, ""},
		{"a larger page", func(l *l) { l.Limit = sandbox.MaxListPage + 1 }, "limit"},
		{"a negative page", func(l *l) { l.Limit = -1 }, "limit"},
	})
}

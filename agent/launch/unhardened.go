package launch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"shoal/agent/proc"
	"shoal/agent/threads"
)

// NewUnhardened returns a Launcher that drops nothing and needs no launch
// program: commands run as the process's own user in their own session, and
// their mark is a variable of their environment, see [proc.Reaper.MarkVariable]. Only tests use it.
func NewUnhardened(reaper *proc.Reaper) *Launcher {
	return &Launcher{reaper: reaper, threads: threads.Self{}, fork: plain{reaper}.fork}
}

type plain struct{ reaper *proc.Reaper }

func (p plain) fork(c *Command, files []uintptr) (int, error) {
	if info, err := os.Stat(c.Dir); err != nil {
		return 0, startError(StepDirectory, err)
	} else if !info.IsDir() {
		return 0, &StartError{Step: StepDirectory, Errno: syscall.ENOTDIR}
	}
	path, err := lookPath(c)
	if err != nil {
		return 0, startError(StepExec, err)
	}
	env := slices.Concat(c.Env, []string{p.reaper.MarkVariable(c.Mark)})
	pid, err := syscall.ForkExec(path, c.Argv, &syscall.ProcAttr{
		Dir: c.Dir, Env: env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: c.Terminal != nil},
	})
	if err != nil {
		return 0, startError(StepExec, err)
	}
	return pid, nil
}

// lookPath finds the program as launch does: in the command's PATH, not in ours.
func lookPath(c *Command) (string, error) {
	name := c.Argv[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	var path string
	for _, entry := range c.Env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
			break
		}
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", syscall.ENOENT
}

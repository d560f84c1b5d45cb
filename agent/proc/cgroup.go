package proc

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage is what the whole sandbox uses, as its control group counts it. What the
// kernel does not tell is -1; gVisor (2022) tells nothing.
type Usage struct {
	CPU         time.Duration
	Memory      int64 // bytes, without page cache that can be dropped at once
	MemoryLimit int64 // bytes
	OOMKills    int64 // processes that the kernel killed for want of memory
	Pids        int64 // processes and threads
	PidsLimit   int64
}

// Cgroup reads the sandbox's control group, version 1 or 2, as it is mounted at
// /sys/fs/cgroup. It keeps no state and may be used from several goroutines.
type Cgroup struct {
	root fs.FS
	v2   bool
}

// OpenCgroup finds out the version. It never fails: what is missing is -1 in [Usage].
func OpenCgroup() *Cgroup { return openCgroup(os.DirFS("/sys/fs/cgroup")) }

func openCgroup(root fs.FS) *Cgroup {
	_, err := fs.Stat(root, "cgroup.controllers")
	return &Cgroup{root: root, v2: err == nil}
}

// OOMKills is [Usage.OOMKills] alone: when it grew and a command was killed by
// SIGKILL that nobody here sent, its memory was the reason.
func (c *Cgroup) OOMKills() int64 {
	if c.v2 {
		return c.field("memory.events", "oom_kill")
	}
	return c.field("memory/memory.oom_control", "oom_kill")
}

// Read returns what is used now.
func (c *Cgroup) Read() Usage {
	u := Usage{OOMKills: c.OOMKills(), CPU: -1}
	if c.v2 {
		u.Memory = less(c.number("memory.current"), c.field("memory.stat", "inactive_file"))
		u.MemoryLimit = c.number("memory.max")
		u.Pids, u.PidsLimit = c.number("pids.current"), c.number("pids.max")
		if us := c.field("cpu.stat", "usage_usec"); us >= 0 {
			u.CPU = time.Duration(us) * time.Microsecond
		}
		return u
	}
	u.Memory = less(c.number("memory/memory.usage_in_bytes"), c.field("memory/memory.stat", "total_inactive_file"))
	u.MemoryLimit = c.number("memory/memory.limit_in_bytes")
	u.Pids, u.PidsLimit = c.number("pids/pids.current"), c.number("pids/pids.max")
	if ns := c.number("cpuacct/cpuacct.usage"); ns >= 0 {
		u.CPU = time.Duration(ns)
	}
	return u
}

func less(all, part int64) int64 {
	if part <= 0 {
		return all
	}
	return max(all-part, 0)
}

// number reads a file that holds one number; "max" and what is missing are -1.
func (c *Cgroup) number(name string) int64 {
	text, err := fs.ReadFile(c.root, name)
	if err != nil {
		return -1
	}
	return parseNumber(strings.TrimSpace(string(text)))
}

// field reads one line of a file of names and numbers.
func (c *Cgroup) field(name, key string) int64 {
	text, err := fs.ReadFile(c.root, name)
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			return parseNumber(strings.TrimSpace(value))
		}
	}
	return -1
}

func parseNumber(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// Detail is what a process list shows beyond [Process].
type Detail struct {
	Process
	CPU time.Duration // user and system
	RSS int64         // bytes
}

// ticksPerSecond is the unit of times in /proc, fixed for user space on Linux.
const ticksPerSecond = 100

// Details returns the processes of [Table.Processes] with what they use.
func (t *Table) Details() ([]Detail, error) {
	all, err := t.Processes()
	if err != nil {
		return nil, err
	}
	details := make([]Detail, 0, len(all))
	for _, p := range all {
		d := Detail{Process: p}
		err := t.fs.addStat(&d)
		if errors.Is(err, errVanished) {
			continue
		}
		if err != nil {
			return nil, err
		}
		details = append(details, d)
	}
	return details, nil
}

// addStat reads /proc/<pid>/stat. The name in it is in parentheses and may hold
// some itself, so the fields are counted from the last one.
func (f procFS) addStat(d *Detail) error {
	text, err := readFile(int(f.root.Fd()), filepath.Join(strconv.Itoa(d.Pid), "stat"), make([]byte, 2<<10))
	if err != nil {
		return err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const utime, stime, rss = 11, 12, 21 // counted from the state
	if len(fields) <= rss {
		return nil
	}
	ticks := max(parseNumber(fields[utime]), 0) + max(parseNumber(fields[stime]), 0)
	d.CPU = time.Duration(ticks) * time.Second / ticksPerSecond
	d.RSS = max(parseNumber(fields[rss]), 0) * int64(os.Getpagesize())
	return nil
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU times in /proc: USER_HZ, 100 on every Linux that
// Go runs on (proc(5)).
const clockTick = time.Second / 100

// stat is what we read of /proc/<pid>/stat.
type stat struct {
	pid, parent int
	name        string
	cpu         time.Duration
}

// readStat reads one process; its name stands in parentheses and may hold any
// character (proc(5)).
func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(procFile(pid, "stat")) //nolint:gosec // below /proc, by number
	if err != nil {
		return stat{}, err
	}
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return stat{}, fmt.Errorf("read %s: no name in it", procFile(pid, "stat"))
	}
	f := strings.Fields(string(data[end+1:])) // from the third field on
	if len(f) < 13 {
		return stat{}, fmt.Errorf("read %s: %d fields", procFile(pid, "stat"), len(f))
	}
	var n [3]int64
	for i, field := range []int{1, 11, 12} { // parent, user time, system time
		if n[i], err = strconv.ParseInt(f[field], 10, 64); err != nil {
			return stat{}, fmt.Errorf("read %s: %w", procFile(pid, "stat"), err)
		}
	}
	return stat{pid: pid, parent: int(n[0]), name: string(data[open+1 : end]), cpu: time.Duration(n[1]+n[2]) * clockTick}, nil
}

func procFile(pid int, name string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + name
}

func cpuTime(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	return s.cpu, err
}

// fieldKiB reads a line such as "Pss:  12 kB" of a file of a process.
func fieldKiB(pid int, file, field string) (int64, error) {
	data, err := os.ReadFile(procFile(pid, file)) //nolint:gosec // below /proc, by number
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			return strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", procFile(pid, file), field)
}

func statusKiB(pid int, field string) (int64, error) { return fieldKiB(pid, "status", field) }

// pss is a process's share of memory: what it shares with others counts in part.
func pss(pid int) (int64, error) { return fieldKiB(pid, "smaps_rollup", "Pss:") }

// restPeak lets the peak of a worker's memory (VmHWM) begin anew and returns
// what it uses now, in KiB.
func (w *worker) restPeak() (int64, error) {
	if err := os.WriteFile(procFile(w.pid(), "clear_refs"), []byte("5"), 0); err != nil { //nolint:gosec // below /proc, by number; 5 = the peak, proc(5)
		return 0, err
	}
	return statusKiB(w.pid(), "VmRSS:")
}

// family returns the processes of a container whose main process is given:
// everything below the shim that is the main process's parent, and the shim.
func family(main int) ([]stat, error) {
	first, err := readStat(main)
	if err != nil {
		return nil, fmt.Errorf("look at a container's main process: %w: is the engine on this machine?", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]stat{}
	var found []stat
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		s, err := readStat(pid)
		if err != nil {
			continue // it has ended
		}
		children[s.parent] = append(children[s.parent], s)
		if pid == first.parent {
			found = append(found, s)
		}
	}
	if len(found) == 0 || first.parent == 1 {
		return nil, errors.New("the container's main process has no shim above it")
	}
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
	}
	return found, nil
}

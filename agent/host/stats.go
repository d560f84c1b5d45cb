package host

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"shoal/sandbox"
)

// Stats implements agent.Host. What the kernel does not tell is 0.
func (h *Host) Stats(context.Context) (sandbox.Stats, error) {
	processes, err := h.table.Processes()
	if err != nil {
		return sandbox.Stats{}, sandbox.Errorf(sandbox.Internal, "look at the sandbox's processes").Wrap(err)
	}
	u := h.cgroup.Read()
	st := sandbox.Stats{
		CPU:         sandbox.Milliseconds(max(0, u.CPU/time.Millisecond)),
		Memory:      max(0, u.Memory),
		MemoryLimit: max(0, u.MemoryLimit),
		OOMKills:    max(0, u.OOMKills),
		Pids:        int(max(0, u.Pids)),
		PidsLimit:   int(max(0, u.PidsLimit)),
	}
	for _, p := range processes {
		if !p.Alive() {
			st.Zombies++
		}
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(h.inside(workspace), &disk); err == nil {
		block := disk.Bsize
		st.DiskTotal = int64(disk.Blocks) * block
		st.DiskUsed = int64(disk.Blocks-disk.Bfree) * block
	}
	return st, nil
}

// OOMKills implements agent.Host.
func (h *Host) OOMKills() int64 { return h.cgroup.OOMKills() }

package docker

import (
	"fmt"
	"math"
	"strconv"

	"shoal/sandbox"
)

const (
	// cpuShares is the weight against what else runs on the host (1024).
	cpuShares = 128
	// openFiles is the most descriptors of one process; an engine cannot give
	// more than it has itself.
	openFiles = 8192
	// Under gVisor the engine's pid limit counts host threads of the sentry and
	// ends the whole sandbox when it is reached, so it is only a backstop there;
	// the agent enforces the real one (measured on release 20221219).
	runscPids, runscPidsEach = 200, 10
)

// mostLimits are far above what a deployment allows; the fleet judges that.
var mostLimits = sandbox.Limits{CPU: 4096, MemoryMB: 1 << 24, DiskMB: 1 << 30, Pids: 1 << 20}

// blueprint is a sandbox to make, in the engine's terms.
type blueprint struct {
	id        identity
	image     string
	limits    sandbox.Limits
	notes     []string
	volumes   []volumeCreate
	container containerCreate
}

// draw turns spec into a blueprint; it refuses what this deployment has not.
func (p *Provider) draw(spec *sandbox.Spec) (*blueprint, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := spec.Limits.Validate(mostLimits); err != nil { // for the engine zero is "unlimited"
		return nil, err
	}
	ref := spec.Image
	if ref == "" {
		ref = p.conf.Image
	}
	ref, err := normalImage(ref)
	if err != nil {
		return nil, err
	}
	network, err := p.networkMode(spec.Egress.Mode)
	if err != nil {
		return nil, err
	}
	b := &blueprint{id: identity{tenant: spec.Tenant, name: spec.Name, generation: spec.Generation}, image: ref, limits: spec.Limits}
	if p.conf.VolumeDriver == "" {
		b.notes = append(b.notes, "diskMb is not enforced: this deployment has no volume driver that takes a size")
	}
	b.volumes = p.drawVolumes(spec, b.id)
	b.container = p.drawContainer(spec, b)
	b.container.HostConfig.NetworkMode = network
	return b, nil
}

func (p *Provider) networkMode(mode sandbox.EgressMode) (string, error) {
	switch {
	case mode == sandbox.EgressNone, mode == sandbox.EgressAllowlist:
		return "none", nil // the agent's stream carries what is allowed
	case mode == sandbox.EgressOpen && p.conf.AllowOpenEgress:
		return p.conf.Network, nil
	case mode == sandbox.EgressOpen:
		return "", sandbox.Errorf(sandbox.Denied, "egress open is not allowed here; the operator can allow it by --allow-open-egress and --network")
	}
	return "", sandbox.InvalidField("egress.mode", "the mode must be set")
}

func (p *Provider) drawVolumes(spec *sandbox.Spec, id identity) []volumeCreate {
	workspace := volumeCreate{Name: p.workspace(id), Labels: p.labels(spec, roleWorkspace)}
	if p.conf.VolumeDriver != "" {
		workspace.Driver = p.conf.VolumeDriver
		workspace.DriverOpts = map[string]string{"size": strconv.Itoa(spec.Limits.DiskMB) + "m"}
	}
	return []volumeCreate{workspace, {Name: p.skills(id), Labels: p.labels(spec, roleSkills)}}
}

func (p *Provider) drawContainer(spec *sandbox.Spec, b *blueprint) containerCreate {
	memory := int64(spec.Limits.MemoryMB) << 20
	return containerCreate{
		Image:       b.image,
		User:        "0:0",
		Entrypoint:  []string{agentProgram},
		Cmd:         []string{"serve"},
		WorkingDir:  "/",
		StopSignal:  "SIGTERM",
		Healthcheck: healthcheck{Test: []string{"NONE"}},
		Labels:      p.labels(spec, roleSandbox),
		HostConfig: hostConfig{
			Runtime:        p.conf.Runtime,
			Init:           true,
			ReadonlyRootfs: true,
			CapDrop:        []string{"ALL"},
			CapAdd:         []string{"SETUID", "SETGID", "KILL"},
			SecurityOpt:    []string{"no-new-privileges"},
			IpcMode:        "private",
			Memory:         memory,
			MemorySwap:     memory,
			NanoCpus:       int64(math.Round(spec.Limits.CPU * 1e9)),
			CpuShares:      cpuShares,
			PidsLimit:      p.pidsLimit(spec.Limits.Pids),
			Ulimits:        []ulimit{{Name: "nofile", Soft: openFiles, Hard: openFiles}},
			Tmpfs: map[string]string{
				"/tmp":       fmt.Sprintf("rw,exec,nosuid,nodev,mode=1777,size=%dm", tmpMB(spec.Limits)),
				"/run/shoal": "rw,noexec,nosuid,nodev,mode=0700,size=4m",
			},
			Mounts: []mount{
				{Type: "volume", Source: p.workspace(b.id), Target: "/workspace"},
				{Type: "volume", Source: p.skills(b.id), Target: "/skills", ReadOnly: true},
				{Type: "volume", Source: p.skills(b.id), Target: "/opt/shoal/skills"},
			},
			LogConfig: logConfig{Type: "none"},
		},
	}
}

// tmpMB is the size of /tmp. It counts to the sandbox's memory.
func tmpMB(l sandbox.Limits) int { return min(l.MemoryMB/2, l.DiskMB) }

func (p *Provider) pidsLimit(pids int) int64 {
	if p.conf.Runtime == RuntimeRunsc {
		return runscPids + runscPidsEach*int64(pids)
	}
	return int64(pids)
}

// limitsOf reads the limits in force from an inspection.
func limitsOf(c *container) sandbox.Limits {
	l := sandbox.Limits{
		CPU:      float64(c.HostConfig.NanoCpus) / 1e9,
		MemoryMB: int(c.HostConfig.Memory >> 20),
	}
	if disk, err := strconv.Atoi(c.Config.Labels[LabelDisk]); err == nil && disk > 0 {
		l.DiskMB = disk
	}
	if c.HostConfig.PidsLimit != nil {
		l.Pids = int(*c.HostConfig.PidsLimit)
		if c.HostConfig.Runtime == RuntimeRunsc {
			l.Pids = (l.Pids - runscPids) / runscPidsEach
		}
	}
	return l
}

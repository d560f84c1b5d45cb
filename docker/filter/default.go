package filter

import (
	"regexp"
	"strings"

	"shoal/image"
)

// Settings are what the default policy needs to know of a deployment.
type Settings struct {
	// Prefix begins every object's name. Defaults to "shoal-".
	Prefix string
	// Fleet is the value of every object's fleet label. Defaults to "main".
	Fleet string
	// Images may be used and pulled. Defaults to shoal-sandbox:dev.
	Images []string
	// Network is the bridge of sandboxes with open egress; "" admits none.
	Network string
	// VolumeDriver makes workspace volumes of a given size; "" admits none.
	VolumeDriver string
	// WarmPool admits the two calls that claim a sandbox made ahead: a new name
	// for a container of the pool, and other limits.
	WarmPool bool
	// The most that one sandbox may have. Default to 8 GiB, 4 CPUs and 4096
	// processes. Under gVisor the engine counts the threads of the host
	// and the provider asks for 200 + 10 × MaxPids.
	MaxMemoryMB int64
	MaxCPU      float64
	MaxPids     int64
}

func (s Settings) withDefaults() Settings {
	for field, def := range map[*string]string{&s.Prefix: "shoal-", &s.Fleet: "main"} {
		if *field == "" {
			*field = def
		}
	}
	for field, def := range map[*int64]int64{&s.MaxMemoryMB: 8192, &s.MaxPids: 4096} {
		if *field == 0 {
			*field = def
		}
	}
	if s.MaxCPU == 0 {
		s.MaxCPU = 4
	}
	if len(s.Images) == 0 {
		s.Images = []string{image.Default}
	}
	return s
}

// poolTenant is the reserved tenant of sandboxes that were made ahead. What was
// claimed outlives the pool, so that the names are admitted in any case.
const poolTenant = "_pool"

// DefaultPolicy is the least that Shoal's Docker provider needs: what its
// conformance suite never sends is refused.
func DefaultPolicy(s Settings) (*Policy, error) {
	s = s.withDefaults()
	const sandbox = "{shoal.tenant}-{shoal.name}.{shoal.generation}"
	object := literal(s.Prefix) + sandbox
	labels := []string{
		"shoal.fleet", "shoal.tenant", "shoal.name", "shoal.generation", "shoal.role", "shoal.bucket", "shoal.disk",
	}
	p := &Policy{
		MinAPI: "1.41", MaxAPI: "1.44", Prefix: s.Prefix, MaxBody: 32 << 10,
		Calls: map[string][]string{
			"ping":              {},
			"image.inspect":     {},
			"image.pull":        {"fromImage"},
			"volume.create":     {},
			"volume.inspect":    {},
			"volume.list":       {"filters"},
			"volume.remove":     {},
			"container.create":  {"name"},
			"container.inspect": {},
			"container.list":    {"all", "filters"},
			"container.start":   {},
			"container.stop":    {"t"},
			"container.restart": {"t"},
			"container.pause":   {},
			"container.unpause": {},
			"container.remove":  {"force", "v"},
			"exec.create":       {},
			"exec.start":        {},
		},
		Images: s.Images,
		Labels: map[string]string{
			"shoal.fleet":      regexp.QuoteMeta(s.Fleet),
			"shoal.tenant":     `[a-z0-9]{1,32}|` + poolTenant,
			"shoal.name":       `[a-zA-Z0-9][a-zA-Z0-9_.-]{0,100}`,
			"shoal.generation": `[a-zA-Z0-9_-]{1,64}`,
			"shoal.role":       `[a-z]{1,32}`,
			"shoal.bucket":     `[a-zA-Z0-9_-]{0,64}`,
			"shoal.disk":       `[0-9]{1,9}`,
			"shoal.engine":     `[a-zA-Z0-9_-]{1,64}`,
		},
		RoleLabel:  "shoal.role",
		ListLabels: []string{"shoal.fleet", "shoal.name", "shoal.tenant"},
		Roles: map[string]Role{
			"sandbox": {
				Name: object, Labels: labels, Container: s.container(object),
				Rename: &RenameRule{Label: "shoal.tenant", Value: poolTenant, Free: []string{"shoal.tenant", "shoal.name"}},
			},
			"workspace": {Name: object + "-workspace", Labels: labels, Volume: &VolumeRule{Driver: s.VolumeDriver}},
			"skills":    {Name: object + "-skills", Labels: labels, Volume: &VolumeRule{}},
			"engine": {
				Name: literal(s.Prefix) + "engine", Volume: &VolumeRule{}, Keep: true,
				Labels: []string{"shoal.role", "shoal.engine"},
			},
		},
		Exec: ExecRule{Cmds: [][]string{{"/opt/shoal/bin/attach", "/run/shoal/agent.sock"}}, Users: []string{"0:0"}},
	}
	if s.WarmPool {
		p.Calls["container.rename"], p.Calls["container.update"] = []string{"name"}, []string{}
	}
	if s.Network != "" {
		p.Networks = []string{s.Network}
		p.Calls["network.inspect"] = []string{}
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

func (s Settings) container(object string) *ContainerRule {
	rule := &ContainerRule{
		User: "0:0", WorkingDir: "/", Entrypoint: []string{"/opt/shoal/bin/agent"}, Cmd: []string{"serve"},
		StopSignal: "SIGTERM", Healthcheck: []string{"NONE"},
		Runtimes: []string{"runc", "runsc"}, IPC: []string{"private"},
		CapAdd:    []string{"SETUID", "SETGID", "KILL"},
		MaxMemory: s.MaxMemoryMB << 20, MaxNanoCPUs: int64(s.MaxCPU * 1e9), MaxPids: 200 + 10*s.MaxPids, MaxCPUShares: 128,
		Ulimits:  map[string]int64{"nofile": 8192},
		Networks: []string{"none"},
		Tmpfs: map[string]TmpfsRule{
			"/tmp":       {MaxSize: s.MaxMemoryMB << 20 / 2, Mode: "1777", Flags: []string{"exec"}},
			"/run/shoal": {MaxSize: 4 << 20, Mode: "0700", Flags: []string{"noexec"}},
		},
		Mounts: []MountRule{
			{Source: object + "-workspace", Target: "/workspace"},
			{Source: object + "-skills", Target: "/skills", ReadOnly: true},
			{Source: object + "-skills", Target: "/opt/shoal/skills"},
		},
		Log: &LogRule{Type: "none"},
	}
	if s.Network != "" {
		rule.Networks = append(rule.Networks, literal(s.Network))
	}
	return rule
}

// literal is s as a template. Names hold no brace; one that did would be no
// template of anything.
func literal(s string) string { return strings.NewReplacer("{", "", "}", "").Replace(s) }

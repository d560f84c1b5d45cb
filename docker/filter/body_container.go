package filter

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Bounds on what a policy with a free environment admits.
const maxEnv = 256

// A createBody is what we understand of a container to be made; the engine gets
// nothing else. Extra holds the keys that it does not name, for checkInert.
type createBody struct {
	Image            string                    `json:"Image"`
	User             string                    `json:"User,omitempty"`
	WorkingDir       string                    `json:"WorkingDir,omitempty"`
	Cmd              []string                  `json:"Cmd,omitempty"`
	Entrypoint       []string                  `json:"Entrypoint,omitempty"`
	StopSignal       string                    `json:"StopSignal,omitempty"`
	Healthcheck      *healthcheck              `json:"Healthcheck,omitzero"`
	Env              []string                  `json:"Env,omitempty"`
	Labels           map[string]string         `json:"Labels,omitempty"`
	HostConfig       *hostConfig               `json:"HostConfig"`
	NetworkingConfig *networkingConfig         `json:"NetworkingConfig,omitzero"`
	Extra            map[string]jsontext.Value `json:",embed"`
}

type healthcheck struct {
	Test []string `json:"Test"`
}

type hostConfig struct {
	Runtime        string                    `json:"Runtime,omitempty"`
	Init           bool                      `json:"Init"`
	NanoCpus       int64                     `json:"NanoCpus"`
	CPUShares      int64                     `json:"CpuShares,omitzero"`
	Memory         int64                     `json:"Memory"`
	MemorySwap     int64                     `json:"MemorySwap"`
	PidsLimit      int64                     `json:"PidsLimit"`
	Ulimits        []ulimit                  `json:"Ulimits,omitempty"`
	ReadonlyRootfs bool                      `json:"ReadonlyRootfs"`
	CapDrop        []string                  `json:"CapDrop"`
	CapAdd         []string                  `json:"CapAdd,omitempty"`
	SecurityOpt    []string                  `json:"SecurityOpt"`
	IpcMode        string                    `json:"IpcMode,omitempty"`
	NetworkMode    string                    `json:"NetworkMode"`
	Tmpfs          map[string]string         `json:"Tmpfs,omitempty"`
	Mounts         []mount                   `json:"Mounts,omitempty"`
	LogConfig      logConfig                 `json:"LogConfig,omitzero"`
	Extra          map[string]jsontext.Value `json:",embed"`
}

type ulimit struct {
	Name string `json:"Name"`
	Soft int64  `json:"Soft"`
	Hard int64  `json:"Hard"`
}

type mount struct {
	Type     string `json:"Type"`
	Source   string `json:"Source"`
	Target   string `json:"Target"`
	ReadOnly bool   `json:"ReadOnly,omitzero"`
}

type logConfig struct {
	Type   string            `json:"Type"`
	Config map[string]string `json:"Config,omitempty"`
}

func (l logConfig) IsZero() bool { return l.Type == "" && len(l.Config) == 0 }

type networkingConfig struct {
	EndpointsConfig map[string]*endpointSettings `json:"EndpointsConfig,omitempty"`
}

// An endpoint takes no settings: aliases and addresses let one sandbox pose as
// another.
type endpointSettings struct{}

// judgeContainer judges the body of a container create and writes it anew.
func judgeContainer(p *Policy, c *Call, body []byte) *Refusal {
	var b createBody
	if r := decodeStrict(body, &b); r != nil {
		return r
	}
	if b.HostConfig == nil {
		return refuse("container.hostconfig", "HostConfig is missing: every default would apply")
	}
	if r := checkInert(b.Extra, p.InertKeys, inertConfig); r != nil {
		return r
	}
	if r := checkInert(b.HostConfig.Extra, p.InertKeys, inertHost); r != nil {
		return r
	}
	role, r := p.judgeObject(c.Name, b.Labels)
	if r != nil {
		return r
	}
	if role.Container == nil {
		return refuse("label.role", "the role is not that of a container")
	}
	if !p.admitsImage(b.Image) {
		return refuse("container.image", "the image is not on the list")
	}
	for _, judge := range []func(*ContainerRule, *createBody) *Refusal{
		judgeProcess, judgeHardening, judgeLimits, judgeNetworking, judgeTmpfs, judgeMounts, judgeLog,
	} {
		if r := judge(role.Container, &b); r != nil {
			return r
		}
	}
	b.Extra, b.HostConfig.Extra = nil, nil
	c.Body, r = encode(b)
	return r
}

func judgeProcess(rule *ContainerRule, b *createBody) *Refusal {
	switch {
	case b.User != rule.User:
		return refuse("container.user", "the user is fixed")
	case b.WorkingDir != rule.WorkingDir:
		return refuse("container.workdir", "the working directory is fixed")
	case !slices.Equal(b.Cmd, rule.Cmd):
		return refuse("container.cmd", "the command is fixed")
	case !slices.Equal(b.Entrypoint, rule.Entrypoint):
		return refuse("container.entrypoint", "the entrypoint is fixed")
	case b.StopSignal != rule.StopSignal:
		return refuse("container.stopsignal", "the stop signal is fixed")
	case !slices.Equal(b.healthcheck(), rule.Healthcheck):
		return refuse("container.healthcheck", "the health check is fixed: it would run as root")
	case len(b.Env) > 0 && !rule.FreeEnv || len(b.Env) > maxEnv:
		return refuse("container.env", "an environment is not admitted here, or it is too long")
	case !slices.Contains(rule.Runtimes, b.HostConfig.Runtime):
		return refuse("container.runtime", "the runtime is not on the list")
	}
	return nil
}

func (b *createBody) healthcheck() []string {
	if b.Healthcheck == nil {
		return nil
	}
	return b.Healthcheck.Test
}

func judgeHardening(rule *ContainerRule, b *createBody) *Refusal {
	h := b.HostConfig
	switch {
	case !h.Init:
		return refuse("container.init", "Init must be true")
	case !h.ReadonlyRootfs:
		return refuse("container.readonly", "ReadonlyRootfs must be true")
	case !slices.Equal(h.CapDrop, []string{"ALL"}):
		return refuse("container.capdrop", "CapDrop must be ALL")
	case !sameSet(h.CapAdd, rule.CapAdd):
		return refuse("container.capadd", "CapAdd must be exactly the policy's")
	// The engine takes the last of several, and 'false', '0', 'F' as values.
	case len(h.SecurityOpt) != 1 || h.SecurityOpt[0] != "no-new-privileges" && h.SecurityOpt[0] != "no-new-privileges:true":
		return refuse("container.securityopt", "SecurityOpt must be no-new-privileges, once and alone")
	case !slices.Contains(rule.IPC, h.IpcMode):
		return refuse("container.ipc", "IpcMode must be the policy's")
	}
	return nil
}

func judgeLimits(rule *ContainerRule, b *createBody) *Refusal {
	h := b.HostConfig
	switch {
	case h.Memory <= 0 || h.Memory > rule.MaxMemory:
		return refuse("container.memory", "Memory must be from 1 to %d", rule.MaxMemory)
	case h.MemorySwap != h.Memory:
		return refuse("container.swap", "MemorySwap must equal Memory")
	case h.NanoCpus <= 0 || h.NanoCpus > rule.MaxNanoCPUs:
		return refuse("container.cpus", "NanoCpus must be from 1 to %d", rule.MaxNanoCPUs)
	case h.PidsLimit <= 0 || h.PidsLimit > rule.MaxPids:
		return refuse("container.pids", "PidsLimit must be from 1 to %d", rule.MaxPids)
	case h.CPUShares < min(1, rule.MaxCPUShares) || h.CPUShares > rule.MaxCPUShares:
		return refuse("container.cpushares", "CpuShares must be from 1 to %d, or absent where that is 0", rule.MaxCPUShares)
	}
	seen := map[string]bool{}
	for _, u := range h.Ulimits {
		highest, ok := rule.Ulimits[u.Name]
		if !ok || seen[u.Name] || u.Soft < 0 || u.Soft > u.Hard || u.Hard > highest {
			return refuse("container.ulimit", "a ulimit is not on the list, doubled or too high")
		}
		seen[u.Name] = true
	}
	return nil
}

func judgeNetworking(rule *ContainerRule, b *createBody) *Refusal {
	if !slices.Contains(expandAll(rule.Networks, b.Labels), b.HostConfig.NetworkMode) {
		return refuse("container.network", "NetworkMode must be one of the policy's; without one the engine joins its default bridge")
	}
	var endpoints []string
	if b.NetworkingConfig != nil {
		for name, settings := range b.NetworkingConfig.EndpointsConfig {
			if settings == nil {
				return refuse("container.endpoints", "an endpoint must be {}")
			}
			endpoints = append(endpoints, name)
		}
	}
	if !sameSet(endpoints, expandAll(rule.Endpoints, b.Labels)) {
		return refuse("container.endpoints", "the endpoints must be exactly the policy's")
	}
	return nil
}

func judgeMounts(rule *ContainerRule, b *createBody) *Refusal {
	want := make([]mount, 0, len(rule.Mounts))
	for _, m := range rule.Mounts {
		want = append(want, mount{"volume", expand(m.Source, b.Labels), m.Target, m.ReadOnly})
	}
	if len(b.HostConfig.Mounts) != len(want) {
		return refuse("container.mounts", "the mounts must be exactly those of the sandbox")
	}
	for _, m := range b.HostConfig.Mounts {
		i := slices.Index(want, m)
		if i < 0 {
			return refuse("container.mounts", "a mount is not one of the sandbox's own volumes at its place")
		}
		want = slices.Delete(want, i, i+1)
	}
	return nil
}

func judgeLog(rule *ContainerRule, b *createBody) *Refusal {
	want := logConfig{}
	if rule.Log != nil {
		want = logConfig{rule.Log.Type, rule.Log.Config}
	}
	if !equalLog(b.HostConfig.LogConfig, want) {
		return refuse("container.log", "LogConfig must be the policy's: log drivers make the engine connect and write")
	}
	return nil
}

func expandAll(templates []string, labels map[string]string) []string {
	out := make([]string, 0, len(templates))
	for _, t := range templates {
		out = append(out, expand(t, labels))
	}
	return out
}

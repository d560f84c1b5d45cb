package filter

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
)

// An EngineState is what an engine says of itself, as far as the safety of a
// sandbox depends on it.
type EngineState struct {
	Version    string // of the engine
	API        string // the newest API version it speaks
	MinAPI     string // the oldest
	Containerd string
	Runc       string
	Kernel     string
	System     string
	Storage    string   // storage driver
	Filesystem string   // below the storage driver
	Runtimes   []string // sorted
	Runtime    string   // the default one
	Cgroup     string   // "1" or "2"
	Logging    string   // default log driver
	Seccomp    string   // profile, "" when there is none
	AppArmor   bool
	SELinux    bool
	UserNS     bool // user-namespace remapping
	Rootless   bool
	Missing    []string // limits that the kernel does not enforce: memory, swap, pids, cpu
}

// ReadEngine asks an engine for its state. It uses calls that no policy admits,
// so dial must reach the engine itself, not a filter.
func ReadEngine(ctx context.Context, dial func(context.Context) (net.Conn, error)) (*EngineState, error) {
	f := &Filter{transport: newTransport(dial)}
	defer f.transport.CloseIdleConnections()
	var version struct {
		Version       string
		APIVersion    string `json:"ApiVersion"`
		MinAPIVersion string
		Components    []struct{ Name, Version string }
	}
	if status, err := f.getJSON(ctx, "/version", &version); err != nil || status != 200 {
		return nil, fmt.Errorf("ask the engine for its version: status %d: %w", status, err)
	}
	var info engineInfo
	if status, err := f.getJSON(ctx, "/info", &info); err != nil || status != 200 {
		return nil, fmt.Errorf("ask the engine for its state: status %d: %w", status, err)
	}
	s := info.state()
	s.Version, s.API, s.MinAPI = version.Version, version.APIVersion, version.MinAPIVersion
	for _, c := range version.Components {
		switch c.Name {
		case "containerd":
			s.Containerd = c.Version
		case "runc":
			s.Runc = c.Version
		}
	}
	return s, nil
}

type engineInfo struct {
	Driver          string
	DriverStatus    [][2]string
	KernelVersion   string
	OperatingSystem string
	CgroupVersion   string
	LoggingDriver   string
	DefaultRuntime  string
	Runtimes        map[string]struct{}
	SecurityOptions []string
	MemoryLimit     bool
	SwapLimit       bool
	PidsLimit       bool
	CPUCfsQuota     bool `json:"CpuCfsQuota"`
}

func (i *engineInfo) state() *EngineState {
	s := &EngineState{
		Kernel: i.KernelVersion, System: i.OperatingSystem, Storage: i.Driver, Cgroup: i.CgroupVersion,
		Logging: i.LoggingDriver, Runtime: i.DefaultRuntime,
	}
	for name := range i.Runtimes {
		s.Runtimes = append(s.Runtimes, name)
	}
	slices.Sort(s.Runtimes)
	for _, kv := range i.DriverStatus {
		if kv[0] == "Backing Filesystem" {
			s.Filesystem = kv[1]
		}
	}
	// Measured on Engine 20.10: "name=seccomp,profile=default", "name=apparmor".
	for _, option := range i.SecurityOptions {
		name, rest, _ := strings.Cut(strings.TrimPrefix(option, "name="), ",")
		switch name {
		case "seccomp":
			s.Seccomp = strings.TrimPrefix(rest, "profile=")
		case "apparmor":
			s.AppArmor = true
		case "selinux":
			s.SELinux = true
		case "userns":
			s.UserNS = true
		case "rootless":
			s.Rootless = true
		}
	}
	for _, limit := range []struct {
		name string
		ok   bool
	}{{"memory", i.MemoryLimit}, {"swap", i.SwapLimit}, {"pids", i.PidsLimit}, {"cpu", i.CPUCfsQuota}} {
		if !limit.ok {
			s.Missing = append(s.Missing, limit.name)
		}
	}
	return s
}

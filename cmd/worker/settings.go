package main

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"shoal/docker"
	"shoal/egress"
	"shoal/fleet"
	"shoal/sandbox"
)

// settings are the worker's flags; each falls back to SHOAL_<NAME> in the
// environment.
type settings struct {
	LogLevel slog.Level `default:"info" help:"debug, info, warn or error."`
	StateDir string     `default:"${state}" help:"Where the embedded NATS server keeps its data and its credentials file."`
	HTTPAddr string     `default:"" help:"Address for /healthz and /readyz, such as 127.0.0.1:8480; empty = none."`

	NATSURL     string        `name:"nats-url" help:"NATS servers, comma-separated; empty = start one in this process."`
	NATSPort    int           `name:"nats-port" default:"-1" help:"Loopback port of the embedded server; -1 = any free one."`
	NATSCreds   string        `name:"nats-creds" type:"existingfile" help:"Credentials file for NATS."`
	NATSNKey    string        `name:"nats-nkey" type:"existingfile" help:"NKey seed file for NATS."`
	NATSCA      string        `name:"nats-ca" type:"existingfile" help:"CA certificate of the NATS servers."`
	Replicas    int           `default:"1" help:"Replicas of the records: 1 on one machine, 3 in a cluster."`
	PresenceTTL time.Duration `name:"presence-ttl" help:"Life of a worker's presence without renewal, whole seconds (default 10s, 30s with replicas)."`
	AnyReply    bool          `name:"any-reply" help:"Answer to any reply subject although the NATS servers authenticate; only for a deployment of one tenant."`

	Provider        string `default:"docker" enum:"docker,e2b" help:"What holds the sandboxes: docker or e2b."`
	E2BSettings     string `name:"e2b-settings" env:"SHOAL_E2B_SETTINGS" type:"existingfile" help:"JSON file with the settings of the E2B provider (see docs/e2b.md); it holds the key, so 0600."`
	Fleet           string `default:"main" help:"Name of the fleet; it is in every object's labels, and only its own objects are touched."`
	DockerEndpoint  string `name:"docker-endpoint" default:"${endpoint}" help:"The Docker engine, or the filter in front of it: unix:// or tcp://."`
	Runtime         string `default:"runc" enum:"runc,runsc" help:"Container runtime: runc or runsc (gVisor)."`
	Network         string `help:"Bridge for sandboxes with open egress, made by the operator with inter-container traffic off."`
	VolumeDriver    string `name:"volume-driver" help:"Volume driver that takes the option size; otherwise diskMb is not enforced."`
	AllowOpenEgress bool   `name:"allow-open-egress" help:"Let requests ask for egress mode open."`
	Image           string `default:"${image}" help:"Image of sandboxes that name none."`

	CPU         float64 `default:"1" help:"Default cores of a sandbox."`
	MemoryMB    int     `name:"memory-mb" default:"2048" help:"Default memory of a sandbox in MiB."`
	DiskMB      int     `name:"disk-mb" default:"2048" help:"Default disk of a sandbox in MiB."`
	Pids        int     `default:"512" help:"Default number of processes and threads of a sandbox."`
	MaxCPU      float64 `name:"max-cpu" default:"4" help:"Most cores a request may ask for."`
	MaxMemoryMB int     `name:"max-memory-mb" default:"8192" help:"Most memory a request may ask for in MiB."`
	MaxDiskMB   int     `name:"max-disk-mb" default:"8192" help:"Most disk a request may ask for in MiB."`
	MaxPids     int     `name:"max-pids" default:"4096" help:"Most processes a request may ask for."`

	Egress        string         `default:"none" enum:"none,allowlist,open" help:"Egress of requests that name none."`
	EgressHost    []string       `name:"egress-host" help:"Hosts of the default allowlist: example.com or *.example.com, optionally :port."`
	EgressCeiling string         `name:"egress-ceiling" default:"allowlist" enum:"none,allowlist,open" help:"Widest egress a request may ask for."`
	EgressDeny    []netip.Prefix `name:"egress-deny" help:"Address prefixes that are refused beside what is not public."`
	SNIExempt     []string       `name:"sni-exempt" help:"Hosts whose tunnels to 443 need no matching TLS server name."`

	DetachAfter  time.Duration `name:"detach-after" default:"60s" help:"Let go of an idle sandbox's stream after this time."`
	PauseAfter   time.Duration `name:"pause-after" default:"0s" help:"Suspend an idle sandbox with its memory after this time; 0 = never."`
	StopAfter    time.Duration `name:"stop-after" default:"0s" help:"Suspend an idle sandbox without its memory after this time; 0 = never."`
	DestroyAfter time.Duration `name:"destroy-after" default:"0s" help:"Destroy an idle sandbox after this time; 0 = never."`
	SweepEvery   time.Duration `name:"sweep-every" default:"30s" help:"Period of the sweep."`
	SweepGrace   time.Duration `name:"sweep-grace" default:"10m" help:"Age from which a leftover is removed."`
	Drain        time.Duration `default:"20s" help:"Time to hand over on SIGTERM."`

	CapacityCPU      float64 `name:"capacity-cpu" help:"Cores that the engine's sandboxes may take together; 0 = no bound."`
	CapacityMemoryMB int     `name:"capacity-memory-mb" help:"Memory that the engine's sandboxes may take together in MiB; 0 = no bound."`

	Warm int `default:"0" help:"Sandboxes with the default image and limits that this worker keeps made ahead (Docker only; behind dockerfilter set its --warm-pool)."`

	QuotaSandboxes int     `name:"quota-sandboxes" help:"Most sandboxes of a tenant; 0 = no bound."`
	QuotaCPU       float64 `name:"quota-cpu" help:"Most cores of a tenant's sandboxes together; 0 = no bound."`
	QuotaMemoryMB  int     `name:"quota-memory-mb" help:"Most memory of a tenant's sandboxes together in MiB; 0 = no bound."`
}

// defaultStateDir is /var/lib/shoal for root, otherwise below the user's home.
func defaultStateDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/shoal"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "shoal")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "shoal-state"
	}
	return filepath.Join(home, ".local", "state", "shoal")
}

func (s *settings) docker(log *slog.Logger) docker.Config {
	return docker.Config{
		Fleet: s.Fleet, Endpoint: s.DockerEndpoint, Image: s.Image, Runtime: s.Runtime,
		AllowOpenEgress: s.AllowOpenEgress, Network: s.Network, VolumeDriver: s.VolumeDriver, Logger: log,
	}
}

// fleet returns the part of the fleet's configuration that is settings alone.
func (s *settings) fleet() fleet.Config {
	c := fleet.Config{
		Version: version, Image: s.Image,
		Limits:      sandbox.Limits{CPU: s.CPU, MemoryMB: s.MemoryMB, DiskMB: s.DiskMB, Pids: s.Pids},
		MaxLimits:   sandbox.Limits{CPU: s.MaxCPU, MemoryMB: s.MaxMemoryMB, DiskMB: s.MaxDiskMB, Pids: s.MaxPids},
		Egress:      sandbox.Egress{Mode: sandbox.EgressMode(s.Egress), Hosts: s.EgressHost},
		Ceiling:     sandbox.EgressMode(s.EgressCeiling),
		Policy:      egress.PolicyOptions{SNIExempt: s.SNIExempt},
		DetachAfter: s.DetachAfter, PauseAfter: s.PauseAfter, StopAfter: s.StopAfter, DestroyAfter: s.DestroyAfter,
		SweepEvery: s.SweepEvery, SweepGrace: s.SweepGrace, DrainFor: s.Drain,
		Warm:     s.Warm,
		Capacity: sandbox.Limits{CPU: s.CapacityCPU, MemoryMB: s.CapacityMemoryMB},
	}
	if s.Provider == "e2b" {
		c.Image = "" // the template is the image
	}
	if s.AllowOpenEgress {
		c.Ceiling = sandbox.EgressOpen
	}
	if s.QuotaSandboxes > 0 || s.QuotaCPU > 0 || s.QuotaMemoryMB > 0 {
		c.Quota = &fleet.Quota{Sandboxes: s.QuotaSandboxes, CPU: s.QuotaCPU, MemoryMB: s.QuotaMemoryMB}
	}
	return c
}

// Validate is called by kong after parsing.
func (s *settings) Validate() error {
	if s.EgressCeiling == string(sandbox.EgressOpen) && !s.AllowOpenEgress {
		return errors.New("--egress-ceiling open needs --allow-open-egress")
	}
	if (s.Provider == "e2b") != (s.E2BSettings != "") {
		return errors.New("--provider e2b and --e2b-settings go together")
	}
	if s.NATSURL != "" && s.NATSPort != -1 {
		return errors.New("--nats-port is the embedded server's; it excludes --nats-url")
	}
	return nil
}

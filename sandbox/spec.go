package sandbox

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Spec describes a sandbox to create.
type Spec struct {
	Tenant Tenant `json:"tenant"`
	Name   Name   `json:"name"`
	// Generation is given by the fleet, fresh at every create; it is part of
	// every engine object's name, so that a late call cannot hit a successor.
	Generation string `json:"generation"`
	// Bucket is the random id of the KV bucket that knows the sandbox; objects
	// carry it as a label, so that a sweep tells leftovers from foreign ones.
	Bucket string `json:"bucket,omitempty"`
	// Image is a reference the engine knows or can pull; "" is the deployment's
	// default. It must carry the label shoal.agent.
	Image  string `json:"image,omitempty"`
	Limits Limits `json:"limits"`
	Egress Egress `json:"egress"`
	// Env is set for every command of the sandbox. It never enters an engine
	// request, a label or the KV: the agent carries it.
	Env map[string]string `json:"env,omitempty"`
	// Metadata is the kernel's own; it can be filtered by in list.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Setup runs once, in order, before the sandbox is handed out; the first
	// failure destroys it.
	Setup []Setup `json:"setup,omitempty"`
	// TTL destroys the sandbox after this time, whatever it does; 0 = never.
	TTL Milliseconds `json:"ttlMs,omitempty"`
	// Pin keeps it from idle suspension and destruction.
	Pin bool `json:"pin,omitempty"`
}

// Setup is a command that prepares a new sandbox.
type Setup struct {
	// Shell is run by bash -c as the sandbox user in /workspace.
	Shell string `json:"shell"`
	// Timeout bounds it; 0 = the default of a foreground command.
	Timeout Milliseconds `json:"timeoutMs,omitempty"`
	// Egress, when set, is the list that holds for this command alone.
	Egress *Egress `json:"egress,omitempty"`
}

// Limits bounds a sandbox. Zero means the deployment's default.
type Limits struct {
	// CPU in cores, 0.1 to the deployment's maximum (default 1, most 4).
	CPU float64 `json:"cpu,omitempty"`
	// MemoryMB in MiB, swap included, 128 to the maximum (2048, 8192).
	MemoryMB int `json:"memoryMb,omitempty"`
	// DiskMB in MiB (2048, 8192); enforced only where [Capabilities] says so.
	DiskMB int `json:"diskMb,omitempty"`
	// Pids is the number of processes and threads (512, 4096), 128 at least: the
	// agent and its parked threads take about 60 of them.
	Pids int `json:"pids,omitempty"`
}

// The least values of [Limits].
const (
	MinCPU      = 0.1
	MinMemoryMB = 128
	MinDiskMB   = 16
	MinPids     = 128
)

// DefaultLimits returns what a sandbox gets when neither the request nor the
// deployment says otherwise.
func DefaultLimits() Limits { return Limits{CPU: 1, MemoryMB: 2048, DiskMB: 2048, Pids: 512} }

// DefaultMaxLimits returns the most a request may ask for unless the
// deployment says otherwise.
func DefaultMaxLimits() Limits { return Limits{CPU: 4, MemoryMB: 8192, DiskMB: 8192, Pids: 4096} }

// Or returns l with its zero fields taken from def.
func (l Limits) Or(def Limits) Limits {
	if l.CPU == 0 {
		l.CPU = def.CPU
	}
	if l.MemoryMB == 0 {
		l.MemoryMB = def.MemoryMB
	}
	if l.DiskMB == 0 {
		l.DiskMB = def.DiskMB
	}
	if l.Pids == 0 {
		l.Pids = def.Pids
	}
	return l
}

// Validate reports whether every limit lies between the least value and most.
func (l Limits) Validate(most Limits) error {
	if !(l.CPU >= MinCPU && l.CPU <= most.CPU) { // written so that NaN fails
		return InvalidField("limits.cpu", "%g cores; allowed are %g to %g", l.CPU, MinCPU, most.CPU)
	}
	for _, f := range []struct {
		field             string
		value, least, max int
	}{
		{"limits.memoryMb", l.MemoryMB, MinMemoryMB, most.MemoryMB},
		{"limits.diskMb", l.DiskMB, MinDiskMB, most.DiskMB},
		{"limits.pids", l.Pids, MinPids, most.Pids},
	} {
		if f.value < f.least || f.value > f.max {
			return InvalidField(f.field, "%d; allowed are %d to %d", f.value, f.least, f.max)
		}
	}
	return nil
}

// EgressMode says what a sandbox may reach.
type EgressMode string

// The egress modes, from the narrowest to the widest.
const (
	EgressNone      EgressMode = "none"      // nothing
	EgressAllowlist EgressMode = "allowlist" // the listed hosts, through the proxy
	EgressOpen      EgressMode = "open"      // everything; only where the deployment allows it
)

// Egress is a sandbox's network policy. An empty allowlist is the same as none.
type Egress struct {
	// Mode; "" means the deployment's default.
	Mode EgressMode `json:"mode,omitempty"`
	// Hosts are example.com, *.example.com (not the apex), each with an
	// optional :port (80 and 443 otherwise). Package egress judges them.
	Hosts []string `json:"hosts,omitempty"`
}

const (
	maxHosts     = 1024
	maxHostEntry = 260
)

// Validate checks the mode and the shape of the list; the meaning of a host
// entry is judged by package egress.
func (e Egress) Validate() error {
	switch e.Mode {
	case "", EgressNone, EgressAllowlist, EgressOpen:
	default:
		return InvalidField("egress.mode", "%s; use none, allowlist or open", quote(string(e.Mode)))
	}
	if len(e.Hosts) > 0 && e.Mode != EgressAllowlist {
		return InvalidField("egress.hosts", "a list of hosts needs the mode allowlist")
	}
	if len(e.Hosts) > maxHosts {
		return InvalidField("egress.hosts", "%d entries, at most %d are allowed", len(e.Hosts), maxHosts)
	}
	for _, h := range e.Hosts {
		if h == "" || len(h) > maxHostEntry || !all(h, isPrintASCII) {
			return InvalidField("egress.hosts", "%s is not a host: ASCII only, write international names in punycode", quote(h))
		}
	}
	return nil
}

// Wider reports whether mode m lets out more than ceiling allows. An unknown
// mode always does, and an unknown ceiling allows nothing.
func (m EgressMode) Wider(ceiling EgressMode) bool {
	order := []EgressMode{EgressNone, EgressAllowlist, EgressOpen}
	i := slices.Index(order, m)
	return i < 0 || i > slices.Index(order, ceiling)
}

// MaxTTL is the longest ttl of a sandbox.
const MaxTTL = 365 * 24 * time.Hour

const (
	maxEnv           = 256
	maxEnvBytes      = 64 << 10
	maxMetadata      = 64
	maxMetadataKey   = 64
	maxMetadataValue = 1024
	maxSetup         = 16
	maxImage         = 512
)

// Validate checks everything of s but its limits' upper bounds, which are the
// deployment's: see [Limits.Validate].
func (s *Spec) Validate() error {
	if err := s.Tenant.ValidateAny(); err != nil {
		return err
	}
	if err := s.Name.Validate(); err != nil {
		return err
	}
	if err := ValidateID("generation", s.Generation); err != nil {
		return err
	}
	if s.Bucket != "" {
		if err := ValidateID("bucket", s.Bucket); err != nil {
			return err
		}
	}
	return s.ValidateRequest()
}

// ValidateRequest checks the part of s that a kernel writes.
func (s *Spec) ValidateRequest() error {
	if len(s.Image) > maxImage || !all(s.Image, isImageByte) {
		return InvalidField("image", "%s is not an image reference", quote(s.Image))
	}
	if err := s.Egress.Validate(); err != nil {
		return err
	}
	if err := ValidateEnv(s.Env); err != nil {
		return err
	}
	if err := ValidateMetadata(s.Metadata); err != nil {
		return err
	}
	if s.TTL < 0 || s.TTL > Millis(MaxTTL) {
		return InvalidField("ttlMs", "%d; allowed are 0 to %d", s.TTL, Millis(MaxTTL))
	}
	if len(s.Setup) > maxSetup {
		return InvalidField("setup", "%d commands, at most %d are allowed", len(s.Setup), maxSetup)
	}
	for _, c := range s.Setup {
		if err := c.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (c Setup) validate() error {
	if err := validateShell("setup.shell", c.Shell); err != nil {
		return err
	}
	if err := validateTimeout("setup.timeoutMs", c.Timeout, MaxForeground); err != nil {
		return err
	}
	if c.Egress == nil {
		return nil
	}
	err := c.Egress.Validate()
	if err == nil {
		return nil
	}
	return renameField(err, "setup."+AsError(err).Field)
}

// renameField puts the name of the request's field into an Invalid error.
func renameField(err error, field string) error {
	if err == nil {
		return nil
	}
	e := *AsError(err)
	e.Field = field
	return &e
}

// ValidateEnv checks names, values (no NUL) and total size of an environment.
func ValidateEnv(env map[string]string) error {
	if len(env) > maxEnv {
		return InvalidField("env", "%d variables, at most %d are allowed", len(env), maxEnv)
	}
	total := 0
	for k, v := range env {
		if err := ValidateEnvKey(k); err != nil {
			return err
		}
		if strings.IndexByte(v, 0) >= 0 {
			return InvalidField("env", "the value of %s holds a NUL byte", k)
		}
		total += len(k) + len(v) + 2
	}
	if total > maxEnvBytes {
		return InvalidField("env", "%d bytes in all, at most %d are allowed", total, maxEnvBytes)
	}
	return nil
}

// ValidateMetadata checks the bounds of a sandbox's metadata: at most 64 keys
// of at most 64 letters, digits, '_', '-', and printable values of at most
// 1024 bytes of UTF-8.
func ValidateMetadata(m map[string]string) error {
	if len(m) > maxMetadata {
		return InvalidField("metadata", "%d keys, at most %d are allowed", len(m), maxMetadata)
	}
	for k, v := range m {
		if k == "" || len(k) > maxMetadataKey || !all(k, isNameByte) {
			return InvalidField("metadata", "key %s: use 1 to %d letters, digits, '_', '.', '-'", quote(k), maxMetadataKey)
		}
		if len(v) > maxMetadataValue || !utf8.ValidString(v) || strings.IndexByte(v, 0) >= 0 {
			return InvalidField("metadata", "the value of %s is longer than %d bytes or not text", k, maxMetadataValue)
		}
	}
	return nil
}

func isPrintASCII(c byte) bool { return c > ' ' && c < 0x7f }

func isImageByte(c byte) bool {
	return isAlnum(c) || strings.IndexByte("._-/:@", c) >= 0
}

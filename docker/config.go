package docker

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/url"
	"runtime"
	"strings"

	sandboximage "shoal/image"
	"shoal/sandbox"
)

// The defaults of [Config].
const (
	DefaultFleet    = "main"
	DefaultEndpoint = "unix:///var/run/docker.sock"
	DefaultPrefix   = "shoal-"
	DefaultImage    = sandboximage.Default
	DefaultRuntime  = RuntimeRunc
)

// The runtimes.
const (
	RuntimeRunc  = "runc"
	RuntimeRunsc = "runsc" // gVisor
)

// Config holds the settings of a [Provider]. The zero value is usable.
type Config struct {
	// Fleet is written into every object's labels; a provider sees and removes
	// only its own fleet's objects. Defaults to "main".
	Fleet string
	// Endpoint of the engine or of its filter: unix:///path or tcp://host:port.
	// Defaults to unix:///var/run/docker.sock.
	Endpoint string
	// TLS for a tcp endpoint; nil sends in the clear.
	TLS *tls.Config
	// Prefix begins every object's name. One character must not be a hex digit,
	// since the engine takes a name of hex digits for the beginning of an id.
	// Defaults to "shoal-".
	Prefix string
	// Image for specs that name none. Defaults to shoal-sandbox:dev.
	Image string
	// Runtime is runc or runsc. Defaults to runc.
	Runtime string
	// AllowOpenEgress lets sandboxes with egress "open" join Network, a bridge
	// made by the operator with inter-container traffic off.
	AllowOpenEgress bool
	Network         string
	// VolumeDriver makes the workspace volume and takes the option size; ""
	// is the engine's local driver, which enforces no size.
	VolumeDriver string
	// Starts bounds the container starts at one time; more only wait longer.
	// Defaults to two per core of this machine.
	Starts int
	// Logger defaults to discarding.
	Logger *slog.Logger
}

// withDefaults returns c completed and checked; the error names the field.
func (c Config) withDefaults() (Config, error) {
	for field, def := range map[*string]string{
		&c.Fleet: DefaultFleet, &c.Endpoint: DefaultEndpoint, &c.Prefix: DefaultPrefix,
		&c.Image: DefaultImage, &c.Runtime: DefaultRuntime,
	} {
		if *field == "" {
			*field = def
		}
	}
	if c.Starts == 0 {
		c.Starts = 2 * runtime.NumCPU()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, c.validate()
}

func (c Config) validate() error {
	if err := sandbox.ValidateID("fleet", c.Fleet); err != nil {
		return err
	}
	if err := validatePrefix(c.Prefix); err != nil {
		return err
	}
	if _, _, err := splitEndpoint(c.Endpoint); err != nil {
		return err
	}
	if _, err := normalImage(c.Image); err != nil {
		return err
	}
	if c.Runtime != RuntimeRunc && c.Runtime != RuntimeRunsc {
		return sandbox.InvalidField("runtime", "%q; use runc or runsc", c.Runtime)
	}
	if c.AllowOpenEgress != (c.Network != "") {
		return sandbox.InvalidField("network", "--allow-open-egress and --network need each other")
	}
	for field, name := range map[string]string{"network": c.Network, "volumeDriver": c.VolumeDriver} {
		if name != "" && !isObjectName(name) {
			return sandbox.InvalidField(field, "%q is not a name of the engine's", name)
		}
	}
	switch c.Network {
	case "host", "bridge", "default", "none":
		return sandbox.InvalidField("network", "%q is built in; make a bridge with inter-container traffic off: "+
			"docker network create -o com.docker.network.bridge.enable_icc=false NAME", c.Network)
	}
	if c.Starts < 1 {
		return sandbox.InvalidField("starts", "%d; at least 1", c.Starts)
	}
	return nil
}

func validatePrefix(p string) error {
	if !isObjectName(p+"x") || len(p) > 32 {
		return sandbox.InvalidField("prefix", "%q; use up to 32 letters, digits, '_', '.', '-'", p)
	}
	if strings.Trim(strings.ToLower(p), "0123456789abcdef") == "" {
		return sandbox.InvalidField("prefix", "%q could be the beginning of an id; one character must not be a hex digit", p)
	}
	return nil
}

// splitEndpoint returns the network and the address to dial.
func splitEndpoint(endpoint string) (network, address string, err error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
	case u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/"):
		return "unix", u.Path, nil
	case u.Scheme == "tcp" && u.Port() != "" && (u.Path == "" || u.Path == "/"):
		return "tcp", u.Host, nil
	}
	return "", "", sandbox.InvalidField("endpoint", "%q; use unix:///path/to/docker.sock or tcp://host:port", endpoint).
		Wrap(fmt.Errorf("parse endpoint: %w", err))
}

// isObjectName reports whether s may name a container, volume or network:
// [a-zA-Z0-9][a-zA-Z0-9_.-]+, as the engine demands.
func isObjectName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !alnum && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return len(s) >= 2 && len(s) <= 255
}

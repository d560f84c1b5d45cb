package e2b

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
)

// The ways egress leaves an E2B sandbox.
const (
	// EgressNative lets E2B's own firewall judge.
	EgressNative = "native"
	// EgressTunnel carries egress over the agent's stream, with E2B's own
	// internet off.
	EgressTunnel = "tunnel"
)

// Defaults and bounds of [Config].
const (
	DefaultDomain         = "e2b.app"
	DefaultTimeoutSeconds = 3600
	MinTimeoutSeconds     = 60
	MaxTimeoutSeconds     = 86400
)

// Config holds the settings of the provider. [New] validates all of it.
type Config struct {
	// APIKey is the account's key; it begins with "e2b_". Required.
	APIKey Secret `json:"apiKey"`
	// Template is the id or name of a template built from the sandbox image
	// (see [Template]). Required.
	Template string `json:"template"`
	// Domain is the account's domain, or the address of a self-hosted proxy.
	// Defaults to [DefaultDomain].
	Domain string `json:"domain,omitempty"`
	// APIURL is the control plane's address. Plain http is accepted for loopback
	// and private addresses only. Defaults to "https://api." and the domain.
	APIURL string `json:"apiURL,omitempty"`
	// TimeoutSeconds is how long a sandbox runs without anybody pushing its end
	// back; then E2B pauses it. Defaults to [DefaultTimeoutSeconds].
	TimeoutSeconds int `json:"timeoutSeconds,omitempty"`
	// DomainAllowlist says that this E2B can judge egress by domain. Without it
	// native egress "allowlist" becomes "none", with a warning.
	DomainAllowlist bool `json:"domainAllowlist,omitempty"`
	// AllowOpenEgress permits sandboxes with the egress mode "open".
	AllowOpenEgress bool `json:"allowOpenEgress,omitempty"`
	// Egress is [EgressNative] or [EgressTunnel]. Defaults to [EgressTunnel].
	Egress string `json:"egress,omitempty"`
	// Fleet names the fleet; it is written into every sandbox's metadata, and
	// [Provider.List] sees this fleet's only. Defaults to "main".
	Fleet string `json:"fleet,omitempty"`
	// Log receives warnings and retries. Defaults to none.
	Log *slog.Logger `json:"-"`
}

// maxSettings bounds the settings text in bytes.
const maxSettings = 64 << 10

// ParseConfig reads settings in JSON. Unknown keys, trailing data and wrong
// types are errors; values are judged by [New].
func ParseConfig(r io.Reader) (Config, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSettings+1))
	if err != nil {
		return Config{}, fmt.Errorf("e2b settings: %w", err)
	}
	if len(data) > maxSettings {
		return Config{}, fmt.Errorf("e2b settings: more than %d bytes", maxSettings)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var c Config
	if err := dec.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("e2b settings: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("e2b settings: more than one JSON value")
	}
	return c, nil
}

var (
	keyPattern      = regexp.MustCompile(`^e2b_[A-Za-z0-9_-]{1,200}$`)
	templatePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,127}(/[a-z0-9][a-z0-9_-]{0,127})?(:[A-Za-z0-9_.-]{1,128})?$`)
	wordPattern     = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	domainPattern   = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(:[0-9]{1,5})?$`)
)

// withDefaults fills what may be left out.
func (c Config) withDefaults() Config {
	if c.Domain == "" {
		c.Domain = DefaultDomain
	}
	if c.APIURL == "" {
		c.APIURL = "https://api." + c.Domain
	}
	if c.TimeoutSeconds == 0 {
		c.TimeoutSeconds = DefaultTimeoutSeconds
	}
	if c.Egress == "" {
		c.Egress = EgressTunnel
	}
	if c.Fleet == "" {
		c.Fleet = "main"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// validate names the first field that is wrong. The key's value never shows.
func (c Config) validate() error {
	switch {
	case !keyPattern.MatchString(c.APIKey.Reveal()):
		return errors.New(`e2b settings: apiKey: must begin with "e2b_" and hold only letters, digits, _ and -`)
	case !templatePattern.MatchString(c.Template):
		return fmt.Errorf("e2b settings: template: %q is no template id or name; build one with `shoal e2b template`", c.Template)
	case !domainPattern.MatchString(c.Domain):
		return fmt.Errorf("e2b settings: domain: %q is no host name (lower case, with an optional port)", c.Domain)
	case c.TimeoutSeconds < MinTimeoutSeconds || c.TimeoutSeconds > MaxTimeoutSeconds:
		return fmt.Errorf("e2b settings: timeoutSeconds: %d is not within %d and %d", c.TimeoutSeconds, MinTimeoutSeconds, MaxTimeoutSeconds)
	case c.Egress != EgressNative && c.Egress != EgressTunnel:
		return fmt.Errorf("e2b settings: egress: %q is neither %q nor %q", c.Egress, EgressNative, EgressTunnel)
	case c.DomainAllowlist && c.Egress == EgressTunnel:
		return errors.New("e2b settings: domainAllowlist: has no meaning with egress \"tunnel\"; leave it out or set egress to \"native\"")
	case c.AllowOpenEgress && c.Egress == EgressTunnel:
		return errors.New("e2b settings: allowOpenEgress: with egress \"tunnel\" E2B's own internet is off; set egress to \"native\"")
	case !wordPattern.MatchString(c.Fleet):
		return fmt.Errorf("e2b settings: fleet: %q must be 1 to 64 of letters, digits, _ . and -", c.Fleet)
	}
	return validateURL(c.APIURL)
}

func validateURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return errors.New("e2b settings: apiURL: must be an address such as https://api.example.com")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return errors.New("e2b settings: apiURL: must have neither user, path, query nor fragment")
	case u.Scheme == "https", u.Scheme == "http" && localHost(u.Hostname()):
		return nil
	default:
		return errors.New("e2b settings: apiURL: must be https; http is for loopback and private addresses only, as the key would travel in clear")
	}
}

// localHost reports an address that plain http may be spoken to.
func localHost(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && (addr.IsLoopback() || addr.IsPrivate())
}

// hostOnly cuts an optional port off.
func hostOnly(domain string) string {
	if host, _, err := net.SplitHostPort(domain); err == nil {
		return host
	}
	return domain
}

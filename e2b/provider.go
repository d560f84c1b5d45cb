package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"shoal/sandbox"
)

// Kind is the provider's name in handles.
const Kind = "e2b"

// The keys of a sandbox's metadata. Nothing that a caller may write freely is
// among them: environment and metadata of the kernel stay with the agent.
const (
	metaFleet      = "shoal-fleet"
	metaTenant     = "shoal-tenant"
	metaName       = "shoal-name"
	metaGeneration = "shoal-generation"
	metaBucket     = "shoal-bucket"
	metaCreate     = "shoal-create" // a fresh id per request, to find what a lost answer left
)

// The programs inside the image.
const (
	agentProgram  = "/opt/shoal/bin/agent"
	attachProgram = "/opt/shoal/bin/attach"
	agentSocket   = "/run/shoal/agent.sock"
)

// startAgent starts the agent unless it runs: the lock is the agent's for as
// long as it lives. After a boot from disk nothing else does, as the template's
// start command lives on in memory only.
const startAgent = "mkdir -p -m 0700 /run/shoal && setsid -f flock -n /run/shoal/serve.lock " +
	agentProgram + " serve </dev/null >/dev/null 2>&1"

// maxReach bounds what is remembered of sandboxes.
const maxReach = 4096

// Provider runs sandboxes on one E2B account. It is safe for concurrent use.
type Provider struct {
	cfg    Config
	api    *client
	inside *http.Client // to envd
	log    *slog.Logger
	attach process

	wakes singleflight.Group // by sandbox id

	mu    sync.Mutex
	reach map[string]reach // by sandbox id
	// stopped are the sandboxes that this worker paused without their memory,
	// with the time that E2B noted: another pause has another time.
	stopped map[string]time.Time
	checked bool // the template has an agent
}

// reach is how envd of a sandbox is reached. Tokens are stable for an id.
type reach struct {
	token  Secret
	domain string
}

var (
	_ sandbox.Provider     = (*Provider)(nil)
	_ sandbox.EgressSetter = (*Provider)(nil)
)

// New checks the settings. It contacts nothing.
func New(cfg Config) (*Provider, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Provider{
		cfg:    cfg,
		api:    &client{base: strings.TrimRight(cfg.APIURL, "/"), key: cfg.APIKey, http: newHTTP(newTransport()), log: cfg.Log, backoff: baseBackoff},
		inside: newHTTP(newTransport()),
		log:    cfg.Log,
		attach: process{Cmd: "/bin/sh", Args: []string{"-c", startAgent + "; exec " + attachProgram + " " + agentSocket}, Cwd: "/"},
		reach:  map[string]reach{}, stopped: map[string]time.Time{},
	}, nil
}

// Kind implements [sandbox.Provider].
func (p *Provider) Kind() string { return Kind }

// EngineID implements [sandbox.Provider]: the account's address with the
// template stands for the engine.
func (p *Provider) EngineID(context.Context) (string, error) {
	sum := sha256.Sum256([]byte(p.cfg.APIURL + "\n" + p.cfg.Template))
	return hex.EncodeToString(sum[:8]), nil
}

// Capabilities implements [sandbox.Provider].
func (p *Provider) Capabilities() sandbox.Capabilities {
	c := sandbox.Capabilities{
		Suspend:      []sandbox.SuspendMode{sandbox.SuspendMemory, sandbox.SuspendDisk},
		DiskLimit:    true, // the template's
		Egress:       []sandbox.EgressMode{sandbox.EgressNone},
		EgressTunnel: p.cfg.Egress == EgressTunnel,
	}
	if c.EgressTunnel || p.cfg.DomainAllowlist {
		c.Egress = append(c.Egress, sandbox.EgressAllowlist)
	}
	if p.cfg.AllowOpenEgress {
		c.Egress = append(c.Egress, sandbox.EgressOpen)
	}
	return c
}

// metadata marks a new sandbox.
func (p *Provider) metadata(s sandbox.Spec, create string) map[string]string {
	m := map[string]string{
		metaFleet: p.cfg.Fleet, metaTenant: string(s.Tenant), metaName: string(s.Name),
		metaGeneration: s.Generation, metaCreate: create,
	}
	if s.Bucket != "" {
		m[metaBucket] = s.Bucket
	}
	return m
}

// ofName selects all generations of a name, ofGeneration one.
func (p *Provider) ofName(tenant sandbox.Tenant, name sandbox.Name) map[string]string {
	return map[string]string{metaFleet: p.cfg.Fleet, metaTenant: string(tenant), metaName: string(name)}
}

func (p *Provider) ofGeneration(tenant sandbox.Tenant, name sandbox.Name, generation string) map[string]string {
	m := p.ofName(tenant, name)
	m[metaGeneration] = generation
	return m
}

// idOf returns the sandbox id of a handle. A handle without one, whose create
// was cut short, is looked up; two sandboxes of one generation are an error and
// never a choice.
func (p *Provider) idOf(ctx context.Context, h sandbox.Handle) (string, error) {
	if h.Ref != "" {
		if !idPattern.MatchString(h.Ref) {
			return "", sandbox.InvalidField("handle.ref", "not an id of an E2B sandbox")
		}
		return h.Ref, nil
	}
	found, err := p.api.list(ctx, p.ofGeneration(h.Tenant, h.Name, h.Generation))
	switch {
	case err != nil:
		return "", translate("find sandbox "+string(h.Name), err)
	case len(found) == 0:
		return "", errGone(h.Name)
	case len(found) > 1:
		return "", sandbox.Errorf(sandbox.Conflict, "%d E2B sandboxes are named %s with one generation; destroy the sandbox and create it anew", len(found), h.Name).
			Because("duplicate").From(sandbox.FromEngine)
	}
	return found[0].SandboxID, nil
}

// remember keeps how a sandbox is reached. No token, no request: without one
// envd would answer anybody, so such a sandbox counts as gone.
func (p *Provider) remember(id string, token Secret, domain *string, name sandbox.Name) (reach, error) {
	if token.IsZero() {
		return reach{}, sandbox.Errorf(sandbox.Gone, "sandbox %s has no access token and cannot be used; create it anew", name).
			Because("no_token").From(sandbox.FromEngine)
	}
	if !tokenPattern.MatchString(token.Reveal()) {
		return reach{}, engineError("reach sandbox %s: E2B gave an invalid access token", name)
	}
	r := reach{token: token, domain: p.cfg.Domain}
	if domain != nil && *domain != "" {
		if !p.admitsDomain(*domain) {
			return reach{}, engineError("reach sandbox %s: E2B names an invalid domain", name)
		}
		r.domain = *domain
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.reach) >= maxReach {
		clear(p.reach) // rare; each costs one request to learn again
	}
	p.reach[id] = r
	return r, nil
}

// tokenPattern is wider than what is given today and fits a header.
var tokenPattern = regexp.MustCompile(`^[[:graph:]]{1,1000}$`)

// admitsDomain judges a domain that an answer names: only an account that is
// local itself may send us to a local address, in the clear.
func (p *Provider) admitsDomain(domain string) bool {
	return domainPattern.MatchString(domain) && (!localHost(hostOnly(domain)) || localHost(hostOnly(p.cfg.Domain)))
}

func (p *Provider) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.reach, id)
	delete(p.stopped, id)
}

func (p *Provider) envdOf(id string, r reach) *envd {
	return &envd{http: p.inside, base: envdBase(r.domain, id), id: id, token: r.token}
}

// lifeSeconds is the time to live that a start gives.
func (p *Provider) lifeSeconds() int { return p.cfg.TimeoutSeconds }

// pushBack is how far a refresh pushes the end, within what the call takes.
func (p *Provider) pushBack() time.Duration {
	return time.Duration(min(p.cfg.TimeoutSeconds, 3600)) * time.Second
}

func objectName(s sandbox.Spec) string { return fmt.Sprintf("sandbox %s", s.Name) }

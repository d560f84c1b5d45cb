package egress

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// MaxEntries is the most entries that a policy may have.
const MaxEntries = 1024

// PolicyOptions is what a deployment sets for all its policies.
type PolicyOptions struct {
	// ConnectPorts are the ports that tunnels may go to. Defaults to 443 and 80.
	ConnectPorts []uint16
	// HTTPPorts are the ports that plain requests (absolute http:// URLs) may
	// go to. Defaults to 80.
	HTTPPorts []uint16
	// SNIExempt lists hosts, in the grammar of the policy, whose tunnels to
	// 443 need not begin with a ClientHello for the CONNECT host. For odd
	// clients, and for browsers, which send an encrypted client hello to
	// everybody. An entry here does not allow anything by itself.
	SNIExempt []string
}

// EntryError says which entry of a list was refused, and why.
type EntryError struct {
	Entry  string // as given, cut to 300 bytes
	Reason string
}

// Error implements error.
func (e *EntryError) Error() string {
	return fmt.Sprintf("egress entry %q: %s", e.Entry, e.Reason)
}

// Policy is an allowlist. It is immutable; a nil Policy allows nothing.
type Policy struct {
	entries      []entry
	connectPorts []uint16
	httpPorts    []uint16
	sniExempt    []entry
}

// entry is one line of a list.
type entry struct {
	text string // normalised; parsing it again gives the same entry
	name string // without "*."
	wild bool   // name is a suffix: any subdomain, never name itself
	port uint16 // 0: the deployment's ports
}

// ParsePolicy reads an allowlist. An entry is a host (example.com), or *. and a
// domain (*.example.com: every name below it, at any depth, not the domain
// itself), each with an optional :port, which narrows the entry to this port.
// Upper case is folded. Refused, with an [*EntryError] that names the entry:
// literal addresses, names of one label, stars anywhere else, a star over a
// public suffix (*.com, *.co.uk, *.github.io), names that are not ASCII, ports
// outside opts, URLs, white space. An empty
// list allows nothing.
func ParsePolicy(hosts []string, opts PolicyOptions) (*Policy, error) {
	if len(opts.ConnectPorts) == 0 {
		opts.ConnectPorts = []uint16{443, 80}
	}
	if len(opts.HTTPPorts) == 0 {
		opts.HTTPPorts = []uint16{80}
	}
	p := &Policy{connectPorts: slices.Clone(opts.ConnectPorts), httpPorts: slices.Clone(opts.HTTPPorts)}
	if slices.Contains(p.connectPorts, 0) || slices.Contains(p.httpPorts, 0) {
		return nil, errors.New("egress ports: 0 is not a port")
	}
	var err error
	if p.entries, err = p.parseEntries(hosts); err != nil {
		return nil, err
	}
	if p.sniExempt, err = p.parseEntries(opts.SNIExempt); err != nil {
		return nil, fmt.Errorf("hosts without a TLS name check: %w", err)
	}
	return p, nil
}

func (p *Policy) parseEntries(hosts []string) ([]entry, error) {
	if len(hosts) > MaxEntries {
		return nil, fmt.Errorf("egress list: %d entries, at most %d are allowed", len(hosts), MaxEntries)
	}
	entries := make([]entry, 0, len(hosts))
	for _, h := range hosts {
		e, reason := p.parseEntry(h)
		if reason != "" {
			return nil, &EntryError{Entry: h[:min(len(h), 300)], Reason: reason}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// parseEntry returns the reason why s is refused, or "".
func (p *Policy) parseEntry(s string) (e entry, reason string) {
	host, portText, hasPort := strings.Cut(s, ":")
	if hasPort {
		if e.port, hasPort = parsePort(portText); !hasPort {
			return e, "what follows the colon must be a port; write a host name, not a URL or an address"
		}
		if !slices.Contains(p.connectPorts, e.port) && !slices.Contains(p.httpPorts, e.port) {
			return e, fmt.Sprintf("port %d is not among the deployment's egress ports", e.port)
		}
	}
	domain, wild := strings.CutPrefix(host, "*.")
	if strings.Contains(domain, "*") {
		return e, "a star may only be the whole first label, as in *.example.com"
	}
	name, ok := normalName(domain)
	if !ok {
		return e, "not a host name: ASCII letters, digits, hyphens, underscores and dots; international names in punycode"
	}
	if reason := refuseName(name, wild); reason != "" {
		return e, reason
	}
	e.name, e.wild = name, wild
	e.text = e.String()
	return e, ""
}

func refuseName(name string, wild bool) string {
	switch suffix, _ := publicsuffix.PublicSuffix(name); {
	case looksNumeric(name):
		return "an address is never allowed, only names"
	case wild && suffix == name:
		return "this star covers everybody's names under a public suffix; list the hosts"
	case !strings.Contains(name, "."):
		return "a name of one label is not an internet host"
	}
	return ""
}

// parsePort accepts what strconv would print for 1…65535 and nothing else.
func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != s {
		return 0, false
	}
	return uint16(n), true
}

// String returns the entry in its normal form.
func (e entry) String() string {
	s := e.name
	if e.wild {
		s = "*." + s
	}
	if e.port != 0 {
		s += ":" + strconv.Itoa(int(e.port))
	}
	return s
}

// matchName reports whether e covers the normalised name.
func (e entry) matchName(name string) bool {
	if !e.wild {
		return name == e.name
	}
	rest, ok := strings.CutSuffix(name, e.name)
	return ok && len(rest) > 1 && rest[len(rest)-1] == '.'
}

// Hosts returns the entries in normal form, in the order given.
func (p *Policy) Hosts() []string {
	if p == nil {
		return nil
	}
	hosts := make([]string, len(p.entries))
	for i, e := range p.entries {
		hosts[i] = e.text
	}
	return hosts
}

// Empty reports whether p allows nothing at all.
func (p *Policy) Empty() bool { return p == nil || len(p.entries) == 0 }

// allow returns the entry that allows t, or the rule that refuses it.
func (p *Policy) allow(t target) (entryText string, refused Rule) {
	if p.Empty() {
		return "", RuleOff
	}
	refused = RuleNotListed
	for _, e := range p.entries {
		if !e.matchName(t.host) {
			continue
		}
		if p.portAllowed(e, t) {
			return e.text, ""
		}
		refused = RulePort
	}
	return "", refused
}

func (p *Policy) portAllowed(e entry, t target) bool {
	ports := p.httpPorts
	if t.tunnel {
		ports = p.connectPorts
	}
	return slices.Contains(ports, t.port) && (e.port == 0 || e.port == t.port)
}

// checksSNI reports whether a tunnel to t must show its TLS name.
func (p *Policy) checksSNI(t target) bool {
	if !t.tunnel || t.port != 443 || p == nil {
		return t.tunnel && t.port == 443
	}
	return !slices.ContainsFunc(p.sniExempt, func(e entry) bool { return e.matchName(t.host) })
}

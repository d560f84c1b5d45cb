package egress

import (
	"log/slog"
	"net/netip"
	"time"
)

// Verdict is what became of one request.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed" // connected, and the bytes flow
	Denied  Verdict = "denied"  // refused by the policy or by a rule that no policy lifts
	Failed  Verdict = "failed"  // allowed by name, but not resolvable or not reachable
	Closed  Verdict = "closed"  // was open; ended because the list no longer has its host
)

// Rule names why a request was not allowed. For an allowed one Decision.Rule is
// the entry of the list instead.
type Rule string

// The rules, a closed set. They are part of 403 bodies and events.
const (
	RuleTarget      Rule = "target"       // not CONNECT host:port, nor an http:// URL of a well-formed name
	RuleLiteral     Rule = "literal"      // an address, in whatever spelling, instead of a name
	RuleOff         Rule = "off"          // the list is empty: the sandbox has no egress
	RuleNotListed   Rule = "not_listed"   // no entry names the host
	RulePort        Rule = "port"         // the host is listed, the port is not
	RuleAddress     Rule = "address"      // the name resolves to an address that is not public
	RuleOwnAddress  Rule = "own_address"  // the name resolves to an address of this machine
	RulePrefix      Rule = "prefix"       // the name resolves into a prefix that the deployment denies
	RuleDNS         Rule = "dns"          // the name does not resolve, or not to a sane answer
	RuleConnect     Rule = "connect"      // no address of the name takes the connection
	RuleUpstream    Rule = "upstream"     // connected, but no proper answer in time
	RuleNotTLS      Rule = "not_tls"      // a tunnel to 443 that does not begin with a ClientHello
	RuleSNI         Rule = "sni"          // the TLS server name is missing or is not the CONNECT host
	RuleECH         Rule = "ech"          // the ClientHello hides its server name
	RuleConnections Rule = "connections"  // too many connections at once
	RuleNowUnlisted Rule = "now_unlisted" // open when the list changed, and no longer on it
)

// Decision is one verdict as an event. It holds no path, query, header or user
// information; Host is empty when the target was not well-formed.
type Decision struct {
	Time    time.Time      `json:"time"`
	Sandbox string         `json:"sandbox"`
	Tunnel  bool           `json:"tunnel"` // CONNECT; otherwise plain HTTP
	Host    string         `json:"host,omitempty"`
	Port    uint16         `json:"port,omitempty"`
	Verdict Verdict        `json:"verdict"`
	Rule    string         `json:"rule"`           // a [Rule], or the list's entry when allowed
	Addr    netip.AddrPort `json:"addr,omitzero"`  // the address dialled, or the one that was refused
	Class   Class          `json:"class,omitzero"` // of Addr, with RuleAddress
	// Suppressed counts the decisions of this sandbox that were left out
	// since the last one that was reported; see Config.DecisionsPerSecond.
	Suppressed uint64 `json:"suppressed,omitempty"`
}

// LogValue implements [slog.LogValuer].
func (d Decision) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("sandbox", d.Sandbox),
		slog.String("host", d.Host),
		slog.Int("port", int(d.Port)),
		slog.Bool("tunnel", d.Tunnel),
		slog.String("verdict", string(d.Verdict)),
		slog.String("rule", d.Rule),
	}
	if d.Addr.IsValid() {
		attrs = append(attrs, slog.String("addr", d.Addr.String()))
	}
	if d.Class != "" {
		attrs = append(attrs, slog.String("class", string(d.Class)))
	}
	if d.Suppressed > 0 {
		attrs = append(attrs, slog.Uint64("suppressed", d.Suppressed))
	}
	return slog.GroupValue(attrs...)
}

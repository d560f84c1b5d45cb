package egress

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// target is where one request wants to go.
type target struct {
	host   string // normalised: lower case, no root dot
	port   uint16
	tunnel bool
	rest   string // plain requests: path and query, beginning with / or ?, or empty
}

// authority returns the Host header for t.
func (t target) authority() string {
	if !t.tunnel && t.port == 80 {
		return t.host
	}
	return net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
}

// parseTarget judges a request target as it was sent. net/url is wider than any
// client needs, and takes the host from the Host header for some of what it
// accepts (http:/x, //x, CONNECT /x); so this grammar comes first:
//
//	CONNECT  name [ "." ] ":" port
//	others   "http://" name [ "." ] [ ":" port ] [ ( "/" | "?" ) rest ]
//
// A non-empty rule says why the target is refused.
func parseTarget(method, uri string) (target, Rule) {
	if method == "CONNECT" {
		host, portText, ok := cutPort(uri)
		if !ok {
			return target{}, RuleTarget
		}
		return newTarget(target{tunnel: true}, host, portText)
	}
	const scheme = "http://"
	if len(uri) < len(scheme) || !strings.EqualFold(uri[:len(scheme)], scheme) {
		return target{}, RuleTarget
	}
	authority, rest := uri[len(scheme):], ""
	if i := strings.IndexAny(authority, "/?"); i >= 0 {
		authority, rest = authority[:i], authority[i:]
	}
	if !validRest(rest) {
		return target{}, RuleTarget
	}
	host, portText, ok := cutPort(authority)
	if !ok {
		portText = "80"
	}
	return newTarget(target{rest: rest}, host, portText)
}

// cutPort splits at the last colon that is not inside brackets. Without one it
// returns s as the host and false.
func cutPort(s string) (host, port string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.IndexByte(s[i:], ']') >= 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

func newTarget(t target, host, portText string) (target, Rule) {
	if isLiteral(host) {
		return target{}, RuleLiteral
	}
	port, ok := parsePort(portText)
	if !ok {
		return target{}, RuleTarget
	}
	name, ok := normalName(strings.TrimSuffix(host, "."))
	if !ok {
		return target{}, RuleTarget
	}
	if looksNumeric(name) {
		return target{}, RuleLiteral
	}
	t.host, t.port = name, port
	return t, ""
}

// isLiteral reports whether host is an address in brackets or bare.
func isLiteral(host string) bool {
	inner := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	inner, _, _ = strings.Cut(inner, "%")
	_, err := netip.ParseAddr(inner)
	return err == nil
}

// validRest accepts what may follow the authority: no control byte, space or
// fragment. Bytes above ASCII pass, as clients send them in paths.
func validRest(rest string) bool {
	for i := range len(rest) {
		if c := rest[i]; c <= ' ' || c == 0x7f || c == '#' {
			return false
		}
	}
	return true
}

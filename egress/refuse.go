package egress

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// refusal is why a request was not carried.
type refusal struct {
	verdict Verdict
	rule    Rule
	status  int
	addr    netip.AddrPort // judged or dialled, if it came to that
	class   Class
	text    string // for the sandbox; empty: the rule's own
}

// denied is a refusal by rule, before anything was resolved.
func denied(rule Rule) *refusal {
	status := http.StatusForbidden
	if rule == RuleTarget {
		status = http.StatusBadRequest
	}
	return &refusal{verdict: Denied, rule: rule, status: status}
}

func tooMany() *refusal {
	return &refusal{verdict: Denied, rule: RuleConnections, status: http.StatusServiceUnavailable}
}

// explanations says to whoever reads an answer in the sandbox what happened and
// what would help.
var explanations = map[Rule]string{
	RuleTarget:      "the proxy takes CONNECT host:port and absolute http:// URLs of host names only",
	RuleLiteral:     "addresses are never allowed; use the name of a listed host",
	RuleOff:         "this sandbox has no egress; ask for an allowlist",
	RuleNotListed:   "the host is not on this sandbox's allowlist; ask for it to be added",
	RulePort:        "the host is listed, but not this port",
	RuleAddress:     "the host resolves to an address that is not public",
	RuleOwnAddress:  "the host resolves to an address of the machine that runs this sandbox",
	RulePrefix:      "the host resolves into a range that this deployment denies",
	RuleConnections: "too many connections are open at once; close some, then try again",
	RuleNowUnlisted: "the host was taken off the allowlist",
}

// reason is one line for the sandbox. t's host is in its normal form, so it holds
// no control byte.
func (r *refusal) reason(t target) string {
	text := r.text
	if text == "" {
		text = explanations[r.rule]
	}
	if t.host == "" {
		return text
	}
	return fmt.Sprintf("%s:%d: %s", t.host, t.port, text)
}

// body is the text of the answer; its last line names the rule for programs.
func (r *refusal) body(t target) string {
	return fmt.Sprintf("egress %s: %s\nrule: %s\n", r.verdict, r.reason(t), r.rule)
}

// decision is the event of r.
func (r *refusal) decision(t target) Decision {
	return Decision{
		Tunnel: t.tunnel, Host: t.host, Port: t.port,
		Verdict: r.verdict, Rule: string(r.rule), Addr: r.addr, Class: r.class,
	}
}

// write answers a plain request with r.
func (r *refusal) write(w http.ResponseWriter, t target) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(r.status)
	_, _ = io.WriteString(w, r.body(t)) // a client that is gone is noticed by the server
}

// writeRaw answers on a bare connection, with the reason in the status line: most
// clients show of a refused CONNECT nothing else.
func (r *refusal) writeRaw(conn io.Writer, t target) error {
	body := r.body(t)
	_, err := fmt.Fprintf(conn, "HTTP/1.1 %d %s (egress rule %s)\r\nContent-Type: text/plain; charset=utf-8\r\n"+
		"Content-Length: %d\r\nConnection: close\r\n\r\n%s", r.status, http.StatusText(r.status), r.rule, len(body), body)
	return err
}

// lingerTime and lingerBytes bound what is read after the last answer.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// linger ends our direction and reads for a moment: closing TCP with unread
// bytes sends a reset, which can overtake the answer. Bounded by lingerTime.
func linger(conn net.Conn) {
	if cw, ok := conn.(closeWriter); ok && cw.CloseWrite() != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(lingerTime)) // without it, the bytes are the bound
	_, _ = io.CopyN(io.Discard, conn, lingerBytes)
}

// closeWriter is a connection whose directions end one by one.
type closeWriter interface{ CloseWrite() error }

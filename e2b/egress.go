package e2b

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"

	"shoal/sandbox"
)

// everything is the one way to write "deny all" that E2B takes beside domains.
const everything = "0.0.0.0/0"

// rules is a policy as E2B's firewall takes it.
//
// Native rules are weaker than the proxy's: a listed domain opens 8.8.8.8 on
// every port, ports cannot be told apart (80 is judged by Host, 443 by SNI), and
// the answer of a name is not shown to us. What holds for IPv6 is unverified.
type rules struct {
	internet bool
	allow    []string
	deny     []string
	notes    []string
}

func (r rules) network() *network {
	return &network{AllowOut: r.allow, DenyOut: r.deny} // and no public traffic to its ports
}

// rulesFor translates a policy. With a tunnel E2B's own internet is off and the
// proxy judges.
func (p *Provider) rulesFor(e sandbox.Egress) (rules, error) {
	closed := rules{deny: []string{everything}}
	switch {
	case e.Mode == sandbox.EgressOpen && p.cfg.AllowOpenEgress:
		return rules{internet: true}, nil
	case e.Mode == sandbox.EgressOpen:
		return rules{}, sandbox.Errorf(sandbox.Denied, "open egress is not allowed here: the setting allowOpenEgress is off")
	case p.cfg.Egress == EgressTunnel, e.Mode != sandbox.EgressAllowlist, len(e.Hosts) == 0:
		return closed, nil
	case !p.cfg.DomainAllowlist:
		note := "egress is none: this E2B is not said to judge by domain (setting domainAllowlist), and the list was dropped"
		p.log.LogAttrs(context.Background(), slog.LevelWarn, "e2b egress allowlist becomes none, as the setting domainAllowlist is off")
		closed.notes = []string{note}
		return closed, nil
	}
	open := rules{internet: true, deny: closed.deny}
	for _, entry := range e.Hosts {
		host, port, err := net.SplitHostPort(entry)
		switch {
		case err != nil:
			host = entry
		case port != "80" && port != "443":
			return rules{}, sandbox.Errorf(sandbox.Unsupported, "E2B's own egress knows the ports 80 and 443 alone; %q needs the setting egress \"tunnel\"", clean(entry))
		}
		if !slices.Contains(open.allow, host) {
			open.allow = append(open.allow, host)
		}
	}
	open.notes = []string{"egress is judged by E2B itself: 80 and 443 together for each host, and 8.8.8.8 on every port"}
	return open, nil
}

// SetEgress implements [sandbox.EgressSetter]. The call replaces all rules.
func (p *Provider) SetEgress(ctx context.Context, h sandbox.Handle, e sandbox.Egress) error {
	op := "set egress of sandbox " + string(h.Name)
	if p.cfg.Egress == EgressTunnel {
		return sandbox.Errorf(sandbox.Unsupported, "%s: egress goes through the tunnel, whose owner judges", op)
	}
	r, err := p.rulesFor(e)
	if err != nil {
		return err
	}
	id, err := p.idOf(ctx, h)
	if err != nil {
		return err
	}
	update := networkUpdate{AllowOut: r.allow, DenyOut: r.deny, AllowInternetAccess: r.internet}
	if update.AllowOut == nil {
		update.AllowOut = []string{}
	}
	if update.DenyOut == nil {
		update.DenyOut = []string{}
	}
	err = p.api.setNetwork(ctx, id, update)
	if e := asAPI(err); e != nil && e.Status == http.StatusConflict {
		return suspended(op).Wrap(err)
	}
	if err != nil {
		return p.settle(ctx, op, id, err)
	}
	return nil
}

package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"code.dny.dev/ssrf"
)

// open resolves t once, judges every address, and connects to one of them.
func (p *Proxy) open(ctx context.Context, t target) (net.Conn, netip.AddrPort, *refusal) {
	addrs, refused := p.resolve(ctx, t)
	if refused != nil {
		return nil, netip.AddrPort{}, refused
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ConnectTimeout)
	defer cancel()
	conn, addr, err := p.dialInTurn(ctx, addrs)
	if err != nil {
		return nil, addr, unreachable(ctx, addr, err)
	}
	return conn, addr, nil
}

// resolve looks t's name up, once, and returns its addresses if all of them pass.
func (p *Proxy) resolve(ctx context.Context, t target) ([]netip.AddrPort, *refusal) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DNSTimeout)
	defer cancel()
	answer, err := p.cfg.Resolver.LookupNetIP(ctx, "ip", t.host+".")
	switch {
	case err != nil:
		return nil, unresolvable(ctx, err)
	case len(answer) == 0:
		return nil, &refusal{verdict: Failed, rule: RuleDNS, status: http.StatusBadGateway, text: "the name has no address"}
	case len(answer) > maxAnswer:
		return nil, &refusal{verdict: Failed, rule: RuleDNS, status: http.StatusBadGateway, text: "the name has too many addresses"}
	}
	var addrs []netip.AddrPort
	for _, a := range answer {
		a = a.Unmap()
		addr := netip.AddrPortFrom(a, t.port)
		if rule, class := p.guard.judge(a); rule != "" {
			return nil, &refusal{verdict: Denied, rule: rule, status: http.StatusForbidden, addr: addr, class: class}
		}
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// dialInTurn tries the addresses one after another, each for its share of the
// time that is left, so that a black hole at the front does not use it all up.
func (p *Proxy) dialInTurn(ctx context.Context, addrs []netip.AddrPort) (net.Conn, netip.AddrPort, error) {
	var errs []error
	for i, addr := range addrs {
		conn, err := p.dialOne(ctx, addr, len(addrs)-i)
		if err == nil {
			return conn, addr, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, addrs[0], errors.Join(errs...)
}

func (p *Proxy) dialOne(ctx context.Context, addr netip.AddrPort, left int) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
	}
	return p.cfg.Dialer.DialAddr(ctx, addr)
}

func unresolvable(ctx context.Context, err error) *refusal {
	r := &refusal{verdict: Failed, rule: RuleDNS, status: http.StatusBadGateway, text: "the name does not resolve"}
	if dns, ok := errors.AsType[*net.DNSError](err); errors.Is(ctx.Err(), context.DeadlineExceeded) || ok && dns.IsTimeout {
		r.status, r.text = http.StatusGatewayTimeout, "resolving the name took too long"
	}
	return r
}

func unreachable(ctx context.Context, addr netip.AddrPort, err error) *refusal {
	r := &refusal{verdict: Failed, rule: RuleConnect, status: http.StatusBadGateway, addr: addr, text: "no address of the host takes the connection"}
	if ne, ok := errors.AsType[net.Error](err); errors.Is(ctx.Err(), context.DeadlineExceeded) || ok && ne.Timeout() {
		r.status, r.text = http.StatusGatewayTimeout, "connecting took too long"
	}
	if errors.Is(err, ssrf.ErrProhibitedIP) {
		r.verdict, r.rule, r.status, r.text = Denied, RuleAddress, http.StatusForbidden, ""
	}
	return r
}

// guardedDialer connects by TCP and lets a second table, kept by others, judge
// the address once more at the moment of connect(2).
type guardedDialer struct {
	dialer net.Dialer
}

func newGuardedDialer(denied []netip.Prefix) *guardedDialer {
	var v4, v6 []netip.Prefix
	for _, p := range denied {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	second := ssrf.New(
		ssrf.WithAnyPort(),
		ssrf.WithDeniedV4Prefixes(v4...),
		ssrf.WithDeniedV6Prefixes(v6...),
		// The address inside was judged by Classify; the table refuses all of
		// the prefix, which would cut off hosts that have IPv6 only.
		ssrf.WithAllowedV6Prefixes(ssrf.IPv6NAT64Prefix),
	)
	return &guardedDialer{dialer: net.Dialer{Control: second.Safe}}
}

// DialAddr implements [Dialer].
func (g *guardedDialer) DialAddr(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	network := "tcp4"
	if addr.Addr().Is6() {
		network = "tcp6"
	}
	conn, err := g.dialer.DialTCP(ctx, network, netip.AddrPort{}, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return conn, nil
}

package egress

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// ownAddrsTTL bounds how long an address that the machine got anew stays unknown.
const ownAddrsTTL = 5 * time.Second

// guard judges the addresses that a name resolved to.
type guard struct {
	denied []netip.Prefix // masked; IPv4 ones in IPv4 form
	own    *ownAddrs
}

// judge returns the empty rule when a may be dialled.
func (g *guard) judge(a netip.Addr) (Rule, Class) {
	if c := Classify(a); c != Public {
		return RuleAddress, c
	}
	for _, form := range forms(a) {
		if g.own.has(form) {
			return RuleOwnAddress, ""
		}
		for _, p := range g.denied {
			if p.Contains(form) {
				return RulePrefix, ""
			}
		}
	}
	return "", Public
}

// forms returns the addresses that packets to the public address a may end at.
func forms(a netip.Addr) []netip.Addr {
	a = a.Unmap()
	if nat64.Contains(a) {
		return []netip.Addr{a, embedded(a)}
	}
	return []netip.Addr{a}
}

// normalPrefix returns p masked, and a prefix of IPv4-mapped addresses as IPv4.
func normalPrefix(p netip.Prefix) (netip.Prefix, error) {
	if !p.IsValid() {
		return p, fmt.Errorf("%q is not a prefix", p)
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return p, fmt.Errorf("%s mixes mapped and other addresses; write the IPv4 prefix", p)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// ownAddrs knows the addresses of this machine's interfaces. What it knows is at
// most ownAddrsTTL old. When the interfaces cannot be read, every address counts
// as the machine's own.
type ownAddrs struct {
	read func() ([]netip.Addr, error)

	mu   sync.Mutex // guards what follows; held while reading, so one reads for all
	at   time.Time
	set  map[netip.Addr]struct{}
	fail bool
}

func (o *ownAddrs) has(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at.IsZero() || time.Since(o.at) > ownAddrsTTL {
		o.refreshLocked()
	}
	_, ok := o.set[a]
	return ok || o.fail
}

func (o *ownAddrs) refreshLocked() {
	addrs, err := o.read()
	o.at, o.fail = time.Now(), err != nil
	o.set = make(map[netip.Addr]struct{}, len(addrs))
	for _, a := range addrs {
		o.set[a.Unmap().WithZone("")] = struct{}{}
	}
}

// interfaceAddrs returns the addresses of all interfaces of this machine.
func interfaceAddrs() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of this machine: %w", err)
	}
	var addrs []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				addrs = append(addrs, ip)
			}
		}
	}
	return addrs, nil
}

package egress

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// GuardedDial is the default dialer's method.
func GuardedDial(denied []netip.Prefix) func(context.Context, netip.AddrPort) (net.Conn, error) {
	return newGuardedDialer(denied).DialAddr
}

// ExpireOwnAddrs makes the next judgement read the machine's addresses again.
func ExpireOwnAddrs(p *Proxy) {
	own := p.guard.own
	own.mu.Lock()
	defer own.mu.Unlock()
	own.at = time.Now().Add(-2 * ownAddrsTTL)
}

package egress_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"code.dny.dev/ssrf"

	"shoal/egress"
)

// Both sides of every border.
func TestClassify(t *testing.T) {
	t.Parallel()
	for class, addrs := range map[egress.Class]string{
		egress.Unspecified:   "0.0.0.0 0.255.255.255 :: ::ffff:0.0.0.0 64:ff9b::",
		egress.Loopback:      "127.0.0.0 127.255.255.255 ::1 ::ffff:127.0.0.1 64:ff9b::7f00:1",
		egress.Private:       "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255 fc00:: fdff:ffff::1 fec0::1 feff::1 fd00:ec2::254",
		egress.Shared:        "100.64.0.0 100.127.255.255 64:ff9b::6440:1",
		egress.LinkLocal:     "169.254.0.0 169.254.255.255 fe80::1 febf::1 64:ff9b::a9fe:a9fe",
		egress.Multicast:     "224.0.0.0 239.255.255.255 ff00::1 ff02::1",
		egress.Documentation: "192.0.2.0 192.0.2.255 198.51.100.255 203.0.113.0 2001:db8:: 2001:db8:ffff:ffff::1 3fff:: 3fff:fff::1",
		egress.Benchmark:     "198.18.0.0 198.19.255.255 2001:2::1",
		egress.Reserved:      "192.0.0.0 192.0.0.255 192.31.196.1 192.52.193.1 192.88.99.1 192.175.48.1 240.0.0.0 255.255.255.255 100::1 2001:1::1 2001:1ff::1 2620:4f:8000::1 5f00::1 4000::1 1fff::1 e000::1",
		egress.Embedding:     "::2 ::127.0.0.1 ::8.8.8.8 ::ffff:0:8.8.8.8 64:ff9b:1::1 64:ff9b:1:ffff::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2002:: 2002:808:808::1",
		egress.Platform:      "168.63.129.16 ::ffff:168.63.129.16 64:ff9b::a83f:8110",
		egress.Zoned:         "fe80::1%eth0 2606:4700::1%eth0 ::ffff:8.8.8.8%1",
		egress.Public: "1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 " +
			"192.0.1.0 192.0.3.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0 223.255.255.255 " +
			"168.63.129.15 168.63.129.17 ::ffff:8.8.8.8 64:ff9b::808:808 2000:: 2001:200:: 2001:db7:ffff::1 2001:db9:: 2003:: 2606:4700::1 3ffe::1 3fff:1000::",
	} {
		for addr := range strings.SplitSeq(addrs, " ") {
			if got := egress.Classify(netip.MustParseAddr(addr)); got != class {
				t.Errorf("%s is %s, want %s", addr, got, class)
			}
		}
	}
	if got := egress.Classify(netip.Addr{}); got != egress.Invalid {
		t.Errorf("no address is %s", got)
	}
}

// What we call public, the second table allows; what it prohibits, we do not dial.
// NAT64 is the one difference: it refuses the prefix whole.
func TestSecondTableAgrees(t *testing.T) {
	t.Parallel()
	second := ssrf.New(ssrf.WithAnyPort())
	for _, p := range append(append([]netip.Prefix{}, ssrf.IPv4DeniedPrefixes...), ssrf.IPv6DeniedPrefixes...) {
		first, last := p.Masked().Addr(), lastOf(p)
		for _, a := range []netip.Addr{first, last, first.Prev(), last.Next()} {
			if !a.IsValid() {
				continue
			}
			ours, theirs := egress.Classify(a) == egress.Public, second.SafeAddr(a) == nil
			if platform := egress.Classify(a) == egress.Platform; ours != theirs && !platform {
				t.Errorf("%s: public %t, second table %t", a, ours, theirs)
			}
		}
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// The default dialer refuses by itself, at connect, whatever was judged before.
func TestSecondGuardAtConnect(t *testing.T) {
	t.Parallel()
	l := listen(t)
	defer l.Close()
	dial := egress.GuardedDial([]netip.Prefix{netip.MustParsePrefix("151.101.1.0/24")})
	local := netip.MustParseAddrPort(l.Addr().String())
	for _, addr := range []netip.AddrPort{
		local,
		netip.AddrPortFrom(netip.AddrFrom16(local.Addr().As16()), local.Port()), // IPv4-mapped
		netip.MustParseAddrPort("169.254.169.254:80"),
		netip.MustParseAddrPort("[::1]:80"),
		netip.MustParseAddrPort("[fd00:ec2::254]:80"),
		netip.MustParseAddrPort("151.101.1.69:443"),
	} {
		start := time.Now()
		conn, err := dial(t.Context(), addr)
		if conn != nil {
			_ = conn.Close()
		}
		if !errors.Is(err, ssrf.ErrProhibitedIP) || time.Since(start) > time.Second {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

// The machine's addresses are read again after a while, at most so often, and an
// unreadable table refuses everything.
func TestOwnAddresses(t *testing.T) {
	t.Parallel()
	reads := 0
	var fail error
	r := newRig(t, rigConfig{
		egress: egress.Config{HostAddrs: func() ([]netip.Addr, error) {
			reads++ // one reader at a time, by contract
			return []netip.Addr{netip.MustParseAddr("::ffff:93.184.216.35")}, fail
		}},
		hosts: []string{"*.example.com"},
		names: map[string][]string{"a.example.com": {"93.184.216.34"}, "b.example.com": {"93.184.216.35"}},
	})
	newOrigin(t, r)
	for range 20 {
		if got := r.ask(t, get("http://a.example.com/")); got.status != 200 {
			t.Fatalf("status %d", got.status)
		}
	}
	r.wantDenied(t, get("http://b.example.com/"), egress.RuleOwnAddress)
	if reads != 1 {
		t.Errorf("%d reads", reads)
	}
	fail = errors.New("no table")
	egress.ExpireOwnAddrs(r.proxy)
	r.wantDenied(t, get("http://a.example.com/"), egress.RuleOwnAddress)
	fail = nil
	egress.ExpireOwnAddrs(r.proxy)
	if got := r.ask(t, get("http://a.example.com/")); got.status != 200 {
		t.Errorf("after the table is readable again: status %d", got.status)
	}
}

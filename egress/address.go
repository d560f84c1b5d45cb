package egress

import (
	"encoding/binary"
	"net/netip"
)

// Class says what kind of address an [netip.Addr] is.
type Class string

// The classes. Only [Public] may be dialled.
const (
	Public        Class = "public"
	Unspecified   Class = "unspecified"    // 0.0.0.0/8 and ::, "this host"
	Loopback      Class = "loopback"       // 127.0.0.0/8, ::1
	Private       Class = "private"        // RFC 1918, RFC 4193, old site-local
	Shared        Class = "shared"         // RFC 6598, carrier-grade NAT
	LinkLocal     Class = "link_local"     // with the metadata services of most clouds
	Multicast     Class = "multicast"      //
	Documentation Class = "documentation"  // RFC 5737, RFC 3849, RFC 9637
	Benchmark     Class = "benchmark"      // RFC 2544, RFC 5180
	Reserved      Class = "reserved"       // protocol assignments, relays, future use, not global unicast
	Embedding     Class = "embedding"      // hides an IPv4 address in a way that nothing public needs
	Zoned         Class = "zoned"          // carries a zone, so no prefix contains it
	Invalid       Class = "invalid"        // not an address
	Platform      Class = "cloud_platform" // public by range, but a cloud's own service to the machine
)

type classified struct {
	prefix netip.Prefix
	class  Class
}

// special4 follows the IANA IPv4 special-purpose registry, with the relays and
// sinks that are globally routed but serve no site.
var special4 = []classified{
	{netip.MustParsePrefix("0.0.0.0/8"), Unspecified},
	{netip.MustParsePrefix("10.0.0.0/8"), Private},
	{netip.MustParsePrefix("100.64.0.0/10"), Shared},
	{netip.MustParsePrefix("127.0.0.0/8"), Loopback},
	{netip.MustParsePrefix("169.254.0.0/16"), LinkLocal},
	{netip.MustParsePrefix("172.16.0.0/12"), Private},
	{netip.MustParsePrefix("192.0.0.0/24"), Reserved},
	{netip.MustParsePrefix("192.0.2.0/24"), Documentation},
	{netip.MustParsePrefix("192.31.196.0/24"), Reserved},
	{netip.MustParsePrefix("192.52.193.0/24"), Reserved},
	{netip.MustParsePrefix("192.88.99.0/24"), Reserved},
	{netip.MustParsePrefix("192.168.0.0/16"), Private},
	{netip.MustParsePrefix("192.175.48.0/24"), Reserved},
	{netip.MustParsePrefix("198.18.0.0/15"), Benchmark},
	{netip.MustParsePrefix("198.51.100.0/24"), Documentation},
	{netip.MustParsePrefix("203.0.113.0/24"), Documentation},
	{netip.MustParsePrefix("224.0.0.0/4"), Multicast},
	{netip.MustParsePrefix("240.0.0.0/4"), Reserved},
	// The wire server of one cloud's virtual machines: public by range, in no
	// special-purpose table.
	{netip.MustParsePrefix("168.63.129.16/32"), Platform},
}

// special6 follows the IANA IPv6 registry. What is outside 2000::/3 and not
// named here is Reserved.
var special6 = []classified{
	{netip.MustParsePrefix("::/128"), Unspecified},
	{netip.MustParsePrefix("::1/128"), Loopback},
	{netip.MustParsePrefix("::/96"), Embedding},           // IPv4-compatible, RFC 4291 2.5.5.1
	{netip.MustParsePrefix("::ffff:0:0:0/96"), Embedding}, // IPv4-translated, RFC 2765
	{netip.MustParsePrefix("64:ff9b:1::/48"), Embedding},  // local NAT64, RFC 8215
	{netip.MustParsePrefix("100::/64"), Reserved},
	{netip.MustParsePrefix("2001::/32"), Embedding}, // Teredo, RFC 4380
	{netip.MustParsePrefix("2001:2::/48"), Benchmark},
	{netip.MustParsePrefix("2001::/23"), Reserved},
	{netip.MustParsePrefix("2001:db8::/32"), Documentation},
	{netip.MustParsePrefix("2002::/16"), Embedding}, // 6to4, RFC 7526
	{netip.MustParsePrefix("2620:4f:8000::/48"), Reserved},
	{netip.MustParsePrefix("3fff::/20"), Documentation},
	{netip.MustParsePrefix("fc00::/7"), Private},
	{netip.MustParsePrefix("fe80::/10"), LinkLocal},
	{netip.MustParsePrefix("fec0::/10"), Private},
	{netip.MustParsePrefix("ff00::/8"), Multicast},
}

var (
	nat64         = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	globalUnicast = netip.MustParsePrefix("2000::/3")
)

// Classify returns the class of a. An IPv4-mapped address is judged as the IPv4
// address, one under the well-known NAT64 prefix by the IPv4 address inside
// (a host with IPv6 only reaches the IPv4 internet through it); all other
// embeddings (6to4, Teredo, IPv4-compatible, IPv4-translated, local NAT64) are
// never public.
func Classify(a netip.Addr) Class {
	switch {
	case !a.IsValid():
		return Invalid
	case a.Zone() != "":
		return Zoned
	}
	a = a.Unmap()
	if a.Is4() {
		return lookup(special4, a, Public)
	}
	if nat64.Contains(a) {
		return lookup(special4, embedded(a), Public)
	}
	if c := lookup(special6, a, Public); c != Public {
		return c
	}
	if !globalUnicast.Contains(a) {
		return Reserved
	}
	return Public
}

func lookup(table []classified, a netip.Addr, otherwise Class) Class {
	for _, s := range table {
		if s.prefix.Contains(a) {
			return s.class
		}
	}
	return otherwise
}

// embedded returns the IPv4 address in the last 32 bits of a.
func embedded(a netip.Addr) netip.Addr {
	b := a.As16()
	var v4 [4]byte
	binary.BigEndian.PutUint32(v4[:], binary.BigEndian.Uint32(b[12:]))
	return netip.AddrFrom4(v4)
}

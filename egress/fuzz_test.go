package egress

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// corpusSeeds reads what fuzz targets can use of the verdict corpus.
func corpusSeeds(f *testing.F) []seedCase {
	f.Helper()
	data, err := os.ReadFile("testdata/egress-cases.json")
	if err != nil {
		f.Fatal(err)
	}
	var file struct{ Cases []seedCase }
	if err := json.Unmarshal(data, &file); err != nil {
		f.Fatal(err)
	}
	return file.Cases
}

type seedCase struct {
	Method, Target string
	AllowHosts     []string
	DNS            map[string]struct{ IPs []netip.Addr }
}

// FuzzTarget: an accepted target, written again in its normal form, is accepted
// again and means the same; and net/http, which sees the same bytes, agrees or
// refuses.
func FuzzTarget(f *testing.F) {
	for _, c := range corpusSeeds(f) {
		f.Add(c.Method, c.Target)
	}
	f.Fuzz(func(t *testing.T, method, uri string) {
		got, rule := parseTarget(method, uri)
		if rule != "" {
			return
		}
		if name, ok := normalName(got.host); !ok || name != got.host || looksNumeric(name) {
			t.Fatalf("accepted host %q", got.host)
		}
		if _, err := netip.ParseAddr(got.host); err == nil {
			t.Fatalf("accepted the address %q", got.host)
		}
		again := got.authority()
		if !got.tunnel {
			again = "http://" + again + got.rest
		}
		if second, rule := parseTarget(method, again); rule != "" || second != got {
			t.Fatalf("%q means %+v, its normal form %q means %+v (%s)", uri, got, again, second, rule)
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + uri + " HTTP/1.1\r\nHost: other.example\r\n\r\n")))
		if err == nil && r.Method == method && !agrees(got, r) {
			t.Fatalf("%q: we read %+v, net/http %q", uri, got, r.URL.Host)
		}
	})
}

// FuzzPolicy: an accepted entry, formatted and parsed again, is the same entry; it
// covers a name if and only if the rule in one sentence says so.
func FuzzPolicy(f *testing.F) {
	for _, c := range corpusSeeds(f) {
		for _, entry := range c.AllowHosts {
			for name := range c.DNS {
				f.Add(entry, name)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		p, err := ParsePolicy([]string{text}, PolicyOptions{})
		if err != nil {
			return
		}
		e := p.entries[0]
		again, err := ParsePolicy([]string{e.text}, PolicyOptions{})
		if err != nil || again.entries[0] != e {
			t.Fatalf("%q became %+v, its normal form %q: %v", text, e, e.text, err)
		}
		host, ok := normalName(name)
		if !ok {
			return
		}
		want := host == e.name
		if e.wild {
			want = strings.HasSuffix(host, "."+e.name)
		}
		if got := e.matchName(host); got != want {
			t.Fatalf("%q covers %q: %t", e.text, host, got)
		}
		_, refused := p.allow(target{host: host, port: 443, tunnel: true})
		if want := want && (e.port == 0 || e.port == 443); (refused == "") != want {
			t.Fatalf("%q for %q: refused %q", e.text, host, refused)
		}
	})
}

// FuzzClassify: an address means the same in all its spellings, and what is public
// hides nothing that is not.
func FuzzClassify(f *testing.F) {
	for _, c := range corpusSeeds(f) {
		for _, d := range c.DNS {
			for _, a := range d.IPs {
				f.Add(a.AsSlice(), a.Zone())
			}
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, zone string) {
		a, ok := netip.AddrFromSlice(raw)
		if !ok {
			return
		}
		a = a.WithZone(zone)
		class := Classify(a)
		for _, text := range []string{a.String(), a.StringExpanded()} {
			again, err := netip.ParseAddr(text)
			if err == nil && Classify(again) != class {
				t.Fatalf("%s is %s, written as %s it is %s", a, class, text, Classify(again))
			}
		}
		if a.Is4() {
			if mapped := netip.AddrFrom16(a.As16()); Classify(mapped) != class {
				t.Fatalf("%s is %s, mapped it is %s", a, class, Classify(mapped))
			}
		}
		if class != Public {
			return
		}
		if u := a.Unmap(); !u.IsGlobalUnicast() || u.IsPrivate() || u.Zone() != "" {
			t.Fatalf("%s is public", a)
		}
		for _, form := range forms(a) {
			if c := Classify(form); c != Public {
				t.Fatalf("%s is public, its form %s is %s", a, form, c)
			}
		}
	})
}

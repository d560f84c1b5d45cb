package egress_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"shoal/egress"
)

func TestParsePolicyAccepts(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("a", 63)
	for entry, normal := range map[string]string{
		"example.com":              "example.com",
		"EXAMPLE.com":              "example.com",
		"*.Example.com":            "*.example.com",
		"example.com:443":          "example.com:443",
		"*.example.com:80":         "*.example.com:80",
		"xn--bcher-kva.example":    "xn--bcher-kva.example",
		"my_host.example.com":      "my_host.example.com",
		"github.io":                "github.io", // as a host, not as everybody's
		"*.me.github.io":           "*.me.github.io",
		label + ".example.com":     label + ".example.com",
		"1.2.3.4.nip.example.com":  "1.2.3.4.nip.example.com",
		"registry.internal.corp":   "registry.internal.corp",
		"*.registry.internal.corp": "*.registry.internal.corp",
	} {
		p, err := egress.ParsePolicy([]string{entry}, egress.PolicyOptions{})
		if err != nil {
			t.Errorf("%q: %v", entry, err)
			continue
		}
		if got := p.Hosts(); !slices.Equal(got, []string{normal}) {
			t.Errorf("%q became %q, want %q", entry, got, normal)
		}
		if _, err := egress.ParsePolicy(p.Hosts(), egress.PolicyOptions{}); err != nil {
			t.Errorf("the normal form of %q is refused: %v", entry, err)
		}
	}
}

func TestParsePolicyRefuses(t *testing.T) {
	t.Parallel()
	for entry, why := range map[string]string{
		"":                                       "host name",
		" ":                                      "host name",
		"example.com ":                           "host name",
		"*":                                      "star",
		"*.":                                     "host name",
		"**.example.com":                         "star",
		"*example.com":                           "star",
		"api.*.example.com":                      "star",
		"*.*.example.com":                        "star",
		"*.com":                                  "public suffix",
		"*.co.uk":                                "public suffix",
		"*.github.io":                            "public suffix",
		"*.internal":                             "public suffix",
		"localhost":                              "one label",
		"com":                                    "one label",
		"example.com.":                           "host name",
		".example.com":                           "host name",
		"a..example.com":                         "host name",
		"-a.example.com":                         "host name",
		"a-.example.com":                         "host name",
		"bücher.example":                         "punycode",
		"ſtatic.example.com":                     "punycode",
		"example.com/path":                       "host name",
		"user@example.com":                       "host name",
		"https://example.com":                    "URL",
		"example.com:":                           "port",
		"example.com:0":                          "port",
		"example.com:0443":                       "port",
		"example.com:+443":                       "port",
		"example.com:65979":                      "port",
		"example.com:https":                      "port",
		"example.com:22":                         "port 22",
		"example.com:443:443":                    "port",
		"10.0.0.5":                               "address",
		"93.184.216.34":                          "address",
		"93.184.216.34:443":                      "address",
		"*.0.0.1":                                "address",
		"2130706433":                             "address",
		"0x7f000001":                             "address",
		"a.0x7f":                                 "address",
		"[::1]":                                  "port",
		"::1":                                    "port",
		"example.com\x00":                        "host name",
		"example.com\r\nevil.org":                "host name",
		strings.Repeat("a", 64) + ".example.com": "host name",
		strings.Repeat("abcdefgh.", 30) + "com":  "host name",
	} {
		_, err := egress.ParsePolicy([]string{"ok.example.com", entry}, egress.PolicyOptions{})
		refused, ok := errors.AsType[*egress.EntryError](err)
		if !ok || refused.Entry != entry || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want an error about %q that names the entry", entry, err, why)
		}
	}
	if _, err := egress.ParsePolicy(make([]string, egress.MaxEntries+1), egress.PolicyOptions{}); err == nil {
		t.Error("a list without bound is taken")
	}
	if _, err := egress.ParsePolicy(nil, egress.PolicyOptions{SNIExempt: []string{"*"}}); err == nil {
		t.Error("a bad exemption is taken")
	}
	if _, err := egress.ParsePolicy(nil, egress.PolicyOptions{ConnectPorts: []uint16{0}}); err == nil {
		t.Error("port 0 is taken")
	}
}

// An entry's port narrows it; the deployment's ports are the ceiling, and plain
// requests have ports of their own.
func TestPorts(t *testing.T) {
	t.Parallel()
	names := map[string][]string{"a.example.com": {"93.184.216.34"}, "b.example.com": {"93.184.216.34"}}
	r := newRig(t, rigConfig{
		hosts:   []string{"a.example.com:443", "b.example.com", "c.example.com:8443"},
		options: egress.PolicyOptions{ConnectPorts: []uint16{443, 8443}},
		names:   names,
	})
	newOrigin(t, r)
	for text, status := range map[string]int{
		connectText("a.example.com:443"):    200,
		connectText("b.example.com:443"):    200,
		connectText("b.example.com:8443"):   200,
		get("http://b.example.com/"):        200,
		get("http://b.example.com:80/"):     200,
		connectText("a.example.com:8443"):   403,
		connectText("b.example.com:80"):     403,
		get("http://a.example.com/"):        403,
		get("http://b.example.com:443/"):    403,
		get("http://b.example.com:8443/"):   403,
		connectText("c.example.com:443"):    403,
		connectText("evil.example.org:443"): 403,
	} {
		if got := r.ask(t, text); got.status != status {
			t.Errorf("%.40q: status %d, want %d", text, got.status, status)
		}
	}
}

func TestPolicyIsEmpty(t *testing.T) {
	t.Parallel()
	var none *egress.Policy
	empty, err := egress.ParsePolicy(nil, egress.PolicyOptions{})
	if err != nil || !empty.Empty() || !none.Empty() || none.Hosts() != nil {
		t.Errorf("an empty list: %v, %v", empty, err)
	}
}

package e2b

import (
	"fmt"
	"strings"
	"testing"

	"shoal/e2b/e2btest"
	"shoal/sandbox"
)

func TestEgressRules(t *testing.T) {
	native := func(c *Config) { c.Egress = EgressNative }
	domains := func(c *Config) { c.Egress, c.DomainAllowlist = EgressNative, true }
	open := func(c *Config) { c.Egress, c.AllowOpenEgress = EgressNative, true }
	list := sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"example.com", "*.example.org:443", "*.example.org:80"}}
	for name, c := range map[string]struct {
		change   func(*Config)
		egress   sandbox.Egress
		code     sandbox.Code
		internet bool
		allow    string
		note     string
	}{
		"tunnel none":            {func(*Config) {}, sandbox.Egress{Mode: "none"}, "", false, "[]", ""},
		"tunnel allowlist":       {func(*Config) {}, list, "", false, "[]", ""},
		"tunnel open":            {func(*Config) {}, sandbox.Egress{Mode: "open"}, sandbox.Denied, false, "", ""},
		"native none":            {domains, sandbox.Egress{Mode: "none"}, "", false, "[]", ""},
		"native empty list":      {domains, sandbox.Egress{Mode: "allowlist"}, "", false, "[]", ""},
		"native allowlist":       {domains, list, "", true, "[example.com *.example.org]", "8.8.8.8"},
		"native list degrades":   {native, list, "", false, "[]", "domainAllowlist"},
		"native other port":      {domains, sandbox.Egress{Mode: "allowlist", Hosts: []string{"example.com:22"}}, sandbox.Unsupported, false, "", ""},
		"open where allowed":     {open, sandbox.Egress{Mode: "open"}, "", true, "[]", ""},
		"open where not":         {native, sandbox.Egress{Mode: "open"}, sandbox.Denied, false, "", ""},
		"mode of the deployment": {native, sandbox.Egress{}, "", false, "[]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fake := e2btest.New(t, e2btest.Config{})
			p := newProvider(t, fake, c.change)
			s := spec("a")
			s.Egress = c.egress
			h, err := p.Create(t.Context(), s, nil)
			if sandbox.CodeOf(err) != c.code {
				t.Fatalf("%v, want %q", err, c.code)
			}
			if err != nil {
				return
			}
			box, _ := fake.Sandbox(h.Ref)
			if box.Internet != c.internet || fmt.Sprint(box.AllowOut) != c.allow || box.PublicTraffic {
				t.Errorf("%+v", box)
			}
			if !strings.Contains(fmt.Sprint(h.Notes), c.note) {
				t.Errorf("notes %q", h.Notes)
			}
		})
	}
}

func TestSetEgressReplaces(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake, func(c *Config) { c.Egress, c.DomainAllowlist = EgressNative, true })
	h := create(t, p, "a")
	set := func(e sandbox.Egress) string {
		t.Helper()
		if err := p.SetEgress(t.Context(), h, e); err != nil {
			t.Fatal(err)
		}
		box, _ := fake.Sandbox(h.Ref)
		return fmt.Sprint(box.Internet, box.AllowOut, box.DenyOut)
	}
	if got := set(sandbox.Egress{Mode: "allowlist", Hosts: []string{"example.com"}}); got != "true [example.com] [0.0.0.0/0]" {
		t.Error(got)
	}
	if got := set(sandbox.Egress{Mode: "none"}); got != "false [] [0.0.0.0/0]" {
		t.Error(got)
	}
	if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
		t.Fatal(err)
	}
	wantCode(t, p.SetEgress(t.Context(), h, sandbox.Egress{Mode: "none"}), sandbox.Unavailable, "suspended")
	tunnel := newProvider(t, fake)
	wantCode(t, tunnel.SetEgress(t.Context(), h, sandbox.Egress{Mode: "none"}), sandbox.Unsupported, "")
}

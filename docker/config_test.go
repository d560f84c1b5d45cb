package docker

import (
	"strings"
	"testing"

	"shoal/sandbox"
)

func TestConfig(t *testing.T) {
	for what, c := range map[string]struct {
		conf  Config
		field string
	}{
		"nothing":                      {Config{}, ""},
		"everything":                   {Config{Fleet: "f", Endpoint: "tcp://h:1", Prefix: "x-", Image: "a/b:1", Runtime: "runsc", AllowOpenEgress: true, Network: "net", VolumeDriver: "d2", Starts: 1}, ""},
		"a bad fleet":                  {Config{Fleet: "a b"}, "fleet"},
		"a fleet with a comma":         {Config{Fleet: "a,b"}, "fleet"},
		"a prefix of hex digits":       {Config{Prefix: "abc0"}, "prefix"},
		"the same in upper case":       {Config{Prefix: "ABC0"}, "prefix"},
		"one character more":           {Config{Prefix: "abc-"}, ""},
		"a prefix that begins badly":   {Config{Prefix: "-x"}, "prefix"},
		"a prefix with a slash":        {Config{Prefix: "x/"}, "prefix"},
		"the longest prefix":           {Config{Prefix: strings.Repeat("x", 32)}, ""},
		"a longer prefix":              {Config{Prefix: strings.Repeat("x", 33)}, "prefix"},
		"an endpoint without a scheme": {Config{Endpoint: "/var/run/docker.sock"}, "endpoint"},
		"a relative socket":            {Config{Endpoint: "unix://docker.sock"}, "endpoint"},
		"http":                         {Config{Endpoint: "http://h:1"}, "endpoint"},
		"tcp without a port":           {Config{Endpoint: "tcp://h"}, "endpoint"},
		"tcp with a path":              {Config{Endpoint: "tcp://h:1/x"}, "endpoint"},
		"a bad image":                  {Config{Image: "UP:1"}, "image"},
		"an unknown runtime":           {Config{Runtime: "kata"}, "runtime"},
		"open egress, no network":      {Config{AllowOpenEgress: true}, "network"},
		"a network, no open egress":    {Config{Network: "net"}, "network"},
		"the host's network":           {Config{AllowOpenEgress: true, Network: "host"}, "network"},
		"the default bridge":           {Config{AllowOpenEgress: true, Network: "bridge"}, "network"},
		"another container's network":  {Config{AllowOpenEgress: true, Network: "container:x"}, "network"},
		"a bad driver":                 {Config{VolumeDriver: "a b"}, "volumeDriver"},
		"no starts":                    {Config{Starts: -1}, "starts"},
	} {
		p, err := New(c.conf)
		if c.field == "" && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if c.field != "" && (sandbox.CodeOf(err) != sandbox.Invalid || sandbox.AsError(err).Field != c.field) {
			t.Errorf("%s: %v, want invalid naming %s", what, err, c.field)
		}
		if p != nil {
			p.Close()
		}
	}
}

func TestImageReferences(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0", 64)
	for ref, want := range map[string]string{
		"a": "a:latest", "a:1": "a:1", "docker.io/library/a": "a:latest", "r.example/a/b": "r.example/a/b:latest",
		"localhost:5000/a": "localhost:5000/a:latest", "a" + digest: "a" + digest, "a:1" + digest: "a:1" + digest,
		"": "", "A": "", "a b": "", "a:": "", "../a": "", "a@sha256:0": "", "a?b": "", "a%2e": "", "a#b": "", strings.Repeat("0a", 32): "",
	} {
		got, err := normalImage(ref)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", ref, got, err, want)
		}
	}
}

// Labels are believed only where they agree with the object's name.
func TestParseLabels(t *testing.T) {
	p, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	spec := sandbox.Spec{Tenant: "t", Name: "a-b.c", Generation: "g-1"}
	id := identity{tenant: "t", name: "a-b.c", generation: "g-1"}
	for role, object := range map[string]string{
		roleSandbox: "/shoal-t-a-b.c.g-1", roleWorkspace: "shoal-t-a-b.c.g-1-workspace", roleSkills: "shoal-t-a-b.c.g-1-skills",
	} {
		labels := p.labels(&spec, role)
		if got, gotRole, ok := p.parse(object, labels); !ok || got != id || gotRole != role {
			t.Errorf("%s: %v, %s, %t", object, got, gotRole, ok)
		}
		for key, value := range map[string]string{
			LabelFleet: "other", LabelTenant: "u", LabelName: "x", LabelGeneration: "g-2", LabelRole: "engine",
		} {
			changed := p.labels(&spec, role)
			changed[key] = value
			if _, _, ok := p.parse(object, changed); ok {
				t.Errorf("%s is believed with %s=%s", object, key, value)
			}
		}
	}
}

// A claimed member of the pool is known by its container's name; its labels say
// what it was made as. Nothing else is known by another name than its labels'.
func TestParseRenamed(t *testing.T) {
	p, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	spec := sandbox.Spec{Tenant: sandbox.PoolTenant, Name: "m1", Generation: "g-1"}
	labels := p.labels(&spec, roleSandbox)
	want := identity{"t", "a-b.c", "g-1", "m1"}
	if got, _, ok := p.parse("/shoal-t-a-b.c.g-1", labels); !ok || got != want || p.container(got) != "shoal-t-a-b.c.g-1" {
		t.Errorf("%v, %t", got, ok)
	}
	if p.workspace(want) != "shoal-_pool-m1.g-1-workspace" || p.skills(want) != "shoal-_pool-m1.g-1-skills" {
		t.Errorf("its volumes: %s, %s", p.workspace(want), p.skills(want))
	}
	for _, object := range []string{
		"shoal-t-a.g-2", "shoal-_pool-m2.g-1", "shoal-T-a.g-1", "shoal-t-.g-1", "shoal-t.g-1", "other-t-a.g-1", "shoal-t-a.g-1-workspace",
	} {
		if id, _, ok := p.parse(object, labels); ok {
			t.Errorf("%s is believed: %v", object, id)
		}
	}
	spec.Tenant = "u"
	if _, _, ok := p.parse("shoal-t-a-b.c.g-1", p.labels(&spec, roleSandbox)); ok {
		t.Error("a sandbox that is no member of the pool is believed under another name")
	}
	if _, _, ok := p.parse("shoal-t-a.g-1-workspace", p.labels(&spec, roleWorkspace)); ok {
		t.Error("a volume is believed under another name")
	}
}

// No two identities share an object's name.
func FuzzObjectNames(f *testing.F) {
	f.Add("t", "a", "g", "t", "a.g", "g")
	f.Add("t", "a-workspace", "g", "t", "a", "g-workspace")
	p, err := New(Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, t1, n1, g1, t2, n2, g2 string) {
		one := identity{tenant: sandbox.Tenant(t1), name: sandbox.Name(n1), generation: g1}
		two := identity{tenant: sandbox.Tenant(t2), name: sandbox.Name(n2), generation: g2}
		if one == two || one.validate() != nil || two.validate() != nil {
			return
		}
		for _, role := range []string{roleSandbox, roleWorkspace, roleSkills} {
			if p.object(one, role) == p.object(two, role) {
				t.Errorf("%v and %v share %s", one, two, p.object(one, role))
			}
		}
		if !isObjectName(p.skills(one)) || p.skills(one) == p.conf.Prefix+"engine" {
			t.Errorf("%q is no name for the engine, or the marker's", p.skills(one))
		}
	})
}

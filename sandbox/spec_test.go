package sandbox_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"shoal/sandbox"
)

// change is one change of something valid and the field that must be named,
// "" when it stays valid.
type change[T any] struct {
	what  string
	do    func(*T)
	field string
}

func checkChanges[T any](t *testing.T, valid func() T, validate func(*T) error, cases []change[T]) {
	t.Helper()
	v := valid()
	if err := validate(&v); err != nil {
		t.Fatalf("the valid one: %v", err)
	}
	for _, c := range cases {
		v := valid()
		c.do(&v)
		err := validate(&v)
		if c.field == "" && err != nil {
			t.Errorf("%s: %v, want valid", c.what, err)
		}
		if c.field != "" && (sandbox.CodeOf(err) != sandbox.Invalid || sandbox.AsError(err).Field != c.field) {
			t.Errorf("%s: %v, want invalid naming %s", c.what, err, c.field)
		}
	}
}

func validSpec() sandbox.Spec {
	return sandbox.Spec{
		Tenant: "t", Name: "n", Generation: "g", Image: "registry.example:5000/a/b:1@sha256:" + strings.Repeat("0", 64),
		Limits: sandbox.DefaultLimits(), Egress: sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"example.com", "*.example.org:8443"}},
		Env: map[string]string{"A": "b"}, Metadata: map[string]string{"k": "v ü"}, Setup: []sandbox.Setup{{Shell: "true"}},
	}
}

func pairs(n int, value string) map[string]string {
	m := make(map[string]string, n)
	for i := range n {
		m[fmt.Sprintf("K%d", i)] = value
	}
	return m
}

func TestSpec(t *testing.T) {
	type s = sandbox.Spec
	checkChanges(t, validSpec, (*s).Validate, []change[s]{
		{"no tenant", func(s *s) { s.Tenant = "" }, "tenant"},
		{"no name", func(s *s) { s.Name = "" }, "name"},
		{"no generation", func(s *s) { s.Generation = "" }, "generation"},
		{"a generation with a dot", func(s *s) { s.Generation = "a.b" }, "generation"},
		{"no bucket", func(s *s) { s.Bucket = "" }, ""},
		{"a bucket with a dot", func(s *s) { s.Bucket = "a.b" }, "bucket"},
		{"no image", func(s *s) { s.Image = "" }, ""},
		{"the longest image", func(s *s) { s.Image = x(512) }, ""},
		{"a longer image", func(s *s) { s.Image = x(513) }, "image"},
		{"an image with a space", func(s *s) { s.Image = "a b" }, "image"},
		{"an image that is not ASCII", func(s *s) { s.Image = "bíld" }, "image"},
		{"an unknown mode", func(s *s) { s.Egress.Mode = "all" }, "egress.mode"},
		{"hosts without their mode", func(s *s) { s.Egress.Mode = sandbox.EgressNone }, "egress.hosts"},
		{"an allowlist without hosts", func(s *s) { s.Egress.Hosts = nil }, ""},
		{"an empty host", func(s *s) { s.Egress.Hosts = []string{""} }, "egress.hosts"},
		{"a host that is not ASCII", func(s *s) { s.Egress.Hosts = []string{"bücher.example"} }, "egress.hosts"},
		{"a host with a space", func(s *s) { s.Egress.Hosts = []string{"a b"} }, "egress.hosts"},
		{"the longest host", func(s *s) { s.Egress.Hosts = []string{x(260)} }, ""},
		{"a longer host", func(s *s) { s.Egress.Hosts = []string{x(261)} }, "egress.hosts"},
		{"the most hosts", func(s *s) { s.Egress.Hosts = strings.Split(strings.Repeat("a ", 1023)+"a", " ") }, ""},
		{"more hosts", func(s *s) { s.Egress.Hosts = strings.Split(strings.Repeat("a ", 1024)+"a", " ") }, "egress.hosts"},
		{"a bad variable", func(s *s) { s.Env = map[string]string{"A-B": ""} }, "env"},
		{"a NUL in a variable", func(s *s) { s.Env = map[string]string{"A": "\x00"} }, "env"},
		{"the most variables", func(s *s) { s.Env = pairs(256, "") }, ""},
		{"more variables", func(s *s) { s.Env = pairs(257, "") }, "env"},
		{"the largest environment", func(s *s) { s.Env = map[string]string{"A": x(64<<10 - 3)} }, ""},
		{"a larger environment", func(s *s) { s.Env = map[string]string{"A": x(64<<10 - 2)} }, "env"},
		{"the most metadata", func(s *s) { s.Metadata = pairs(64, x(1024)) }, ""},
		{"more metadata", func(s *s) { s.Metadata = pairs(65, "") }, "metadata"},
		{"longer metadata", func(s *s) { s.Metadata = map[string]string{"k": x(1025)} }, "metadata"},
		{"metadata that is no text", func(s *s) { s.Metadata = map[string]string{"k": "\xff"} }, "metadata"},
		{"an empty key", func(s *s) { s.Metadata = map[string]string{"": "v"} }, "metadata"},
		{"the longest key", func(s *s) { s.Metadata = map[string]string{x(64): "v"} }, ""},
		{"a longer key", func(s *s) { s.Metadata = map[string]string{x(65): "v"} }, "metadata"},
		{"a key with a slash", func(s *s) { s.Metadata = map[string]string{"a/b": "v"} }, "metadata"},
		{"the most set-up", func(s *s) { s.Setup = repeat(s.Setup[0], 16) }, ""},
		{"more set-up", func(s *s) { s.Setup = repeat(s.Setup[0], 17) }, "setup"},
		{"an empty set-up", func(s *s) { s.Setup[0].Shell = "" }, "setup.shell"},
		{"a set-up that takes too long", func(s *s) { s.Setup[0].Timeout = sandbox.Millis(sandbox.MaxForeground) + 1 }, "setup.timeoutMs"},
		{"a set-up with bad egress", func(s *s) { s.Setup[0].Egress = &sandbox.Egress{Mode: "x"} }, "setup.egress.mode"},
		{"a negative ttl", func(s *s) { s.TTL = -1 }, "ttlMs"},
		{"the longest ttl", func(s *s) { s.TTL = sandbox.Millis(sandbox.MaxTTL) }, ""},
		{"a longer ttl", func(s *s) { s.TTL = sandbox.Millis(sandbox.MaxTTL) + 1 }, "ttlMs"},
	})
}

func TestLimits(t *testing.T) {
	type l = sandbox.Limits
	most := sandbox.DefaultMaxLimits()
	checkChanges(t, sandbox.DefaultLimits, func(l *l) error { return l.Validate(most) }, []change[l]{
		{"the least cpu", func(l *l) { l.CPU = sandbox.MinCPU }, ""},
		{"less cpu", func(l *l) { l.CPU = math.Nextafter(sandbox.MinCPU, 0) }, "limits.cpu"},
		{"the most cpu", func(l *l) { l.CPU = most.CPU }, ""},
		{"more cpu", func(l *l) { l.CPU = math.Nextafter(most.CPU, 5) }, "limits.cpu"},
		{"cpu that is no number", func(l *l) { l.CPU = math.NaN() }, "limits.cpu"},
		{"endless cpu", func(l *l) { l.CPU = math.Inf(1) }, "limits.cpu"},
		{"negative cpu", func(l *l) { l.CPU = -1 }, "limits.cpu"},
		{"the least memory", func(l *l) { l.MemoryMB = sandbox.MinMemoryMB }, ""},
		{"less memory", func(l *l) { l.MemoryMB = sandbox.MinMemoryMB - 1 }, "limits.memoryMb"},
		{"the most memory", func(l *l) { l.MemoryMB = most.MemoryMB }, ""},
		{"more memory", func(l *l) { l.MemoryMB = most.MemoryMB + 1 }, "limits.memoryMb"},
		{"the least disk", func(l *l) { l.DiskMB = sandbox.MinDiskMB }, ""},
		{"less disk", func(l *l) { l.DiskMB = sandbox.MinDiskMB - 1 }, "limits.diskMb"},
		{"more disk", func(l *l) { l.DiskMB = most.DiskMB + 1 }, "limits.diskMb"},
		{"the least pids", func(l *l) { l.Pids = sandbox.MinPids }, ""},
		{"less pids", func(l *l) { l.Pids = sandbox.MinPids - 1 }, "limits.pids"},
		{"the most pids", func(l *l) { l.Pids = most.Pids }, ""},
		{"more pids", func(l *l) { l.Pids = most.Pids + 1 }, "limits.pids"},
	})
	if got := (sandbox.Limits{CPU: 2, Pids: 300}).Or(sandbox.DefaultLimits()); got != (sandbox.Limits{CPU: 2, MemoryMB: 2048, DiskMB: 2048, Pids: 300}) {
		t.Errorf("limits with defaults: %+v", got)
	}
}

func TestEgressWider(t *testing.T) {
	order := []sandbox.EgressMode{sandbox.EgressNone, sandbox.EgressAllowlist, sandbox.EgressOpen}
	for i, mode := range order {
		for j, ceiling := range order {
			if got := mode.Wider(ceiling); got != (i > j) {
				t.Errorf("%s wider than %s: %t", mode, ceiling, got)
			}
		}
	}
	if !sandbox.EgressMode("everything").Wider(sandbox.EgressOpen) {
		t.Error("an unknown mode is within every ceiling")
	}
	if !sandbox.EgressNone.Wider("typo") {
		t.Error("an unknown ceiling allows something")
	}
}

package sandbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"shoal/sandbox"
)

// boundary is one value beside an edge of the grammar.
type boundary struct {
	value string
	ok    bool
}

func checkAll(t *testing.T, field string, validate func(string) error, cases []boundary) {
	t.Helper()
	for _, c := range cases {
		err := validate(c.value)
		if (err == nil) != c.ok {
			t.Errorf("%s %.40q: %v, want valid %t", field, c.value, err, c.ok)
		}
		if err != nil && (sandbox.AsError(err).Code != sandbox.Invalid || sandbox.AsError(err).Field != field) {
			t.Errorf("%s %.40q: %v, want invalid naming %s", field, c.value, err, field)
		}
		if err != nil && (len(err.Error()) > 600 || strings.ContainsAny(err.Error(), "\n\x00\x1b")) {
			t.Errorf("%s: the message is long or unprintable: %q", field, err)
		}
	}
}

func x(n int) string { return strings.Repeat("x", n) }

func TestTenant(t *testing.T) {
	checkAll(t, "tenant", func(s string) error { return sandbox.Tenant(s).Validate() }, []boundary{
		{"a", true},
		{"0", true},
		{"z9", true},
		{x(32), true},
		{x(33), false},
		{"", false},
		{"A", false},
		{"_fleet", false},
		{"a-b", false},
		{"a.b", false},
		{"a b", false},
		{"ä", false},
		{"a\x00", false},
		{"`", false},
		{"{", false},
		{"/", false},
		{":", false},
	})
}

func TestName(t *testing.T) {
	checkAll(t, "name", func(s string) error { return sandbox.Name(s).Validate() }, []boundary{
		{"a", true},
		{"Z", true},
		{"0", true},
		{"a_b.c-d", true},
		{"a..b", true},
		{"a-", true},
		{x(101), true},
		{x(102), false},
		{"", false},
		{".a", false},
		{"-a", false},
		{"_a", false},
		{"a/b", false},
		{"a*", false},
		{"a>", false},
		{"a b", false},
		{"a=2Eb", false},
		{"a\n", false},
		{"é", false},
		{"a@", false},
		{"a[", false},
		{"\x1b[31m" + x(200), false},
	})
}

func TestTokens(t *testing.T) {
	cases := []boundary{
		{"a", true},
		{"_", true},
		{"-", true},
		{"A0_-", true},
		{x(64), true},
		{x(65), false},
		{"", false},
		{"a.b", false},
		{"a*", false},
		{"a b", false},
		{"ä", false},
		{"*", false},
	}
	checkAll(t, "tag", func(s string) error { return sandbox.Tag(s).Validate() }, cases)
	checkAll(t, "id", func(s string) error { return sandbox.CommandID(s).Validate() }, cases)
	checkAll(t, "generation", func(s string) error { return sandbox.ValidateID("generation", s) }, cases)
}

func TestPath(t *testing.T) {
	checkAll(t, "path", func(s string) error { return sandbox.ValidatePath("path", s) }, []boundary{
		{"/", true},
		{"/a", true},
		{"/a b/ü\n", true},
		{"/..a", true},
		{"/" + x(4095), true},
		{"/" + x(4096), false},
		{"", false},
		{"a", false},
		{"./a", false},
		{"/a/", false},
		{"//a", false},
		{"/a//b", false},
		{"/a/./b", false},
		{"/a/../b", false},
		{"/..", false},
		{"/a\x00", false},
	})
}

func TestEnvKey(t *testing.T) {
	checkAll(t, "env", sandbox.ValidateEnvKey, []boundary{
		{"A", true},
		{"_", true},
		{"a_1", true},
		{x(256), true},
		{x(257), false},
		{"", false},
		{"1A", false},
		{"A-B", false},
		{"A=B", false},
		{"A B", false},
		{"Ä", false},
		{"A\x00", false},
	})
}

func TestNewIDIsAToken(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		id := sandbox.NewID()
		if err := sandbox.ValidateID("id", id); err != nil || seen[id] {
			t.Fatalf("id %q: %v, seen %t", id, err, seen[id])
		}
		seen[id] = true
	}
}

func TestNameTokenIsBijective(t *testing.T) {
	for name, token := range map[sandbox.Name]string{"a.b": "a=2Eb", "a..b": "a=2E=2Eb", "abc": "abc", "a.": "a=2E"} {
		if got := name.Token(); got != token {
			t.Errorf("token of %s: %s, want %s", name, got, token)
		}
		if back, err := sandbox.ParseNameToken(token); err != nil || back != name {
			t.Errorf("name of %s: %s, %v; want %s", token, back, err, name)
		}
	}
	for _, token := range []string{"", "a.b", "=2Ea", "a=2eb", "a=", "a*", "a=2", "a b"} {
		if name, err := sandbox.ParseNameToken(token); err == nil {
			t.Errorf("token %q is taken for the name %q", token, name)
		}
	}
}

func TestMillisecondsRoundUp(t *testing.T) {
	for d, want := range map[time.Duration]sandbox.Milliseconds{
		0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, 2 * time.Second: 2000, -1: 0, -time.Millisecond: -1, 1<<63 - 1: 9223372036855,
	} {
		if got := sandbox.Millis(d); got != want {
			t.Errorf("%s is %d ms, want %d", d, got, want)
		}
	}
}

func FuzzNameToken(f *testing.F) {
	for _, seed := range []string{"a.b", "a=2Eb", "=2E", "a", "A-_.", "a..b.", "\x00", "ä"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if name := sandbox.Name(s); name.Validate() == nil {
			token := name.Token()
			if strings.ContainsAny(token, ". *>\t\n") {
				t.Errorf("the token %q of %q would split or match in a subject", token, s)
			}
			if back, err := sandbox.ParseNameToken(token); err != nil || back != name {
				t.Errorf("%q became %q and then %q, %v", s, token, back, err)
			}
		}
		if name, err := sandbox.ParseNameToken(s); err == nil && name.Token() != s {
			t.Errorf("two tokens of one name: %q and %q", s, name.Token())
		}
	})
}

func FuzzGrammar(f *testing.F) {
	for _, seed := range []string{"a", "/a/../b", "A=B", "-", "/", "\x00", "ſ", "/a\x00", "x\ny"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, err := range []error{
			sandbox.Tenant(s).Validate(), sandbox.Name(s).Validate(), sandbox.Tag(s).Validate(), sandbox.CommandID(s).Validate(),
			sandbox.ValidatePath("path", s), sandbox.ValidateEnvKey(s),
		} {
			if err == nil {
				continue
			}
			if !errors.Is(err, &sandbox.Error{Code: sandbox.Invalid}) || sandbox.AsError(err).Field == "" {
				t.Errorf("%q: %v, want invalid with a field", s, err)
			}
			if strings.ContainsAny(err.Error(), "\n\r\x00\x1b") || len(err.Error()) > 700 {
				t.Errorf("%q: the message carries it raw or without bound: %q", s, err)
			}
		}
		if sandbox.Tenant(s).Validate() == nil && strings.ContainsAny(s, "-_.") {
			t.Errorf("the tenant %q could be taken for a part of an object's name", s)
		}
		if sandbox.ValidatePath("path", s) == nil && (s[0] != '/' || strings.Contains(s+"/", "/../") || strings.Contains(s, "\x00")) {
			t.Errorf("the path %q is not clean", s)
		}
	})
}

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// The README's table of settings is the flags: none missing, none invented,
// each with the same words and default, and each with the variable it promises.
func TestReadmeTellsTheFlags(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string][2]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z0-9-]+)` \\| (.*?) ?\\| (.*) \\|$").FindAllStringSubmatch(string(readme), -1) {
		told[m[1]] = [2]string{m[2], m[3]}
	}
	var s settings
	parser, err := kong.New(&s, kong.DefaultEnvars("SHOAL"), kong.Vars{"state": "/var/lib/shoal", "endpoint": "unix:///var/run/docker.sock", "image": "shoal-sandbox:dev"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range parser.Model.Flags {
		if f.Name == "help" {
			continue
		}
		if env := "SHOAL_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")); !slices.Equal(f.Envs, []string{env}) {
			t.Errorf("--%s is given by %v, want %s", f.Name, f.Envs, env)
		}
		row, ok := told[f.Name]
		switch {
		case !ok:
			t.Errorf("the README does not tell --%s", f.Name)
		case row[1] != f.Help:
			t.Errorf("--%s: the README says %q, the flag %q", f.Name, row[1], f.Help)
		case f.Default != "" && f.Name != "state-dir" && row[0] != "`"+f.Default+"`":
			t.Errorf("--%s: the README says the default is %q, the flag %q", f.Name, row[0], f.Default)
		}
		delete(told, f.Name)
	}
	for name := range told {
		t.Errorf("the README tells --%s, which is no flag", name)
	}
}

func TestSettingsThatExclude(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--egress-ceiling", "open"},
		{"--provider", "e2b"},
		{"--nats-url", "nats://127.0.0.1:1", "--nats-port", "5"},
	} {
		var s settings
		parser, err := kong.New(&s, kong.Vars{"state": "x", "endpoint": "y", "image": "z"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(args); err == nil {
			t.Errorf("accepted: %v", args)
		}
	}
}

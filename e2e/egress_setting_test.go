package e2e_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Nothing that people can set, and nothing in the shipped programs, replaces
// the resolver or the dialer of the proxy.
func TestEgressNoSettingReachesTheDialer(t *testing.T) {
	t.Parallel()
	suspicious := regexp.MustCompile(`(?i)--[a-z-]*(resolv|dial|dns|origin|upstream|insecure)[a-z-]*`)
	for _, program := range []string{"worker", "shoal"} {
		path := filepath.Join(binaries, program)
		help, err := exec.Command(path, "--help").CombinedOutput()
		if err != nil {
			t.Fatalf("%s --help: %v", program, err)
		}
		if found := suspicious.FindAll(help, -1); len(found) > 0 {
			t.Errorf("%s has the flags %q", program, found)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{originsEnv, "egressWorker", "SHOAL_EGRESS_RESOLVER", "SHOAL_EGRESS_DIALER"} {
			if bytes.Contains(data, []byte(word)) {
				t.Errorf("%s contains %s", program, word)
			}
		}
	}
	self, err := os.ReadFile(filepath.Join(binaries, "egress-worker"))
	if err != nil || !bytes.Contains(self, []byte(originsEnv)) {
		t.Errorf("the search finds nothing even where it is: %v", err)
	}
	assigned := regexp.MustCompile(`\b(Resolver|Dialer|HostAddrs)\s*[:=]`)
	// The benchmark's worker, inside its own program, knows its origin alone.
	for _, dir := range []string{"cmd/worker", "cmd/shoal", "cmd/agent", "cmd/dockerfilter", "fleet"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			if found := assigned.Find(source); found != nil {
				t.Errorf("%s sets %q", path, found)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// secured is a server from nats.conf in this process, with a key pair for each
// role; it returns its address and the paths of the seeds. It sets environment
// variables, so its test is not parallel.
func secured(t *testing.T) (url string, seeds map[string]string) {
	t.Helper()
	seeds = map[string]string{}
	t.Setenv("SHOAL_NATS_STORE", t.TempDir())
	for _, role := range []string{"WORKER", "OPERATOR", "T1", "T2"} {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, err := pair.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		seed, err := pair.Seed()
		if err != nil {
			t.Fatal(err)
		}
		seeds[role] = filepath.Join(t.TempDir(), role)
		if err := os.WriteFile(seeds[role], seed, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("SHOAL_NKEY_"+role, public)
	}
	o, err := server.ProcessConfigFile(filepath.Join("..", "..", "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	o.Port, o.HTTPPort, o.NoSigs, o.NoLog = server.RANDOM_PORT, 0, true, true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server is not ready after 10 s")
	}
	return s.ClientURL(), seeds
}

// The operator makes the buckets, again without harm; a tenant cannot.
func TestInitOnASecuredServer(t *testing.T) {
	url, seeds := secured(t)
	run := func(args ...string) (string, int) {
		var out, errs bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
		code := a.main(t.Context(), append([]string{"--nats-url", url}, args...))
		return out.String() + errs.String(), code
	}
	for range 2 {
		if text, code := run("--nats-nkey", seeds["OPERATOR"], "init"); code != 0 {
			t.Fatalf("code %d, %s", code, text)
		}
	}
	if text, code := run("--nats-nkey", seeds["T1"], "init"); code == 0 || !strings.Contains(text, "use the operator's") {
		t.Errorf("a tenant's init: code %d, %s", code, text)
	}
	if text, code := run("--nats-nkey", seeds["T1"], "--tenant", "t1", "ls"); code == 0 || !strings.Contains(text, "no worker answers") {
		t.Errorf("code %d, %s", code, text)
	}
	if text, code := run("--nats-nkey", seeds["T1"], "--tenant", "t2", "ls"); code == 0 || !strings.Contains(text, "use those of tenant t2") {
		t.Errorf("another tenant's name: code %d, %s", code, text)
	}
}

package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"shoal/docker/dockertest"
	"shoal/docker/filter"
)

// TestServe runs the command against the real engine: what it lets through, how
// its socket looks, and that it ends when told to.
func TestServe(t *testing.T) {
	dockertest.Client(t)
	socket := filepath.Join(t.TempDir(), "filter.sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"--listen=unix://" + socket, "--engine=" + dockertest.Endpoint()}, io.Discard, io.Discard)
	}()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	get := func(target string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://docker"+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	for end := time.Now().Add(10 * time.Second); get("/_ping") != http.StatusOK; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the filter does not answer in 10 s")
		}
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if status := get("/v1.41/info"); status != http.StatusForbidden {
		t.Errorf("the host's state is answered with %d", status)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the command does not end")
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestCheck prints the policy, in the form that --policy reads, and what was
// found.
func TestCheck(t *testing.T) {
	dockertest.Client(t)
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--check", "--fleet=blue", "--engine=" + dockertest.Endpoint()}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	text, findings, ok := strings.Cut(out.String(), "\n}\n")
	if !ok || !strings.Contains(findings, "seccomp") || !strings.Contains(findings, "policy: host bind is refused") {
		t.Errorf("output %s", out.String())
	}
	if _, err := filter.ParsePolicy([]byte(text + "\n}")); err != nil {
		t.Errorf("the printed policy: %v", err)
	}
	name := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(name, []byte(text+"\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := run(t.Context(), []string{"--check", "--policy=" + name, "--engine=" + dockertest.Endpoint()}, &again, io.Discard); err != nil {
		t.Fatal(err)
	}
	if out.String() != again.String() {
		t.Error("the policy read from a file is another one")
	}
}

// TestSettings refuses settings that would open the door or make no sense.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte(`{"minAPI":"1.41","surprise":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--surprise"}, "unknown flag"},
		{[]string{"--policy=" + bad}, "read policy"},
		{[]string{"--policy=" + dir + "/none"}, "read policy"},
		{[]string{"--prefix=cafe"}, "prefix"},
		{[]string{"--image=deadbeef"}, "id"},
		{[]string{"--network=host"}, "networks"},
		{[]string{"--engine=http://x"}, "--engine"},
	} {
		if err := run(t.Context(), c.args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v", c.args, err)
		}
	}
	for _, c := range []struct{ listen, want string }{
		{"tcp://127.0.0.1:0", "TLS"},
		{"http://x", "--listen"},
		{"/run/x.sock", "--listen"},
	} {
		f := flags{Listen: c.listen}
		if _, _, err := f.listen(t.Context()); err == nil {
			t.Errorf("%s is accepted", c.listen)
		} else if c.want == "--listen" && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v", c.listen, err)
		}
	}
	f := flags{Listen: "tcp://0.0.0.0:0", InsecureTCP: true}
	if _, _, err := f.listen(t.Context()); err == nil {
		t.Error("insecure TCP listens on every address")
	}
}

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/docker/dockertest"
	"shoal/messaging/messagingtest"
)

// startFails runs a worker that cannot start and returns what it says.
func startFails(t *testing.T, prefix []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	line := append(append(prefix, filepath.Join(binaries, "worker")), args...)
	out, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != 1 {
		t.Errorf("worker %v: %v, want exit code 1\n%s", args, err, out)
	}
	return string(out)
}

// What a worker that cannot start says in one line: why, and what to do. No
// password is in it.
func TestWorkerSaysWhyItCannotStart(t *testing.T) {
	t.Parallel()
	icc := dockertest.Network(t, dockertest.Client(t), map[string]string{"com.docker.network.bridge.enable_icc": "true"})
	locked := strings.TrimPrefix(messagingtest.Listening(t, "user", "right").ClientURL(), "nats://")
	shut := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", shut)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(shut, 0); err != nil {
		t.Fatal(err)
	}
	var powerless []string
	if os.Geteuid() == 0 { // root needs no permission as long as it has this capability
		powerless = []string{"setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override"}
	}
	for _, c := range []struct {
		name   string
		prefix []string
		args   []string
		want   string
	}{
		{"no engine", nil, []string{"--docker-endpoint", "unix:///nobody.sock"}, "no Docker engine answers; start it"},
		{"no permission on the socket", powerless, []string{"--docker-endpoint", "unix://" + shut}, "no permission on the Docker socket; add yourself to its group"},
		{"a network that joins sandboxes", nil, []string{"--allow-open-egress", "--network", icc}, "sandboxes could reach each other; make it anew"},
		{"no NATS", nil, []string{"--nats-url", "nats://u:topsecret@127.0.0.1:1"}, "no NATS server answers at nats://127.0.0.1:1"},
		{"wrong credentials", nil, []string{"--nats-url", "nats://user:topsecret@" + locked}, "NATS refuses these credentials"},
		{"no address", nil, []string{"--nats-url", "nats://u:topsecret@127.0.0.1:port"}, "is not the address of a NATS server"},
	} {
		args := append([]string{"--fleet", "test-none", "--state-dir", t.TempDir()}, c.args...)
		if out := startFails(t, c.prefix, args...); !strings.Contains(out, c.want) || strings.Contains(out, "topsecret") {
			t.Errorf("%s: %s\nwant %q and no password", c.name, out, c.want)
		}
	}
}

// ownState: what a worker keeps is its user's alone, and one worker's at a time.
func ownState(t *testing.T, creds credentials, state string) {
	for name, want := range map[string]os.FileMode{"": 0o700, "nats.json": 0o600, "lock": 0o600} {
		st, err := os.Stat(filepath.Join(state, name))
		if err != nil {
			t.Error(err)
		} else if st.Mode().Perm() != want {
			t.Errorf("%q is open to %s, want %s", name, st.Mode(), want)
		}
	}
	if host := strings.TrimPrefix(creds.URL, "nats://"); !strings.HasPrefix(host, "127.0.0.1:") {
		t.Errorf("the embedded server listens at %s, want the loopback alone", creds.URL)
	}
	for _, opt := range []nats.Option{nats.Name("nobody"), nats.UserInfo(creds.User, "wrong")} {
		nc, err := nats.Connect(creds.URL, opt)
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("without the password: %v, want an authorization violation", err)
		}
		if nc != nil {
			nc.Close()
		}
	}
	if out := startFails(t, nil, "--fleet", "test-none", "--state-dir", state); !strings.Contains(out, "another worker keeps its state in") {
		t.Errorf("a second worker on the same directory says %s", out)
	}
}

// A worker is alive from its start to its end, and ready while it serves with
// an engine and a link to NATS. On SIGTERM it ends in order.
func TestHealth(t *testing.T) {
	t.Parallel()
	addr := "127.0.0.1:" + strconv.Itoa(freePort(t))
	f := newFleet(t, 1, "--http-addr", addr)
	want := func(path string, code int) {
		t.Helper()
		eventually(t, 30*time.Second, fmt.Sprintf("%s says %d", path, code), func() error {
			answer, err := http.Get("http://" + addr + path)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if answer.StatusCode != code {
				return fmt.Errorf("it says %s", answer.Status)
			}
			return nil
		})
	}
	want("/readyz", http.StatusOK)
	want("/healthz", http.StatusOK)
	want("/", http.StatusNotFound)
	f.bus.stop()
	want("/readyz", http.StatusServiceUnavailable)
	want("/healthz", http.StatusOK)
	f.bus.start(t)
	want("/readyz", http.StatusOK)
	w := f.workers[0]
	w.signal(syscall.SIGTERM)
	select {
	case <-w.done:
	case <-time.After(time.Minute):
		t.Fatal("the worker does not end on SIGTERM")
	}
	if code := w.cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(w.output(), `"msg":"drained"`) {
		t.Errorf("after SIGTERM: code %d\n%s", code, tail([]byte(w.output()), 4<<10))
	}
}

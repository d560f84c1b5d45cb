package e2e_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"shoal/docker/dockertest"
	"shoal/e2b"
	"shoal/e2b/e2btest"
	"shoal/image"
	"shoal/messaging"
	"shoal/sandbox"
)

// TestE2BWorkers runs two workers on one fake account, whose sandboxes are
// containers made by the template that the command line prints.
func TestE2BWorkers(t *testing.T) {
	t.Parallel()
	dockertest.NeedImage(t)
	plan, err := e2b.Template(e2b.TemplateOptions{Image: "registry.example.com/shoal-sandbox:1"})
	if err != nil {
		t.Fatal(err)
	}
	fake := e2btest.New(t, e2btest.Config{Backend: e2btest.NewDocker(t, image.Name(), plan.Build, "")})
	f := newFleet(t, 2, "--provider", "e2b", "--e2b-settings", e2bSettings(t, fake))
	box := f.create(messaging.CreateRequest{})

	t.Run("at most two requests for a short command", func(t *testing.T) { e2bRequests(t, f, fake, box) })
	t.Run("egress goes through the tunnel", func(t *testing.T) {
		out := f.run(box, "curl -s -m 20 -o /dev/null -w '%{http_code}' http://example.com; curl -s --noproxy '*' -m 5 http://1.1.1.1 || echo no way")
		if string(out.Stdout) != "403no way\n" {
			t.Errorf("%q", out.Stdout)
		}
	})
	t.Run("a suspended sandbox is woken by its use", func(t *testing.T) {
		if _, err := f.client.Suspend(t.Context(), messaging.SuspendRequest{Target: box, Mode: sandbox.SuspendMemory}); err != nil {
			t.Fatal(err)
		}
		if out := f.run(box, "echo awake"); string(out.Stdout) != "awake\n" {
			t.Errorf("%q", out.Stdout)
		}
	})
	t.Run("a worker killed in mid-output is replaced and no byte is lost", func(t *testing.T) {
		gap := takeover(t, f, box, func(p *process) { p.kill() })
		t.Logf("next byte %s after kill -9", gap)
	})
	if d, err := f.client.Destroy(t.Context(), box); err != nil || !d.Existed || len(fake.Sandboxes()) != 0 {
		t.Errorf("%+v, %v, %+v", d, err, fake.Sandboxes())
	}
	for _, w := range f.workers {
		if strings.Contains(w.output(), e2btest.Key) {
			t.Errorf("%s logged the key", w.name)
		}
	}
}

// e2bSettings writes a worker's settings for fake.
func e2bSettings(t *testing.T, fake *e2btest.Server) string {
	t.Helper()
	data, err := json.Marshal(map[string]string{
		"apiKey": e2btest.Key, "template": "shoal", "apiURL": fake.APIURL(), "domain": fake.Domain(),
	})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "e2b.json")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// e2bRequests counts what reaches E2B in steady state: inputs alone.
func e2bRequests(t *testing.T, f *fleet, fake *e2btest.Server, box messaging.Target) {
	t.Helper()
	for range 3 {
		f.run(box, "true")
	}
	time.Sleep(100 * time.Millisecond)
	fake.Forget()
	const commands = 20
	for range commands {
		f.run(box, "true")
	}
	time.Sleep(100 * time.Millisecond)
	requests := slices.DeleteFunc(fake.Requests(), func(r e2btest.Request) bool {
		return r.Method == http.MethodGet && r.Path == "/v2/sandboxes" // the sweep's, each second here
	})
	for _, r := range requests {
		if !strings.HasSuffix(r.Path, "/SendInput") {
			t.Errorf("%s %s", r.Method, r.Path)
		}
	}
	t.Logf("%d requests for %d commands", len(requests), commands)
	if len(requests) > 2*commands+2 { // two for the stream's own signs of life
		t.Errorf("%d requests for %d commands", len(requests), commands)
	}
}

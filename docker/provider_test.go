package docker_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newProvider returns a provider of a fleet of its own whose default image is
// the agent's stand-in: "serve" waits, the attach program echoes.
func newProvider(t *testing.T, change ...func(*docker.Config)) (*docker.Provider, string) {
	t.Helper()
	fleet := dockertest.Fleet(t)
	conf := docker.Config{Fleet: fleet, Endpoint: dockertest.Endpoint()}
	for _, c := range change {
		c(&conf)
	}
	if conf.Image == "" {
		conf.Image = dockertest.NewRegistry(t, ours).Ref(t, "standin:1")
	}
	p, err := docker.New(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, fleet
}

// ours are the labels of an image that is built FROM ours.
var ours = map[string]string{sandbox.AgentLabel: "1"}

func newSpec(name string) sandbox.Spec {
	return sandbox.Spec{
		Tenant: "t1", Name: sandbox.Name(name), Generation: sandbox.NewID(), Bucket: "bucket-1",
		Limits: sandbox.Limits{CPU: 0.5, MemoryMB: 128, DiskMB: 64, Pids: 128},
		Egress: sandbox.Egress{Mode: sandbox.EgressNone},
	}
}

func mustCreate(t *testing.T, p *docker.Provider, spec sandbox.Spec) sandbox.Handle {
	t.Helper()
	h, err := p.Create(t.Context(), spec, nil)
	if err != nil {
		t.Fatalf("create: %v (%v)", err, cause(err))
	}
	return h
}

// wantCode fails unless err carries code, and never shows the engine's words.
func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != code {
		t.Fatalf("code %q, want %q: %v (%v)", got, code, err, cause(err))
	}
	if err != nil && strings.Contains(err.Error(), "/var/") {
		t.Errorf("the message shows a path of the host: %v", err)
	}
}

func cause(err error) error {
	if u, ok := err.(interface{ Unwrap() error }); ok { // the next link only
		return u.Unwrap()
	}
	return nil
}

// eventually waits at most 10 s for ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in 10 s: %s", what)
		}
	}
}

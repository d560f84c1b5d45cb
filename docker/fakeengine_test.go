package docker

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"shoal/sandbox"
)

// fakeEngine answers by a table, for what a real engine does not do on demand.
type fakeEngine struct {
	*httptest.Server

	mu      sync.Mutex
	calls   []string                                          // method and path, in order
	answers map[string]func(http.ResponseWriter, *fakeEngine) // by "METHOD /path" without the version
	version string
	state   string // of every container
}

func newFakeEngine(t *testing.T) *fakeEngine {
	t.Helper()
	f := &fakeEngine{version: "1.41", state: "running", answers: map[string]func(http.ResponseWriter, *fakeEngine){}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeEngine) provider(t *testing.T) *Provider {
	t.Helper()
	p, err := New(Config{Endpoint: "tcp://" + f.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, r.Method+" "+r.URL.Path)
	w.Header().Set("Api-Version", f.version)
	path := r.URL.Path
	if strings.HasPrefix(path, "/v") {
		path = path[strings.Index(path[1:], "/")+1:]
	}
	if answer := f.answers[r.Method+" "+path]; answer != nil {
		answer(w, f)
		return
	}
	switch {
	case path == "/_ping":
	case strings.HasSuffix(path, "/json"):
		_ = json.NewEncoder(w).Encode(map[string]any{ // the test's own connection
			"Id": "abc", "Name": "/shoal-t-n.g", "State": map[string]any{"Status": f.state},
			"Config": map[string]any{"Labels": map[string]string{
				LabelFleet: DefaultFleet, LabelTenant: "t", LabelName: "n", LabelGeneration: "g", LabelRole: roleSandbox,
			}},
		})
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func (f *fakeEngine) on(call string, answer func(w http.ResponseWriter, f *fakeEngine)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[call] = answer
}

func (f *fakeEngine) set(state string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = state
}

func (f *fakeEngine) did() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.calls...)
}

// says answers with a refusal.
func says(status int, message string) func(http.ResponseWriter, *fakeEngine) {
	return func(w http.ResponseWriter, _ *fakeEngine) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": message}) // the test's own connection
	}
}

var handle = sandbox.Handle{Tenant: "t", Name: "n", Generation: "g"}

const object = "shoal-t-n.g"

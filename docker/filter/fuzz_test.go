package filter_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"shoal/docker/filter"
)

// engineTypes are the types that the engine decodes a body into.
var engineTypes = map[string]func() any{
	"containers/create": func() any { return new(container.CreateRequest) },
	"exec":              func() any { return new(container.ExecOptions) },
	"start":             func() any { return new(container.ExecStartOptions) },
	"volumes/create":    func() any { return new(volume.CreateOptions) },
	"networks/create":   func() any { return new(network.CreateRequest) },
}

// typeOf names the type of a target's body, "" for a call without one.
func typeOf(target string) string {
	p, _, _ := strings.Cut(target, "?")
	for _, suffix := range []string{"containers/create", "volumes/create", "networks/create"} {
		if strings.HasSuffix(p, suffix) {
			return suffix
		}
	}
	if last := path.Base(p); last == "exec" || last == "start" && strings.Contains(p, "/exec/") {
		return last
	}
	return ""
}

// FuzzBody: whatever body is admitted, the engine's own decoder makes the same
// of it as of what was written anew. Nothing that the engine would have seen is
// lost, and nothing is seen otherwise.
func FuzzBody(f *testing.F) {
	for _, file := range []string{"testdata/dockerproxy-cases.json", "testdata/shoal-cases.json"} {
		cases := readCases(f, file)
		for i := range cases.Cases {
			for _, s := range cases.Cases[i].steps() {
				if s.Body != "" && len(s.Body) < 8<<10 && typeOf(s.Path) != "" {
					f.Add(corpusNames.in(s.Path), corpusNames.in(s.Body))
				}
			}
		}
	}
	policies := bothPolicies(f)
	f.Fuzz(func(t *testing.T, target, body string) {
		if typeOf(target) == "" {
			return
		}
		for _, policy := range policies {
			if _, complaint := compareBodies(t, policy, target, body); complaint != "" {
				t.Fatal(complaint)
			}
		}
	})
}

func bothPolicies(t testing.TB) []*filter.Policy {
	t.Helper()
	return []*filter.Policy{referencePolicy(t), defaultPolicy(t)}
}

// compareBodies reports whether a body is admitted and, if so, in what the
// engine's view of it differs from its view of what was written anew.
func compareBodies(t testing.TB, policy *filter.Policy, target, body string) (admitted bool, complaint string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
	r.RequestURI = target
	r.Header = http.Header{"Content-Type": {"application/json"}, "Connection": {"Upgrade"}, "Upgrade": {"tcp"}}
	call, refusal := policy.Judge(r)
	if refusal != nil {
		return false, ""
	}
	theirs, ours := engineTypes[typeOf(target)](), engineTypes[typeOf(target)]()
	if err := json.NewDecoder(strings.NewReader(body)).Decode(theirs); err != nil {
		return true, fmt.Sprintf("admitted, but the engine cannot decode it: %v", err)
	}
	if err := json.Unmarshal(call.Body, ours); err != nil {
		return true, fmt.Sprintf("the engine cannot decode what was written anew: %v\n%s", err, call.Body)
	}
	if diff := cmp.Diff(theirs, ours, cmpopts.EquateEmpty()); diff != "" {
		return true, fmt.Sprintf("the engine would see something else:\n%s\nsent: %s\nanew: %s", diff, body, call.Body)
	}
	return true, ""
}

// FuzzTarget: whatever target is admitted, the engine's router sees the very
// path that was judged, and the same values of the query, each once.
func FuzzTarget(f *testing.F) {
	for _, file := range []string{"testdata/dockerproxy-cases.json", "testdata/shoal-cases.json"} {
		cases := readCases(f, file)
		for i := range cases.Cases {
			for _, s := range cases.Cases[i].steps() {
				f.Add(s.Method, corpusNames.in(s.Path))
			}
		}
	}
	policies := bothPolicies(f)
	f.Fuzz(func(t *testing.T, method, target string) {
		for _, policy := range policies {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.Method, r.RequestURI = method, target
			call, refusal := policy.Judge(r)
			if refusal != nil {
				continue
			}
			theirs, err := url.ParseRequestURI(target)
			if err != nil {
				t.Fatalf("%q is admitted, but the engine cannot parse it: %v", target, err)
			}
			ours, err := url.ParseRequestURI(call.Target)
			if err != nil {
				t.Fatalf("%q was written anew as %q: %v", target, call.Target, err)
			}
			if ours.Path != theirs.Path || ours.RawPath != "" || path.Clean(ours.Path) != ours.Path || ours.Path != strings.SplitN(target, "?", 2)[0] {
				t.Fatalf("%q: the engine sees %q, judged was %q", target, theirs.Path, ours.Path)
			}
			for key, values := range theirs.Query() {
				if len(values) != 1 {
					t.Fatalf("%q: %s is there %d times", target, key, len(values))
				}
			}
			if call.Rule != "container.list" && call.Rule != "volume.list" { // those values are JSON, written anew
				if diff := cmp.Diff(theirs.Query(), ours.Query()); diff != "" {
					t.Fatalf("%q: the query changed:\n%s", target, diff)
				}
			}
		}
	})
}

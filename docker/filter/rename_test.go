package filter_test

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"shoal/docker/filter"
)

func warmPolicy(t testing.TB) *filter.Policy {
	t.Helper()
	policy, err := filter.DefaultPolicy(filter.Settings{WarmPool: true})
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// A container gets another name once: out of the pool, under its generation.
func TestRename(t *testing.T) {
	t.Parallel()
	policy := warmPolicy(t)
	const member = "shoal-_pool-m1.g1"
	for _, c := range []struct{ old, now, rule string }{
		{member, "shoal-t1-demo.g1", ""},
		{member, "shoal-t1-de.mo-x.g1", ""},
		{member, "shoal-t1-demo.g2", "container.rename"},
		{member, "shoal-_pool-m2.g1", "container.rename"},
		{member, member, "container.rename"},
		{member, "shoal-t1-demo.g1.g1-workspace", "container.rename"},
		{member, "shoal-t1-demo", "container.rename"},
		{member, "shoal-engine", "container.rename"},
		{member, "victim", "query.value"},
		{ourName, "shoal-t1-other.g1", "container.rename"},
		{ourName, "shoal-_pool-m1.g1", "container.rename"},
		{"victim", "shoal-t1-demo.g1", "path.name"},
		{"deadbeef", "shoal-t1-demo.g1", "path.name"},
	} {
		target := "/v1.41/containers/" + c.old + "/rename?name=" + c.now
		if rule := judge(t, policy, "POST", target, ""); rule != c.rule {
			t.Errorf("%s to %s is refused by %q, want %q", c.old, c.now, rule, c.rule)
		}
		if rule := judge(t, defaultPolicy(t), "POST", target, ""); rule == "" {
			t.Errorf("%s to %s passes without a warm pool", c.old, c.now)
		}
	}
	for _, query := range []string{"", "?name=", "?name=shoal-t1-demo.g1&name=shoal-t1-demo.g1", "?name=shoal-t1-demo.g1&force=1"} {
		if judge(t, policy, "POST", "/v1.41/containers/"+member+"/rename"+query, "") == "" {
			t.Errorf("%q passes", query)
		}
	}
	if judge(t, policy, "POST", "/v1.41/containers/"+member+"/rename?name=shoal-t1-demo.g1", "{}") == "" {
		t.Error("a rename with a body passes")
	}
}

// The labels of a renamed container bind its generation and the pool alone.
func TestOwnsRenamed(t *testing.T) {
	t.Parallel()
	labels := func(tenant, generation string) string {
		return strings.NewReplacer(`"t1"`, `"`+tenant+`"`, `"g1"`, `"`+generation+`"`).Replace(ourLabels)
	}
	for _, c := range []struct {
		labels string
		status int
	}{
		{labels("_pool", "g1"), http.StatusCreated},
		{labels("t2", "g1"), http.StatusForbidden},
		{labels("_pool", "g2"), http.StatusForbidden},
		{strings.Replace(labels("_pool", "g1"), `"main"`, `"other"`, 1), http.StatusForbidden},
		{strings.Replace(labels("_pool", "g1"), `"sandbox"`, `"workspace"`, 1), http.StatusForbidden},
	} {
		inspected := fmt.Sprintf(`{"Id":%q,"Name":"/%s","Config":{"Labels":%s}}`, corpusID, ourName, c.labels)
		engine := newFakeEngine(t, map[string]string{"containers/" + ourName + "/json": inspected},
			"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		conn, err := net.Dial("tcp", startFilter(t, warmPolicy(t), engine.dial, slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		body := `{"Cmd":["/opt/shoal/bin/attach","/run/shoal/agent.sock"],"User":"0:0","AttachStdin":true,"AttachStdout":true,"AttachStderr":true}`
		cl := &client{conn, bufio.NewReader(conn)}
		cl.send(fmt.Appendf(nil, "POST /v1.41/containers/%s/exec HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", ourName, len(body), body))
		if got := cl.status("POST"); got != c.status {
			t.Errorf("%s: %d, want %d", c.labels, got, c.status)
		}
		_ = conn.Close()
	}
}

// New limits are all there, within the maxima of a create, and nothing else is.
func TestUpdate(t *testing.T) {
	t.Parallel()
	policy := warmPolicy(t)
	body := func(memory, swap, cpus, pids int64) string {
		return fmt.Sprintf(`{"Memory":%d,"MemorySwap":%d,"NanoCpus":%d,"PidsLimit":%d}`, memory, swap, cpus, pids)
	}
	const gib = 1 << 30
	target := "/v1.41/containers/" + ourName + "/update"
	for _, c := range []struct{ body, rule string }{
		{body(gib, gib, 1e9, 512), ""},
		{body(8*gib, 8*gib, 4e9, 200+10*4096), ""},
		{body(8*gib+1, 8*gib+1, 1e9, 512), "container.memory"},
		{body(0, 0, 1e9, 512), "container.memory"},
		{body(-1, -1, 1e9, 512), "container.memory"},
		{body(gib, -1, 1e9, 512), "container.swap"},
		{body(gib, 2*gib, 1e9, 512), "container.swap"},
		{body(gib, gib, 4e9+1, 512), "container.cpus"},
		{body(gib, gib, 0, 512), "container.cpus"},
		{body(gib, gib, 1e9, 200+10*4096+1), "container.pids"},
		{body(gib, gib, 1e9, -1), "container.pids"},
		{body(gib, gib, 1e9, 0), "container.pids"},
		{`{}`, "container.memory"},
		{`{"Memory":1}`, "container.swap"},
		{strings.Replace(body(gib, gib, 1e9, 512), "Memory", "memory", 1), "json.strict"},
		{body(gib, gib, 1e9, 512) + "{}", "json.strict"},
	} {
		if rule := judge(t, policy, "POST", target, c.body); rule != c.rule {
			t.Errorf("%s is refused by %q, want %q", c.body, rule, c.rule)
		}
	}
	if judge(t, defaultPolicy(t), "POST", target, body(gib, gib, 1e9, 512)) == "" {
		t.Error("it passes without a warm pool")
	}
	if judge(t, policy, "POST", "/v1.41/containers/victim/update", body(gib, gib, 1e9, 512)) == "" {
		t.Error("it passes for a container that is not ours")
	}
	valid := decode(t, body(gib, gib, 1e9, 512))
	for _, f := range jsonFields(reflect.TypeFor[container.UpdateConfig]()) {
		if _, ok := valid[f.name]; !ok {
			refuseKey(t, policy, target, valid, f.name, some(f.typ))
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(" "+body(gib, gib, 1e9, 512)))
	r.RequestURI = target
	r.Header.Set("Content-Type", "application/json")
	if call, refusal := policy.Judge(r); refusal != nil || string(call.Body) != body(gib, gib, 1e9, 512) || !call.Change {
		t.Errorf("%+v, %v", call, refusal)
	}
}

// A rule for renaming binds what it names.
func TestValidateRename(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*filter.Policy){
		"no value":         func(p *filter.Policy) { p.Roles["sandbox"].Rename.Value = "" },
		"unknown label":    func(p *filter.Policy) { p.Roles["sandbox"].Rename.Free = []string{"shoal.tenant", "shoal.disk"} },
		"label that stays": func(p *filter.Policy) { p.Roles["sandbox"].Rename.Free = []string{"shoal.name"} },
		"a volume": func(p *filter.Policy) {
			role := p.Roles["skills"]
			role.Rename = p.Roles["sandbox"].Rename
			p.Roles["skills"] = role
		},
	} {
		p := warmPolicy(t)
		change(p)
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), "policy: ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

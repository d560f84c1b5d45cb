package filter_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"shoal/docker/filter"
)

const (
	ourName      = "shoal-t1-demo.g1"
	foreignExec  = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
	powerfulExec = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	ourLabels    = `{"shoal.fleet":"main","shoal.tenant":"t1","shoal.name":"demo","shoal.generation":"g1",` +
		`"shoal.role":"sandbox","shoal.bucket":"b1","shoal.disk":"2048"}`
)

func defaultPolicy(t testing.TB) *filter.Policy {
	t.Helper()
	policy, err := filter.DefaultPolicy(filter.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// TestCorpusDefault drives our own calls, and what lies next to them, against
// the default policy.
func TestCorpusDefault(t *testing.T) {
	t.Parallel()
	owners := map[string]string{
		"containers/" + ourName + "/json":  fmt.Sprintf(`{"Id":%q,"Name":"/%s","Config":{"Labels":%s}}`, corpusID, ourName, ourLabels),
		"containers/" + corpusID + "/json": fmt.Sprintf(`{"Id":%q,"Name":"/%s","Config":{"Labels":%s}}`, corpusID, ourName, ourLabels),
		"containers/shoal-t1-fake.g1/json": fmt.Sprintf(`{"Id":%q,"Name":"/shoal-t1-fake.g1","Config":{"Labels":%s}}`, corpusID, ourLabels),
		"containers/shoal-t1-blue.g1/json": fmt.Sprintf(`{"Id":%q,"Name":"/shoal-t1-blue.g1","Config":{"Labels":%s}}`,
			corpusID, strings.NewReplacer("main", "blue", "demo", "blue").Replace(ourLabels)),
		"containers/" + foreignExec + "/json": fmt.Sprintf(`{"Id":%q,"Name":"/victim","Config":{"Labels":%s}}`, foreignExec, ourLabels),
		"exec/" + corpusExec + "/json":        fmt.Sprintf(`{"ContainerID":%q,"ProcessConfig":{"privileged":false}}`, corpusID),
		"exec/" + foreignExec + "/json":       fmt.Sprintf(`{"ContainerID":%q,"ProcessConfig":{"privileged":false}}`, foreignExec),
		"exec/" + powerfulExec + "/json":      fmt.Sprintf(`{"ContainerID":%q,"ProcessConfig":{"privileged":true}}`, corpusID),
	}
	file := readCases(t, "testdata/shoal-cases.json")
	for i := range file.Cases {
		c := &file.Cases[i]
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			runCase(t, c, defaultPolicy(t), nil, owners)
		})
	}
}

// judge judges a request without a connection and returns the rule that refused
// it, or "".
func judge(t testing.TB, policy *filter.Policy, method, target, body string) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "/", strings.NewReader(body))
	r.RequestURI = target
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if _, refusal := policy.Judge(r); refusal != nil {
		return refusal.Rule
	}
	return ""
}

// validCreate is the body of our own create, decoded.
func validCreate(t testing.TB) map[string]any {
	t.Helper()
	file := readCases(t, "testdata/shoal-cases.json")
	for _, c := range file.Cases {
		if c.Expect == "allow" && strings.Contains(c.Path, "/containers/create") {
			return decode(t, c.Body)
		}
	}
	t.Fatal("no case creates a container")
	return nil
}

func decode(t testing.TB, body string) (out map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func encode(t testing.TB, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// forbidden are items of a create, each of which alone gives the host away.
var forbidden = []struct {
	key   string
	value any
	rule  string
}{
	{"Privileged", true, "json.key"},
	{"Binds", []string{"/:/host"}, "json.key"},
	{"VolumesFrom", []string{"x"}, "json.key"},
	{"Devices", []any{map[string]string{"PathOnHost": "/dev/sda"}}, "json.key"},
	{"DeviceRequests", []any{map[string]int{"Count": -1}}, "json.key"},
	{"DeviceCgroupRules", []string{"a *:* rwm"}, "json.key"},
	{"PidMode", "host", "json.key"},
	{"UsernsMode", "host", "json.key"},
	{"UTSMode", "host", "json.key"},
	{"CgroupnsMode", "host", "json.key"},
	{"Cgroup", "container:x", "json.key"},
	{"CgroupParent", "/", "json.key"},
	{"Sysctls", map[string]string{"kernel.msgmax": "1"}, "json.key"},
	{"ExtraHosts", []string{"x:host-gateway"}, "json.key"},
	{"Dns", []string{"10.0.0.1"}, "json.key"},
	{"GroupAdd", []string{"0"}, "json.key"},
	{"MaskedPaths", []string{}, "json.key"},
	{"ReadonlyPaths", []string{}, "json.key"},
	{"OomKillDisable", true, "json.key"},
	{"OomScoreAdj", -1000, "json.key"},
	{"PortBindings", map[string]any{"80/tcp": nil}, "json.key"},
	{"RestartPolicy", map[string]string{"Name": "always"}, "json.key"},
	{"Annotations", map[string]string{"a": "b"}, "json.key"},
	{"StorageOpt", map[string]string{"size": "1t"}, "json.key"},
	{"Links", []string{"x:y"}, "json.key"},
	{"CapAdd", []string{"SETUID", "SETGID", "KILL", "SYS_ADMIN"}, "container.capadd"},
	{"CapDrop", []string{}, "container.capdrop"},
	{"SecurityOpt", []string{"no-new-privileges", "seccomp=unconfined"}, "container.securityopt"},
	{"IpcMode", "host", "container.ipc"},
	{"NetworkMode", "container:x", "container.network"},
	{"Runtime", "evil", "container.runtime"},
	{"ReadonlyRootfs", false, "container.readonly"},
	{"Init", false, "container.init"},
	{"PidsLimit", -1, "container.pids"},
	{"Memory", -1, "container.memory"},
	{"MemorySwap", -1, "container.swap"},
	{"NanoCpus", 0, "container.cpus"},
	{"Mounts", []any{}, "container.mounts"},
	{"Tmpfs", map[string]string{"/proc": "rw"}, "container.tmpfs"},
	{"LogConfig", map[string]string{"Type": "gelf"}, "container.log"},
}

// TestForbidden refuses each forbidden item alone, by the rule that is meant
// for it, and every pair of them: rules are joined by "or".
func TestForbidden(t *testing.T) {
	t.Parallel()
	policy := defaultPolicy(t)
	valid := encode(t, validCreate(t))
	try := func(items ...int) string {
		body := decode(t, valid)
		for _, i := range items {
			body["HostConfig"].(map[string]any)[forbidden[i].key] = forbidden[i].value
		}
		return judge(t, policy, "POST", "/v1.41/containers/create?name="+ourName, encode(t, body))
	}
	if rule := try(); rule != "" {
		t.Fatalf("the valid body is refused by %s", rule)
	}
	for i, item := range forbidden {
		if rule := try(i); rule != item.rule {
			t.Errorf("%s is refused by %q, want %q", item.key, rule, item.rule)
		}
		for j := range i {
			if try(i, j) == "" {
				t.Errorf("%s and %s together pass", item.key, forbidden[j].key)
			}
		}
	}
}

// TestSpelling refuses every key of a create in other spellings that the engine
// would take for it: another case, and characters that fold to its letters.
func TestSpelling(t *testing.T) {
	t.Parallel()
	policy := defaultPolicy(t)
	valid := encode(t, validCreate(t))
	fold := strings.NewReplacer("s", "ſ", "k", "\u212a", "K", "\u212a", "S", "ſ")
	for _, item := range forbidden {
		for _, key := range []string{strings.ToLower(item.key), strings.ToUpper(item.key), fold.Replace(item.key)} {
			body := decode(t, valid)
			body["HostConfig"].(map[string]any)[key] = item.value
			if key != item.key && judge(t, policy, "POST", "/v1.41/containers/create?name="+ourName, encode(t, body)) == "" {
				t.Errorf("%q passes", key)
			}
		}
	}
}

// TestClosed refuses every call of the engine's API that the provider does not
// make, whatever its path holds.
func TestClosed(t *testing.T) {
	t.Parallel()
	for _, policy := range []*filter.Policy{defaultPolicy(t), referencePolicy(t)} {
		for _, call := range []string{
			"POST /containers/NAME/update", "POST /containers/NAME/rename?name=shoal-t1-x.g1", "POST /containers/NAME/resize?h=1&w=1",
			"POST /containers/NAME/attach?stream=1", "GET /containers/NAME/attach/ws", "GET /containers/NAME/archive?path=/",
			"PUT /containers/NAME/archive?path=/", "HEAD /containers/NAME/archive?path=/", "GET /containers/NAME/export",
			"GET /containers/NAME/logs?stdout=1", "GET /containers/NAME/top", "GET /containers/NAME/stats", "GET /containers/NAME/changes",
			"GET /containers/NAME/checkpoints", "POST /containers/NAME/checkpoints", "POST /containers/prune", "POST /commit?container=NAME",
			"POST /exec/" + corpusExec + "/resize?h=1&w=1", "POST /build", "POST /build/prune", "POST /session", "POST /grpc", "GET /info",
			"GET /events", "GET /system/df", "POST /auth", "GET /distribution/x/json", "POST /images/load", "GET /images/json",
			"GET /images/get?names=x", "GET /images/search?term=x", "POST /images/prune", "POST /images/x/push", "POST /images/x/tag?repo=y",
			"DELETE /images/shoal-sandbox:dev", "GET /images/shoal-sandbox:dev/history", "POST /volumes/prune", "PUT /volumes/NAME-workspace",
			"POST /networks/prune", "GET /networks", "POST /networks/NAME-net/connect", "POST /networks/NAME-net/disconnect",
			"GET /swarm", "POST /swarm/init", "POST /swarm/join", "GET /swarm/unlockkey", "GET /nodes", "GET /services", "POST /services/create",
			"GET /tasks", "GET /secrets", "POST /secrets/create", "GET /configs", "POST /configs/create", "GET /plugins",
			"POST /plugins/pull?remote=x", "POST /plugins/create?name=x", "POST /plugins/x/enable", "GET /debug/vars", "GET /debug/pprof/",
		} {
			method, path, _ := strings.Cut(strings.ReplaceAll(call, "NAME", ourName), " ")
			for _, version := range []string{"/v1.41", "/v1.44", ""} {
				if judge(t, policy, method, version+path, "") == "" {
					t.Errorf("%s %s passes", method, version+path)
				}
			}
		}
	}
}

// TestPolicyText writes and reads policies.
func TestPolicyText(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]*filter.Policy{"default": defaultPolicy(t), "reference": referencePolicy(t)} {
		again, err := filter.ParsePolicy([]byte(policy.String()))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(plain(t, policy), plain(t, again)); diff != "" {
			t.Errorf("%s changed on the way:\n%s", name, diff)
		}
	}
	for _, text := range []string{`{}`, `{"minAPI":"1.41","unknown":1}`, defaultPolicy(t).String() + "{}"} {
		if _, err := filter.ParsePolicy([]byte(text)); err == nil {
			t.Errorf("%.40s is read as a policy", text)
		}
	}
}

// plain is a policy as plain data, for comparing.
func plain(t testing.TB, p *filter.Policy) map[string]any {
	t.Helper()
	return decode(t, p.String())
}

// TestValidate refuses policies that would give the host away.
func TestValidate(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*filter.Policy){
		"API below 1.41":        func(p *filter.Policy) { p.MinAPI = "1.40" },
		"API range upside down": func(p *filter.Policy) { p.MinAPI, p.MaxAPI = "1.44", "1.43" },
		"hex prefix":            func(p *filter.Policy) { p.Prefix = "cafe" },
		"empty prefix":          func(p *filter.Policy) { p.Prefix = "" },
		"unknown call":          func(p *filter.Policy) { p.Calls["build"] = nil },
		"no image":              func(p *filter.Policy) { p.Images = nil },
		"image like an id":      func(p *filter.Policy) { p.Images = []string{"deadbeef"} },
		"bad expression":        func(p *filter.Policy) { p.Labels["shoal.name"] = "(" },
		"label without grammar": func(p *filter.Policy) { delete(p.Labels, "shoal.bucket") },
		"no list label":         func(p *filter.Policy) { p.ListLabels = nil },
		"host network":          func(p *filter.Policy) { p.Roles["sandbox"].Container.Networks = []string{"host"} },
		"default network":       func(p *filter.Policy) { p.Roles["sandbox"].Container.Networks = []string{"bridge"} },
		"another's network":     func(p *filter.Policy) { p.Roles["sandbox"].Container.Networks = []string{"container:x"} },
		"no limit":              func(p *filter.Policy) { p.Roles["sandbox"].Container.MaxMemory = 0 },
		"path as volume":        func(p *filter.Policy) { p.Roles["sandbox"].Container.Mounts[0].Source = "/" },
		"unknown template":      func(p *filter.Policy) { p.Roles["sandbox"].Container.Mounts[0].Source = "{x}" },
		"no exec user":          func(p *filter.Policy) { p.Exec.Users = nil },
		"huge bodies":           func(p *filter.Policy) { p.MaxBody = 1 << 30 },
	} {
		p := defaultPolicy(t)
		change(p)
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), "policy: ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestPolicyDifference names everything in which the two policies differ: what
// a provider with networks, egress containers and free commands needs more.
func TestPolicyDifference(t *testing.T) {
	t.Parallel()
	mine, reference := defaultPolicy(t), referencePolicy(t)
	calls := func(p *filter.Policy) (out []string) {
		for rule, keys := range p.Calls {
			out = append(out, rule)
			for _, key := range keys {
				out = append(out, rule+"?"+key)
			}
		}
		slices.Sort(out)
		return out
	}
	only := func(a, b []string) (out []string) {
		for _, s := range a {
			if !slices.Contains(b, s) {
				out = append(out, s)
			}
		}
		return out
	}
	want := []string{"container.list", "container.list?all", "container.list?filters", "container.pause", "container.remove?v", "volume.list", "volume.list?filters"}
	if diff := cmp.Diff(want, only(calls(mine), calls(reference))); diff != "" {
		t.Errorf("calls of the default policy alone:\n%s", diff)
	}
	want = []string{"container.kill", "container.kill?signal", "exec.inspect", "network.create", "network.inspect", "network.remove", "version"}
	if diff := cmp.Diff(want, only(calls(reference), calls(mine))); diff != "" {
		t.Errorf("calls of the reference policy alone:\n%s", diff)
	}
	// What remains are the settings. Each is named here, so that a new one is
	// looked at.
	differ := map[string]bool{
		"MinAPI": true, "MaxAPI": false, "Prefix": false, "MaxBody": false, "Calls": true, "Images": true, "Labels": true,
		"RoleLabel": true, "ListLabels": true, "Roles": true, "Networks": true, "Exec": true, "InertKeys": true,
	}
	compareFields(t, *mine, *reference, differ)
	differ = map[string]bool{
		"User": false, "WorkingDir": true, "Cmd": true, "Entrypoint": true, "StopSignal": true, "Healthcheck": true, "FreeEnv": true,
		"Runtimes": false, "IPC": false, "CapAdd": true, "MaxMemory": true, "MaxNanoCPUs": true, "MaxPids": true, "MaxCPUShares": true,
		"Ulimits": true, "Networks": true, "Endpoints": false, "Tmpfs": true, "Mounts": true, "Log": true,
	}
	compareFields(t, *mine.Roles["sandbox"].Container, *reference.Roles["sandbox"].Container, differ)
	compareFields(t, mine.Exec, reference.Exec, map[string]bool{"Cmds": true, "Users": true, "FreeEnv": true, "FreeDir": true})
}

func compareFields(t *testing.T, a, b any, differ map[string]bool) {
	t.Helper()
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range va.NumField() {
		field := va.Type().Field(i)
		if !field.IsExported() {
			continue
		}
		want, named := differ[field.Name]
		if !named {
			t.Errorf("%T.%s is not named", a, field.Name)
		}
		if got := !reflect.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()); got != want {
			t.Errorf("%T.%s: differ %t, want %t", a, field.Name, got, want)
		}
	}
}

// TestRefusalStatus tells what a caller sees.
func TestRefusalStatus(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1.41/info", nil)
	_, refusal := defaultPolicy(t).Judge(r)
	if refusal == nil || refusal.Status != http.StatusForbidden || refusal.String() != "refused by rule path.unknown: there is no such call" {
		t.Errorf("refusal %v", refusal)
	}
}

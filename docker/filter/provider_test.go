package filter_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/docker/filter"
	"shoal/docker/filter/filtertest"
	"shoal/sandbox"
)

// TestProviderThroughFilter runs everything that the provider does through a
// filter with the default policy on the real engine: nothing is refused, and
// nothing is admitted that was not sent. That holds with the warm pool on, and
// without its two calls with the warm pool off.
func TestProviderThroughFilter(t *testing.T) {
	fleet := dockertest.Fleet(t)
	client := dockertest.Client(t)
	registry := dockertest.NewRegistry(t, map[string]string{sandbox.AgentLabel: "1"})
	image := registry.Ref(t, "standin:1")
	network := dockertest.Network(t, client, map[string]string{"com.docker.network.bridge.enable_icc": "false"})
	settings := filter.Settings{Fleet: fleet, Images: []string{image}, Network: network}
	off, err := filter.DefaultPolicy(settings)
	if err != nil {
		t.Fatal(err)
	}
	settings.WarmPool = true
	policy, err := filter.DefaultPolicy(settings)
	if err != nil {
		t.Fatal(err)
	}
	front := filtertest.New(t, policy)
	for _, runtime := range []string{docker.RuntimeRunc, docker.RuntimeRunsc} {
		p, err := docker.New(docker.Config{
			Fleet: fleet, Endpoint: front.Endpoint(), Image: image, Runtime: runtime, AllowOpenEgress: true, Network: network,
		})
		if err != nil {
			t.Fatal(err)
		}
		if !dockertest.HasRuntime(t, runtime) {
			t.Fatalf("the engine has no runtime %s (run: make test, or scripts/runsc.sh)", runtime)
		}
		exerciseProvider(t, p, "n-"+runtime)
		exercisePool(t, p, "w-"+runtime, runtime)
		p.Close()
	}
	if rules := front.Refused(t); len(rules) > 0 {
		t.Errorf("the filter refused calls of the provider by %v", rules)
	}
	calls := front.Calls(t)
	filtertest.SentIsAdmitted(t, policy, calls)
	var bodies []string
	calls = slices.DeleteFunc(calls, func(c *filter.Call) bool {
		rule := judge(t, off, c.Method, c.Target, string(c.Body))
		if c.Rule == "container.rename" || c.Rule == "container.update" {
			if rule != "call" {
				t.Errorf("without a warm pool %s is refused by %q", c.Rule, rule)
			}
			return true
		}
		if rule != "" && !c.Hijack {
			t.Errorf("without a warm pool %s is refused by %s", c.Target, rule)
		}
		if c.Rule == "container.create" {
			bodies = append(bodies, string(c.Body))
		}
		return false
	})
	filtertest.SentIsAdmitted(t, off, calls)
	if len(bodies) == 0 {
		t.Fatal("no container was made")
	}
	refuseUnsent(t, policy, bodies)
}

// exerciseProvider does everything that a provider can do.
func exerciseProvider(t *testing.T, p *docker.Provider, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s %s: %v (%v)", name, what, err, err.(interface{ Unwrap() error }).Unwrap())
		}
	}
	spec := sandbox.Spec{
		Tenant: "t1", Name: sandbox.Name(name), Generation: sandbox.NewID(), Bucket: "b1",
		Limits: sandbox.Limits{CPU: 0.5, MemoryMB: 128, DiskMB: 64, Pids: 128}, Egress: sandbox.Egress{Mode: sandbox.EgressNone},
	}
	must("check", p.Check(ctx))
	h, err := p.Create(ctx, spec, func(string, int64, int64) {})
	must("create", err)
	say := func(text string) {
		t.Helper()
		s, err := p.Attach(ctx, h, true)
		must("attach", err)
		defer s.Close()
		_, err = io.WriteString(s, text)
		must("write", err)
		got := make([]byte, len(text))
		_, err = io.ReadFull(s, got)
		if err != nil || string(got) != text {
			t.Fatalf("%s: the stream says %q, %v", name, got, err)
		}
	}
	say("hello")
	must("suspend memory", p.Suspend(ctx, h, sandbox.SuspendMemory))
	say("awake")
	must("suspend disk", p.Suspend(ctx, h, sandbox.SuspendDisk))
	must("resume", p.Resume(ctx, h))
	must("reset", p.Reset(ctx, h))
	say("again")
	_, err = p.Inspect(ctx, h)
	must("inspect", err)
	list, err := p.List(ctx)
	must("list", err)
	if len(list) != 1 {
		t.Errorf("%d sandboxes in the list", len(list))
	}
	must("destroy", p.Destroy(ctx, h))
	spec.Generation, spec.Egress = sandbox.NewID(), sandbox.Egress{Mode: sandbox.EgressOpen}
	_, err = p.Create(ctx, spec, nil)
	must("create open", err)
	must("destroy by name", p.DestroyByName(ctx, spec.Tenant, spec.Name))
}

// exercisePool claims a sandbox that was made ahead and uses it. The filter has
// no memory of its new name.
func exercisePool(t *testing.T, p *docker.Provider, name, runtime string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	spec := sandbox.Spec{
		Tenant: sandbox.PoolTenant, Name: "member", Generation: sandbox.NewID(), Bucket: "b1",
		Limits: sandbox.Limits{CPU: 0.5, MemoryMB: 128, DiskMB: 64, Pids: 128}, Egress: sandbox.Egress{Mode: sandbox.EgressNone},
	}
	member, err := p.Create(ctx, spec, nil)
	if err != nil {
		t.Fatalf("%s: create a member: %v", name, err)
	}
	if _, err := p.Recipe(ctx, spec); err != nil {
		t.Fatal(err)
	}
	spec.Tenant, spec.Name = "t1", sandbox.Name(name)
	if runtime == docker.RuntimeRunc { // runsc cannot change limits
		spec.Limits = sandbox.Limits{CPU: 1, MemoryMB: 256, DiskMB: 64, Pids: 256}
	}
	h, err := p.Claim(ctx, member, spec)
	if err != nil {
		t.Fatalf("%s: claim: %v (%v)", name, err, err.(interface{ Unwrap() error }).Unwrap())
	}
	s, err := p.Attach(ctx, h, false)
	if err != nil {
		t.Fatalf("%s: attach to what was claimed: %v", name, err)
	}
	_ = s.Close()
	if err := p.Destroy(ctx, h); err != nil {
		t.Fatal(err)
	}
}

// refuseUnsent takes a create that was sent and adds, one at a time, every key
// that the engine's own types have and the provider did not send.
func refuseUnsent(t *testing.T, policy *filter.Policy, bodies []string) {
	t.Helper()
	sent := map[string]bool{}
	for _, body := range bodies {
		top := decode(t, body)
		collect(sent, "", top)
		collect(sent, "HostConfig.", top["HostConfig"].(map[string]any))
		for _, m := range top["HostConfig"].(map[string]any)["Mounts"].([]any) {
			collect(sent, "Mounts.", m.(map[string]any))
		}
	}
	name := decode(t, bodies[0])["Labels"].(map[string]any)
	target := "/v1.41/containers/create?name=shoal-" + name["shoal.tenant"].(string) + "-" + name["shoal.name"].(string) + "." + name["shoal.generation"].(string)
	if rule := judge(t, policy, "POST", target, bodies[0]); rule != "" {
		t.Fatalf("the body that was sent is refused by %s", rule)
	}
	tried := 0
	try := func(prefix string, typ reflect.Type, into func(map[string]any) map[string]any) {
		for _, f := range jsonFields(typ) {
			if sent[prefix+f.name] || prefix == "" && f.name == "HostConfig" {
				continue
			}
			for _, value := range []any{reflect.Zero(f.typ).Interface(), some(f.typ)} {
				body := decode(t, bodies[0])
				into(body)[f.name] = value
				tried++
				if passes(t, policy, target, encode(t, body), f.name) {
					t.Errorf("%s%s passes although it was never sent", prefix, f.name)
				}
			}
		}
	}
	host := func(b map[string]any) map[string]any { return b["HostConfig"].(map[string]any) }
	try("", reflect.TypeFor[container.Config](), func(b map[string]any) map[string]any { return b })
	try("HostConfig.", reflect.TypeFor[container.HostConfig](), host)
	try("Mounts.", reflect.TypeFor[mount.Mount](), func(b map[string]any) map[string]any { return host(b)["Mounts"].([]any)[0].(map[string]any) })
	if tried < 100 {
		t.Errorf("only %d keys were tried", tried)
	}
	exec := decode(t, `{"AttachStdin":true,"AttachStdout":true,"AttachStderr":true,"Cmd":["/opt/shoal/bin/attach","/run/shoal/agent.sock"],"User":"0:0"}`)
	for _, f := range jsonFields(reflect.TypeFor[container.ExecOptions]()) {
		if _, ok := exec[f.name]; !ok && f.name != "Tty" {
			refuseKey(t, policy, "/v1.41/containers/"+strings.TrimPrefix(target, "/v1.41/containers/create?name=")+"/exec", exec, f.name, some(f.typ))
		}
	}
	vol := map[string]any{"Name": strings.TrimPrefix(target, "/v1.41/containers/create?name=") + "-skills", "Labels": decode(t, strings.ReplaceAll(encode(t, name), `"sandbox"`, `"skills"`))}
	for _, f := range jsonFields(reflect.TypeFor[volume.CreateOptions]()) {
		if _, ok := vol[f.name]; !ok {
			refuseKey(t, policy, "/v1.41/volumes/create", vol, f.name, some(f.typ))
		}
	}
}

// passes reports whether a body is admitted and the engine sees the key.
func passes(t *testing.T, policy *filter.Policy, target, body, key string) bool {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
	r.RequestURI = target
	r.Header.Set("Content-Type", "application/json")
	call, refusal := policy.Judge(r)
	return refusal == nil && strings.Contains(string(call.Body), `"`+key+`"`)
}

func refuseKey(t *testing.T, policy *filter.Policy, target string, valid map[string]any, key string, value any) {
	t.Helper()
	if rule := judge(t, policy, "POST", target, encode(t, valid)); rule != "" {
		t.Fatalf("%s: the body that is sent is refused by %s", target, rule)
	}
	body := decode(t, encode(t, valid))
	body[key] = value
	if judge(t, policy, "POST", target, encode(t, body)) == "" {
		t.Errorf("%s: %s passes although it was never sent", target, key)
	}
}

func collect(sent map[string]bool, prefix string, object map[string]any) {
	for key := range object {
		sent[prefix+key] = true
	}
}

type jsonField struct {
	name string
	typ  reflect.Type
}

// jsonFields are the members of a struct as JSON, those of embedded ones too.
func jsonFields(typ reflect.Type) (out []jsonField) {
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			out = append(out, jsonFields(f.Type)...)
		case name == "-":
		case name == "":
			out = append(out, jsonField{f.Name, f.Type})
		default:
			out = append(out, jsonField{name, f.Type})
		}
	}
	return out
}

// some is a value of a type that is not its zero value, as JSON.
func some(typ reflect.Type) any {
	switch typ.Kind() {
	case reflect.Bool:
		return true
	case reflect.Int, reflect.Int64, reflect.Uint16, reflect.Uint, reflect.Int16:
		return 1
	case reflect.String:
		return "x"
	case reflect.Slice:
		return []any{some(typ.Elem())}
	case reflect.Array:
		return []any{1, 1}
	case reflect.Map:
		return map[string]any{"x": some(typ.Elem())}
	case reflect.Pointer:
		return some(typ.Elem())
	}
	return json.RawMessage("{}")
}

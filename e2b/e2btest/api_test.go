package e2btest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"shoal/e2b/e2btest"
)

// ask sends one request to the fake and returns status and body.
func ask(t *testing.T, method, url, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func made(t *testing.T, fake *e2btest.Server) (id, token string) {
	t.Helper()
	status, body := ask(t, "POST", fake.APIURL()+"/sandboxes", `{"templateID":"shoal","timeout":600,"secure":true}`,
		"X-API-Key", e2btest.Key, "Content-Type", "application/json")
	var a struct {
		SandboxID string `json:"sandboxID"`
		Token     string `json:"envdAccessToken"`
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil || status != 201 || a.Token == "" {
		t.Fatalf("%d %s", status, body)
	}
	return a.SandboxID, a.Token
}

// TestRefusals lists what the real control plane refuses, both sides of each
// boundary where there is one.
func TestRefusals(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	id, _ := made(t, fake)
	const create = `{"templateID":"shoal","timeout":600`
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		text                     string
	}{
		{"timeout as text", "POST", "/sandboxes", `{"templateID":"shoal","timeout":"600"}`, 400, "/timeout"},
		{"timeout as a fraction", "POST", "/sandboxes", `{"templateID":"shoal","timeout":1.5}`, 400, "/timeout"},
		{"timeout 0", "POST", "/sandboxes", `{"templateID":"shoal","timeout":0}`, 400, "greater than 0"},
		{"timeout of the plan", "POST", "/sandboxes", `{"templateID":"shoal","timeout":86400}`, 201, ""},
		{"timeout above the plan", "POST", "/sandboxes", `{"templateID":"shoal","timeout":86401}`, 400, "24 hours"},
		{"no template", "POST", "/sandboxes", `{"timeout":600}`, 400, "templateID"},
		{"unknown template", "POST", "/sandboxes", `{"templateID":"none"}`, 404, "not found"},
		{"unknown fields", "POST", "/sandboxes", create + `,"nobody":1}`, 201, ""},
		{"not JSON", "POST", "/sandboxes", `{`, 400, "validation error"},
		{"no body", "POST", "/sandboxes", ``, 400, "required"},
		{"secure as text", "POST", "/sandboxes", create + `,"secure":"yes"}`, 400, "/secure"},
		{"metadata as a list", "POST", "/sandboxes", create + `,"metadata":[]}`, 400, "/metadata"},
		{"metadata with a number", "POST", "/sandboxes", create + `,"metadata":{"a":1}}`, 400, "/metadata"},
		{"pause without memory alone", "POST", "/sandboxes", create + `,"autoPauseMemory":false}`, 400, "autoPause"},
		{"closed ports without a token", "POST", "/sandboxes", create + `,"network":{"allowPublicTraffic":false}}`, 400, "secured"},
		{"domain without deny all", "POST", "/sandboxes", create + `,"network":{"allowOut":["example.com"]}}`, 400, "ALL_TRAFFIC"},
		{"domain with no internet only", "POST", "/sandboxes", create + `,"allow_internet_access":false,"network":{"allowOut":["example.com"]}}`, 400, "ALL_TRAFFIC"},
		{"domain with deny all", "POST", "/sandboxes", create + `,"network":{"allowOut":["example.com"],"denyOut":["0.0.0.0/0"]}}`, 201, ""},
		{"deny a domain", "POST", "/sandboxes", create + `,"network":{"denyOut":["example.com"]}}`, 400, "CIDR"},
		{"deny an unspecified address", "POST", "/sandboxes", create + `,"network":{"denyOut":["0.0.0.0"]}}`, 400, "CIDR"},
		{"create of newer servers", "POST", "/v2/sandboxes", create + "}", 404, "method not allowed"},
		{"connect of newer servers", "POST", "/v2/sandboxes/" + id + "/connect", `{}`, 404, "no matching operation"},
		{"unknown route", "GET", "/nothing", ``, 404, "no matching operation"},
		{"unknown method", "PATCH", "/sandboxes/" + id, ``, 404, "method not allowed"},
		{"unknown sandbox", "GET", "/sandboxes/i00000000000000000000", ``, 404, "doesn't exist or you don't have access"},
		{"id in upper case", "GET", "/sandboxes/ABC", ``, 400, "Invalid sandbox ID"},
		{"id with one suffix", "GET", "/sandboxes/" + id + "-00000000", ``, 200, id},
		{"id with two suffixes", "GET", "/sandboxes/" + id + "-a-b", ``, 400, "Invalid sandbox ID"},
		{"connect without a body", "POST", "/sandboxes/" + id + "/connect", ``, 400, "required"},
		{"connect without timeout", "POST", "/sandboxes/" + id + "/connect", `{}`, 400, "timeout"},
		{"connect", "POST", "/sandboxes/" + id + "/connect", `{"timeout":0}`, 200, id},
		{"refresh by an hour", "POST", "/sandboxes/" + id + "/refreshes", `{"duration":3600}`, 204, ""},
		{"refresh by more", "POST", "/sandboxes/" + id + "/refreshes", `{"duration":3601}`, 400, "duration"},
		{"listing of 0", "GET", "/v2/sandboxes?limit=0", ``, 400, "limit"},
		{"listing of 101", "GET", "/v2/sandboxes?limit=101", ``, 400, "limit"},
		{"listing of 100", "GET", "/v2/sandboxes?limit=100", ``, 200, id},
		{"unknown state", "GET", "/v2/sandboxes?state=ended", ``, 400, "state"},
		{"both states", "GET", "/v2/sandboxes?state=running%2Cpaused", ``, 200, id},
		{"bad token", "GET", "/v2/sandboxes?nextToken=x", ``, 400, "Invalid next token"},
		{"bad metadata", "GET", "/v2/sandboxes?metadata=a", ``, 400, "metadata"},
		{"network without a body", "PUT", "/sandboxes/" + id + "/network", ``, 400, "required"},
		{"pause with a text", "POST", "/sandboxes/" + id + "/pause", `{"memory":"no"}`, 400, "/memory"},
		{"pause", "POST", "/sandboxes/" + id + "/pause", ``, 204, ""},
		{"pause again", "POST", "/sandboxes/" + id + "/pause", ``, 409, "is already paused"},
		{"refresh of a paused one", "POST", "/sandboxes/" + id + "/refreshes", `{}`, 404, "doesn't exist"},
		{"network of a paused one", "PUT", "/sandboxes/" + id + "/network", `{}`, 409, "not running"},
		{"resume", "POST", "/sandboxes/" + id + "/connect", `{"timeout":60}`, 201, id},
		{"delete", "DELETE", "/sandboxes/" + id, ``, 204, ""},
		{"delete again", "DELETE", "/sandboxes/" + id, ``, 404, "doesn't exist"},
	} {
		header := []string{"X-API-Key", e2btest.Key}
		if c.body != "" {
			header = append(header, "Content-Type", "application/json")
		}
		if status, body := ask(t, c.method, fake.APIURL()+c.path, c.body, header...); status != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%s: %d %s, want %d with %q", c.name, status, body, c.status, c.text)
		}
	}
	for name, header := range map[string][]string{"no key": nil, "wrong key": {"X-API-Key", "e2b_other"}} {
		if status, _ := ask(t, "GET", fake.APIURL()+"/v2/sandboxes", "", header...); status != 401 {
			t.Errorf("%s: %d", name, status)
		}
	}
	if status, body := ask(t, "POST", fake.APIURL()+"/sandboxes", create+"}", "X-API-Key", e2btest.Key); status != 400 || !strings.Contains(body, "Content-Type") {
		t.Errorf("a body without a content type: %d %s", status, body)
	}
}

func TestNewerServer(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{Newer: true})
	header := []string{"X-API-Key", e2btest.Key, "Content-Type", "application/json"}
	status, body := ask(t, "POST", fake.APIURL()+"/v2/sandboxes", `{"templateID":"shoal"}`, header...)
	if status != 201 || !strings.Contains(body, "envdAccessToken") {
		t.Errorf("%d %s", status, body)
	}
}

// TestProxyRefusals is what stands between a client and the daemon.
func TestProxyRefusals(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	id, token := made(t, fake)
	url := "http://" + fake.Domain()
	right := []string{"E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983", "X-Access-Token", token}
	with := func(changes ...string) []string { return append(append([]string{}, right...), changes...) }
	for _, c := range []struct {
		name, path string
		header     []string
		status     int
		text       string
	}{
		{"health", "/health", with("X-Access-Token", ""), 204, ""},
		{"no headers", "/health", nil, 400, "missing header"},
		{"no port", "/health", with("E2b-Sandbox-Port", ""), 400, "missing header"},
		{"bad id", "/health", with("E2b-Sandbox-Id", "A/B"), 400, "Invalid sandbox ID"},
		{"unknown sandbox", "/health", with("E2b-Sandbox-Id", "inothing"), 502, "The sandbox was not found"},
		{"other port", "/health", with("E2b-Sandbox-Port", "8080"), 502, "port is not open"},
		{"control route", "/init", right, 404, "/init"},
		{"token", "/envs", right, 200, "E2B_SANDBOX"},
		{"no token", "/envs", with("X-Access-Token", ""), 401, "unauthorized access"},
		{"wrong token", "/envs", with("X-Access-Token", "x"), 401, "unauthorized access"},
	} {
		if status, body := ask(t, "GET", url+c.path, "", c.header...); status != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
	}
	fake.Expire(id) // without autoPause the end is the end
	if status, body := ask(t, "GET", url+"/envs", "", right...); status != 502 || !strings.Contains(body, "was not found") {
		t.Errorf("after its end: %d %s", status, body)
	}
}

func TestKeepaliveOfZeroCrashesTheDaemon(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	id, token := made(t, fake)
	header := []string{"E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983", "X-Access-Token", token, "Content-Type", "application/connect+json"}
	start := string(bytes.Clone(frame(`{"process":{"cmd":"/bin/true"}}`)))
	url := "http://" + fake.Domain() + "/process.Process/Start"
	if status, body := ask(t, "POST", url, start, header...); status != 200 || !strings.Contains(body, "exit status 0") {
		t.Fatalf("%d %s", status, body)
	}
	status, _ := askBroken(url, start, append(header, "Keepalive-Ping-Interval", "0")...)
	again, _ := askBroken(url, start, header...)
	if status == 200 || again == 200 {
		t.Errorf("%d, then %d: the daemon lived on", status, again)
	}
}

// askBroken expects no whole answer; 200 means that there was one.
func askBroken(url, body string, header ...string) (int, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err != nil {
		return 0, err
	}
	return resp.StatusCode, nil
}

package filter_test

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"shoal/docker/filter"
)

// TestRules names the rule by which each request is refused, so that a rule
// that is lost shows even where another one would refuse the request as well.
func TestRules(t *testing.T) {
	t.Parallel()
	mine, reference := defaultPolicy(t), referencePolicy(t)
	valid := encode(t, validCreate(t))
	with := func(old, replacement string) string {
		t.Helper()
		if !strings.Contains(valid, old) {
			t.Fatalf("the valid body does not hold %s", old)
		}
		return strings.Replace(valid, old, replacement, 1)
	}
	const create = "/v1.41/containers/create?name=" + ourName
	const network = `"Labels":{"dev.capybara.sandbox":"1","dev.capybara.sandbox.name":"shoal-c1","dev.capybara.sandbox.role":"network"}`
	const refVolume = `"Labels":{"dev.capybara.sandbox":"1","dev.capybara.sandbox.name":"shoal-c1","dev.capybara.sandbox.role":"workspace"}`
	quota := referencePolicy(t)
	quota.Roles["workspace"].Volume.Driver = "quotavol"
	for _, c := range []struct {
		policy               *filter.Policy
		method, target, body string
		rule                 string
	}{
		{mine, "GET", "/v1.41/containers/../containers/" + ourName + "/json", "", "path.grammar"},
		{mine, "GET", "/v1.41/./containers/" + ourName + "/json", "", "path.grammar"},
		{mine, "GET", "/v1.41//containers/" + ourName + "/json", "", "path.grammar"},
		{mine, "GET", "/v1.41/containers/" + ourName + "%2Fx/json", "", "path.grammar"},
		{mine, "GET", "/v1.41/%63ontainers/" + ourName + "/json", "", "path.grammar"},
		{mine, "GET", "/v1.41/containers/" + ourName + ";x/json", "", "path.grammar"},
		{mine, "GET", "v1.41/containers/" + ourName + "/json", "", "path.form"},
		{mine, "GET", "http://docker/v1.41/containers/" + ourName + "/json", "", "path.form"},
		{mine, "GET", "/v1.41/containers/" + ourName + ":x/json", "", "path.name"},
		{mine, "GET", "/v1.41/containers/shoal-t1-demo/json", "", "path.name"},
		{mine, "GET", "/v1.41/containers/" + strings.Repeat("a", 300) + "/json", "", "path.name"},
		{mine, "DELETE", "/v1.41/volumes/shoal-engine", "", "path.name"},
		{mine, "DELETE", "/v1.41/volumes/" + ourName, "", "path.name"},
		{mine, "GET", "/v1.41/networks/bridge", "", "call"},
		{mine, "GET", "/v1.41/volumes?filters=%7B%22label%22%3A%5B%22shoal.fleet%3Dmain%22%5D%7D", "", ""},
		{mine, "GET", "/v1.41/volumes?filters=%7B%22label%22%3A%5B%22shoal.fleet%3Dother%22%5D%7D", "", "query.filters"},
		{mine, "GET", "/v1.41/volumes?filters=%7B%22label%22%3A%5B%22shoal.name%3Ddemo%22%5D%7D", "", "query.filters"},
		{mine, "GET", "/v1.41/volumes?filters=%7B%22label%22%3A%5B%22shoal.fleet%3Dmain%22%2C%22x%3Dy%22%5D%7D", "", "query.filters"},
		{mine, "POST", "/v1.41/containers/create?name=shoal-t1-demo%0A.g1", valid, "query.value"},
		{mine, "POST", "/v1.41/containers/create?n%61me=" + ourName, valid, "query.grammar"},
		{mine, "POST", "/v1.41/containers/create?name=shoal+t1", valid, "query.grammar"},
		{mine, "POST", "/v1.41/containers/create?name=%zz", valid, "query.grammar"},
		{mine, "POST", create + "&name=" + ourName, valid, "query.double"},
		{mine, "POST", create + "&platform=x", valid, "query.key"},
		{mine, "POST", "/v1.41/containers/create", valid, "query.required"},
		{mine, "POST", create, "null", "json.object"},
		{mine, "POST", create, "[" + valid + "]", "json.object"},
		{mine, "POST", create, valid + "{}", "json.strict"},
		{mine, "POST", create, valid[:len(valid)-1], "json.syntax"},
		{mine, "POST", create, with(`"Cmd":["serve"]`, `"x":`+strings.Repeat("[", 20)+strings.Repeat("]", 20)), "json.depth"},
		{mine, "POST", create, with(`"Cmd":["serve"]`, `"Cmd":["serve"],"Cmd":["serve"]`), "json.syntax"},
		{mine, "POST", create, with(`"Cmd":["serve"]`, `"Cmd":["serve"],"cmd":["x"]`), "json.key"},
		{mine, "POST", create, with(`"ReadOnly":true`, `"ReadOnly":true,"VolumeOptions":{}`), "json.strict"},
		{mine, "POST", create, with(`"HostConfig":{`, `"HostConfig":null,"x":{`), "container.hostconfig"},
		{mine, "POST", create, with(`"shoal.role":"sandbox"`, `"shoal.role":"workspace"`), "name.binding"},
		{mine, "POST", create, with(`"shoal.role":"sandbox"`, `"shoal.role":"none"`), "label.role"},
		{mine, "POST", create, with(`"shoal.disk":"2048"`, `"shoal.disk":"2048","x":"y"`), "label.set"},
		{mine, "POST", create, with(`"shoal.disk":"2048"`, `"shoal.disk":"much"`), "label.value"},
		{mine, "POST", create, with(`"shoal.fleet":"main"`, `"shoal.fleet":"other"`), "label.value"},
		{mine, "POST", create, with(`"shoal.generation":"g1"`, `"shoal.generation":"g2"`), "name.binding"},
		{mine, "POST", create, with(`shoal-sandbox:dev`, `shoal-sandbox:evil`), "container.image"},
		{mine, "POST", create, with(`"User":"0:0"`, `"User":"1:1"`), "container.user"},
		{mine, "POST", create, with(`"WorkingDir":"/"`, `"WorkingDir":"/x"`), "container.workdir"},
		{mine, "POST", create, with(`"Cmd":["serve"]`, `"Cmd":["x"]`), "container.cmd"},
		{mine, "POST", create, with(`"Entrypoint":["/opt/shoal/bin/agent"]`, `"Entrypoint":[]`), "container.entrypoint"},
		{mine, "POST", create, with(`"StopSignal":"SIGTERM"`, `"StopSignal":""`), "container.stopsignal"},
		{mine, "POST", create, with(`"Test":["NONE"]`, `"Test":["CMD","x"]`), "container.healthcheck"},
		{mine, "POST", create, with(`"Soft":8192`, `"Soft":8193`), "container.ulimit"},
		{mine, "POST", create, with(`"Soft":8192`, `"Soft":-1`), "container.ulimit"},
		{mine, "POST", create, with(`"Name":"nofile"`, `"Name":"core"`), "container.ulimit"},
		{mine, "POST", create, with(`size=1024m`, `size=5g`), "container.tmpfs"},
		{mine, "POST", create, with(`size=1024m`, `size=1024t`), "container.tmpfs"},
		{mine, "POST", create, with(`mode=1777`, `mode=4777`), "container.tmpfs"},
		{reference, "POST", "/v1.44/networks/create", `{"Name":"shoal-c1-net","Driver":"macvlan","Internal":true,` + network + `}`, "network.driver"},
		{reference, "POST", "/v1.44/networks/create", `{"Name":"shoal-c1-net","Driver":"bridge",` + network + `}`, "network.internal"},
		{reference, "POST", "/v1.44/networks/create", `{"Name":"shoal-c1-net","Driver":"bridge","Internal":true,"Options":{"com.docker.network.bridge.name":"docker0"},` + network + `}`, "network.options"},
		{reference, "POST", "/v1.44/networks/create", `{"Name":"shoal-c1-net","Driver":"bridge","Internal":true,"Options":{"com.docker.network.bridge.gateway_mode_ipv4":"isolated"},` + network + `}`, ""},
		{reference, "DELETE", "/v1.44/networks/capybara-sandbox", "", "path.name"},
		{reference, "POST", "/v1.44/volumes/create", `{"Name":"shoal-c1-workspace","Driver":"local",` + refVolume + `}`, "volume.driver"},
		{reference, "POST", "/v1.44/volumes/create", `{"Name":"shoal-c1-workspace","DriverOpts":{"size":"1m"},` + refVolume + `}`, "volume.options"},
		{quota, "POST", "/v1.44/volumes/create", `{"Name":"shoal-c1-workspace","Driver":"quotavol","DriverOpts":{"device":"1m"},` + refVolume + `}`, "volume.options"},
		{quota, "POST", "/v1.44/volumes/create", `{"Name":"shoal-c1-workspace","Driver":"quotavol","DriverOpts":{"size":"all"},` + refVolume + `}`, "volume.options"},
		{quota, "POST", "/v1.44/volumes/create", `{"Name":"shoal-c1-workspace","DriverOpts":{"size":"1m"},` + refVolume + `}`, "volume.options"},
		{quota, "POST", "/v1.44/volumes/create", `{"Name":"shoal-c1-workspace","Driver":"quotavol","DriverOpts":{"size":"1m"},` + refVolume + `}`, ""},
		{reference, "POST", "/v1.44/containers/shoal-c1/exec", `{"Cmd":["id"],"User":"0:0","WorkingDir":"/sys/x"}`, "exec.workdir"},
		{reference, "POST", "/v1.44/containers/shoal-c1/exec", `{"Cmd":["id"],"User":"0:0","WorkingDir":"/a/../proc"}`, "exec.workdir"},
		{reference, "POST", "/v1.44/containers/shoal-c1/exec", `{"Cmd":["id"],"User":"0:0","Privileged":true}`, "json.inert"},
		{reference, "POST", "/v1.44/containers/shoal-c1/exec", `{"Cmd":["id"],"User":"0:0","Tty":true}`, "exec.tty"},
		{reference, "POST", "/v1.44/containers/shoal-c1/exec", `{"Cmd":[],"User":"0:0"}`, "exec.cmd"},
		{mine, "POST", "/v1.41/containers/" + ourName + "/exec", `{"Cmd":["sh"],"User":"0:0"}`, "exec.cmd"},
		{mine, "POST", "/v1.41/containers/" + ourName + "/start", "{}", "frame.body"},
		{mine, "GET", "/v1.40/containers/" + ourName + "/json", "", "version"},
		{mine, "GET", "/containers/" + ourName + "/json", "", "version"},
	} {
		if rule := judge(t, c.policy, c.method, c.target, c.body); rule != c.rule {
			t.Errorf("%s %s %.60s: rule %q, want %q", c.method, c.target, c.body, rule, c.rule)
		}
	}
}

// TestFraming names the rule by which each way of framing is refused.
func TestFraming(t *testing.T) {
	t.Parallel()
	policy := defaultPolicy(t)
	valid := encode(t, validCreate(t))
	create, start := "/v1.41/containers/create?name="+ourName, "/v1.41/containers/"+ourName+"/start"
	json := "Content-Type: application/json\r\n"
	for _, c := range []struct{ line, headers, body, rule string }{
		{"POST " + start + " HTTP/1.1", "", "", ""},
		{"POST " + start + " HTTP/1.0", "", "", "frame.protocol"},
		{"POST " + start + " HTTP/1.1", json, "", "frame.body"},
		{"POST " + start + " HTTP/1.1", "Content-Length: 2\r\n", "{}", "frame.body"},
		{"POST " + start + " HTTP/1.1", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n", "frame.length"},
		{"POST " + start + " HTTP/1.1", "Origin: http://x.example\r\n", "", "frame.browser"},
		{"POST " + start + " HTTP/1.1", "Sec-Fetch-Site: none\r\n", "", "frame.browser"},
		{"POST " + create + " HTTP/1.1", json + fmt.Sprintf("Content-Length: %d\r\n", len(valid)), valid, ""},
		{"POST " + create + " HTTP/1.1", json + "Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(valid), valid), "frame.length"},
		{"POST " + create + " HTTP/1.1", json + json + fmt.Sprintf("Content-Length: %d\r\n", len(valid)), valid, "frame.type"},
		{"POST " + create + " HTTP/1.1", fmt.Sprintf("Content-Length: %d\r\n", len(valid)), valid, "frame.type"},
		{"POST " + create + " HTTP/1.1", "Content-Type: text/json\r\n" + fmt.Sprintf("Content-Length: %d\r\n", len(valid)), valid, "frame.type"},
		{"POST " + create + " HTTP/1.1", "Content-Type: application/json; charset=utf-16\r\n" + fmt.Sprintf("Content-Length: %d\r\n", len(valid)), valid, "frame.type"},
		{"POST " + create + " HTTP/1.1", json + "Content-Encoding: gzip\r\n" + fmt.Sprintf("Content-Length: %d\r\n", len(valid)), valid, "frame.encoding"},
		{"POST " + create + " HTTP/1.1", json, "", "frame.body"},
		{"POST " + create + " HTTP/1.1", json + "Content-Length: 32769\r\n", valid, "frame.size"},
		{"POST " + create + " HTTP/1.1", json + fmt.Sprintf("Content-Length: %d\r\n", len(valid)+1), valid, "frame.short"},
		{"POST /v1.41/exec/" + corpusExec + "/start HTTP/1.1", json + "Content-Length: 2\r\n", "{}", "upgrade"},
		{"POST /v1.41/exec/" + corpusExec + "/start HTTP/1.1", json + "Content-Length: 2\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n", "{}", "upgrade"},
		{"POST /v1.41/exec/" + corpusExec + "/start HTTP/1.1", json + "Content-Length: 2\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n", "{}", ""},
	} {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(c.line + "\r\nHost: docker\r\n" + c.headers + "\r\n" + c.body)))
		if err != nil {
			t.Fatal(err)
		}
		rule := ""
		if _, refusal := policy.Judge(r); refusal != nil {
			rule = refusal.Rule
		}
		if rule != c.rule {
			t.Errorf("%s %q: rule %q, want %q", c.line, c.headers, rule, c.rule)
		}
	}
}

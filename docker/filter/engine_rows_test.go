package filter_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestEngineClosed: SF-10, SF-14, SF-15: what must not pass, alone, before the
// real engine. Nothing is made, renamed or removed.
func TestEngineClosed(t *testing.T) {
	e := newRealEngine(t)
	if status, body := e.through(t, "POST", e.createTarget(), e.create(t, nil)); status != http.StatusCreated {
		t.Fatalf("create: %d %s", status, body)
	}
	refused := func(method, target, body string) func(*testing.T) {
		return func(t *testing.T) {
			if status, text := e.through(t, method, target, body); status != http.StatusForbidden {
				t.Errorf("%s %s: %d %s", method, target, status, text)
			}
		}
	}
	second := strings.ReplaceAll(e.createTarget(), ".g1", ".g2")
	for _, item := range forbidden {
		body := strings.ReplaceAll(e.create(t, func(_, host map[string]any) { host[item.key] = item.value }), ".g1", ".g2")
		t.Run("SF-10 "+item.key, refused("POST", second, strings.ReplaceAll(body, `"shoal.generation":"g1"`, `"shoal.generation":"g2"`)))
	}
	for _, call := range []string{
		"POST /containers/NAME/update {}", "POST /containers/NAME/rename?name=NAME2", "POST /commit?container=NAME",
		"POST /networks/none/connect {}", "POST /networks/NAME-net/connect {}", "POST /build", "POST /images/load",
		"GET /plugins", "POST /plugins/pull?remote=x", "POST /swarm/init {}", "GET /swarm", "POST /session", "POST /grpc",
		"PUT /containers/NAME/archive?path=/", "POST /containers/NAME/attach?stream=1", "GET /containers/NAME/logs?stdout=1",
	} {
		words := append(strings.Fields(strings.ReplaceAll(call, "NAME", e.name)), "")
		t.Run("SF-14 "+call, refused(words[0], words[1], words[2]))
	}
	create := e.create(t, nil)
	for _, c := range []struct{ method, target, body string }{
		{"POST", e.createTarget() + "&name=host", create},
		{"POST", "/containers/create?name=host&name=" + e.name, create},
		{"POST", e.createTarget() + "&platform=linux", create},
		{"POST", e.createTarget() + "&Name=host", create},
		{"POST", "/images/create?fromImage=shoal-sandbox:dev&fromSrc=-", ""},
		{"POST", "/images/create?fromImage=shoal-sandbox:dev&changes=USER%20root", ""},
		{"POST", "/images/create?fromImage=shoal-sandbox:dev&repo=x", ""},
		{"DELETE", "/containers/" + e.name + "?force=1&v=1&link=1", ""},
		{"DELETE", "/containers/" + e.name + "?force=1&force=0", ""},
		{"DELETE", "/containers/" + e.name + "?force=1&v=maybe", ""},
		{"DELETE", "/volumes/" + e.name + "-workspace?force=1", ""},
		{"POST", "/containers/" + e.name + "/start?detachKeys=x", ""},
		{"POST", "/containers/" + e.name + "/stop?t=-1", ""},
		{"POST", "/containers/" + e.name + "/stop?t=1&t=2", ""},
	} {
		t.Run("SF-15 "+c.method+" "+c.target, refused(c.method, c.target, c.body))
	}
	if !e.exists(t) {
		t.Error("the container is gone")
	}
	if status, _ := e.direct(t, "GET", "/containers/"+strings.ReplaceAll(e.name, ".g1", ".g2")+"/json", ""); status != http.StatusNotFound {
		t.Errorf("a second container is there: %d", status)
	}
	if status, body := e.direct(t, "GET", "/containers/"+e.name+"/json", ""); status != http.StatusOK || strings.Contains(body, `"Running":true`) {
		t.Errorf("the container was changed: %d", status)
	}
}

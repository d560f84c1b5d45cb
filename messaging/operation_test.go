package messaging_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/vmihailenco/msgpack/v5"

	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

type invalid struct{ op, body, field string }

// bad holds invalid requests: the operation, the body, the field to be named.
var bad = []invalid{
	{"create", `{"name":"-x"}`, "name"},
	{"create", `{"name":"a","limits":{"cpu":0.01}}`, "limits.cpu"},
	{"create", `{"name":"a","limits":{"memoryMb":1}}`, "limits.memoryMb"},
	{"create", `{"name":"a","limits":{"diskMb":1}}`, "limits.diskMb"},
	{"create", `{"name":"a","limits":{"pids":1}}`, "limits.pids"},
	{"create", `{"name":"a","egress":{"mode":"wide"}}`, "egress.mode"},
	{"create", `{"name":"a","egress":{"hosts":["a.b"]}}`, "egress.hosts"},
	{"create", `{"name":"a","image":"a b"}`, "image"},
	{"create", `{"name":"a","env":{"1":"x"}}`, "env"},
	{"create", `{"name":"a","metadata":{"":"x"}}`, "metadata"},
	{"create", `{"name":"a","setup":[{"shell":""}]}`, "setup.shell"},
	{"create", `{"name":"a","setup":[{"shell":"x","timeoutMs":-1}]}`, "setup.timeoutMs"},
	{"create", `{"name":"a","setup":[{"shell":"x","egress":{"mode":"x"}}]}`, "setup.egress.mode"},
	{"create", `{"name":"a","setup":[{"shell":"x","egress":{"mode":"allowlist","hosts":[" "]}}]}`, "setup.egress.hosts"},
	{"create", `{"name":"a","ttlMs":-1}`, "ttlMs"},
	{"create", `{"name":"a","nmae":"b"}`, "nmae"},
	{"create", `{"name":"a","limits":{"cpus":1}}`, "limits.cpus"},
	{"create", `{"name":5}`, "name"},
	{"create", `{"name":"a","limits":{"cpu":"one"}}`, "limits.cpu"},
	{"create", `[]`, "body"},
	{"get", `{}`, "sandbox"},
	{"get", `{"sandbox":"a","generation":"a.b"}`, "generation"},
	{"list", `{"limit":501}`, "limit"},
	{"list", `{"state":"odd"}`, "state"},
	{"list", `{"after":"."}`, "after"},
	{"list", `{"metadata":{"a b":"c"}}`, "metadata"},
	{"suspend", `{"sandbox":"a","mode":"deep"}`, "mode"},
	{"exec", `{"sandbox":"a","command":{"shell":"x"}}`, "id"},
	{"exec", `{"sandbox":"a","command":{"id":"c"}}`, "shell"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","argv":["y"]}}`, "argv"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","cwd":"rel"}}`, "cwd"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","env":{"1":"x"}}}`, "env"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","maxOutput":-1}}`, "maxOutput"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","stdin":"stream","input":"aGkK"}}`, "input"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","onDisconnect":"stop"}}`, "onDisconnect"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","graceMs":3600001}}`, "graceMs"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","overflow":"grow"}}`, "overflow"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","keepAwake":true}}`, "keepAwake"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","timeoutMs":7200001}}`, "timeoutMs"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","stdin":"pipe"}}`, "stdin"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","tag":"a.b"}}`, "tag"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","token":"t"}}`, "token"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shell":"x","tty":{"rows":0,"cols":1}}}`, "tty"},
	{"exec", `{"sandbox":"a","boot":"a b","command":{"id":"c","shell":"x"}}`, "boot"},
	{"exec", `{"sandbox":"a","window":1,"command":{"id":"c","shell":"x"}}`, "window"},
	{"exec", `{"sandbox":"a","detach":true,"command":{"id":"c","shell":"x"}}`, "detach"},
	{"exec", `{"sandbox":"a","command":{"id":"c","shel":"x"}}`, "command.shel"},
	{"follow", `{"sandbox":"a","id":"c","from":-2}`, "from"},
	{"follow", `{"sandbox":"a","from":0}`, "id"},
	{"follow", `{"sandbox":"a","id":"c","from":0,"silent":"a.b"}`, "silent"},
	{"follow", `{"sandbox":"a","id":"c","from":0,"window":1048577}`, "window"},
	{"wait", `{"sandbox":"a"}`, "id"},
	{"kill", `{"sandbox":"a","kill":{}}`, "kill"},
	{"kill", `{"sandbox":"a","kill":{"ids":["a.b"]}}`, "kill.ids"},
	{"kill", `{"sandbox":"a","kill":{"tags":["*"]}}`, "kill.tags"},
	{"kill", `{"sandbox":"a","kill":{"all":true,"by":"` + strings.Repeat("x", 65) + `"}}`, "kill.by"},
	{"read", `{"sandbox":"a","path":"/a/../b"}`, "path"},
	{"read", `{"sandbox":"a","path":"/a","offset":-1}`, "offset"},
	{"read", `{"sandbox":"a","path":"/a","limit":-1}`, "limit"},
	{"read", `{"sandbox":"a","path":"/a","window":1}`, "window"},
	{"write", `{"sandbox":"a","path":"/a","size":5}`, "size"},
	{"write", `{"sandbox":"a","path":"/a","size":3,"data":"aGkK","upload":true}`, "data"},
	{"write", `{"sandbox":"a","path":"/a","size":0,"mode":2048}`, "mode"},
	{"write", `{"sandbox":"a","path":"/a","size":0,"ifHash":"XY"}`, "ifHash"},
	{"stat", `{"sandbox":"a","path":""}`, "path"},
	{"files", `{"sandbox":"a","path":"/a","limit":1001}`, "limit"},
	{"mkdir", `{"sandbox":"a","path":"/a","mode":512}`, "mode"},
	{"remove", `{"sandbox":"a","path":"x"}`, "path"},
	{"rename", `{"sandbox":"a","path":"/a","to":"b"}`, "to"},
	{"tar-get", `{"sandbox":"a","path":"/a","window":1}`, "window"},
	{"tar-put", `{"sandbox":"a","path":"/a","size":-2}`, "size"},
	{"forward", `{"sandbox":"a","port":0}`, "port"},
	{"forward", `{"sandbox":"a","port":65536}`, "port"},
	{"forward", `{"sandbox":"a","port":1,"window":1}`, "window"},
	{"egress.set", `{"sandbox":"a","egress":{"mode":"allowlist","hosts":["bücher.example"]}}`, "egress.hosts"},
	{"egress.set", `{"sandbox":"a","egress":{"mode":"none"},"add":true}`, "add"},
	{"egress.set", `{"sandbox":"a","egress":{"mode":"x"}}`, "egress.mode"},
	{"lock.acquire", `{"sandbox":"a","tag":""}`, "tag"},
	{"lock.acquire", `{"sandbox":"a","tag":"t","ttlMs":1999}`, "ttlMs"},
	{"lock.acquire", `{"sandbox":"a","tag":"t","waitMs":600001}`, "waitMs"},
	{"lock.acquire", `{"sandbox":"a","tag":"t","holder":"` + strings.Repeat("x", 129) + `"}`, "holder"},
	{"lock.renew", `{"sandbox":"a","tag":"t"}`, "token"},
	{"lock.renew", `{"sandbox":"a","tag":"a.b","token":"x"}`, "tag"},
	{"lock.renew", `{"sandbox":"a","tag":"t","token":"x","ttlMs":3600001}`, "ttlMs"},
	{"lock.release", `{"sandbox":"a","tag":"","token":"x"}`, "tag"},
	{"lock.release", `{"sandbox":"a","tag":"*","token":"."}`, "token"},
	{"lock.list", `{"sandbox":"."}`, "sandbox"},
	{"sweep", `{"dryRun":1}`, "dryRun"},
	{"command.stdin", `{"offset":-1}`, "offset"},
	{"command.stdin", `{"offset":0,"data":"` + strings.Repeat("AAAA", 87382) + `"}`, "data"},
	{"command.signal", `{"seq":0,"signal":1}`, "seq"},
	{"command.signal", `{"seq":1,"signal":65}`, "signal"},
	{"command.resize", `{"seq":0,"rows":1,"cols":1}`, "seq"},
	{"command.resize", `{"seq":1,"rows":0,"cols":1}`, "rows"},
	{"command.resize", `{"seq":1,"rows":1,"cols":0}`, "cols"},
	{"data", `{"offset":-1}`, "offset"},
	{"data", `{"offset":0,"data":"` + strings.Repeat("AAAA", 87382) + `"}`, "data"},
	{"ack", `{"stream":"a.b","offset":0}`, "stream"},
	{"ack", `{"stream":"r","offset":-1}`, "offset"},
	{"cancel", `{"offset":0}`, "stream"},
	{"adopt", `{"tenant":"A","sandbox":"a"}`, "tenant"},
	{"adopt", `{"tenant":"a","sandbox":"."}`, "sandbox"},
}

// unruled are the fields in which every value of their form is valid.
var unruled = map[string]bool{"files after": true}

// everyBad adds to the invalid requests what is the same for many: an unknown
// field, a bad name, generation and path. It fails for a field without one.
func everyBad(t *testing.T) []invalid {
	t.Helper()
	all := slices.Clone(bad)
	for op, fields := range messaging.RuledFields(t) {
		all = append(all, invalid{string(op), `{"nmae":1}`, "nmae"})
		if slices.Contains(fields, "generation") {
			all = append(all, invalid{string(op), `{"sandbox":"."}`, "sandbox"}, invalid{string(op), `{"sandbox":"a","generation":"a.b"}`, "generation"})
		}
		if slices.Contains(fields, "path") {
			all = append(all, invalid{string(op), `{"sandbox":"a","path":"/a/"}`, "path"})
		}
	}
	for op, fields := range messaging.RuledFields(t) {
		for _, field := range fields {
			way := strings.Split(field, ".")
			covered := slices.ContainsFunc(all, func(c invalid) bool {
				return c.op == string(op) && (c.field == field || op == messaging.OpExec && slices.Contains(way[1:], c.field))
			})
			if !covered && !unruled[string(op)+" "+field] {
				t.Errorf("no invalid request for the field %s of %s", field, op)
			}
		}
	}
	return all
}

// subjectOf is where worker w1 takes an operation, or a word about a stream.
func subjectOf(op string) string {
	verb, isVerb := strings.CutPrefix(op, "command.")
	switch {
	case isVerb || op == "ack" || op == "cancel":
		return "shoal.v1.main.at.w1.command.box.c1." + verb
	case op == "data":
		return "shoal.v1.main.at.w1.file.box.r1.data"
	case op == "ping" || op == "adopt":
		return "shoal.v1._fleet.w1." + op
	}
	return "shoal.v1.main." + op
}

// Every invalid field of every request is answered Invalid, naming the field,
// in both encodings, and no handler sees it.
func TestInvalidFieldsAreNamed(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	startServer(t, messagingtest.Conn(t, ns), "w1", func(_ context.Context, r *messaging.Request) (any, error) {
		t.Errorf("%s reached the handler with %+v", r.Op, r.Body)
		return messaging.Done{}, nil
	})
	nc := messagingtest.Conn(t, ns)
	for _, c := range everyBad(t) {
		for _, asJSON := range []bool{true, false} {
			got := ask(t, nc, subjectOf(c.op), []byte(c.body), asJSON, nil)
			if got.Code != sandbox.Invalid || got.Field != c.field {
				t.Errorf("%s %.200s (json %v): %s names %q, want %q", c.op, c.body, asJSON, got.Code, got.Field, c.field)
			}
		}
	}
}

// ask sends a body, given as JSON, and returns the error it is answered with.
func ask(t *testing.T, nc *nats.Conn, subject string, body []byte, asJSON bool, header nats.Header) *sandbox.Error {
	t.Helper()
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	if asJSON {
		m.Header.Set("Content-Type", "application/json")
	} else {
		m.Data = toMsgpack(t, body)
	}
	maps.Copy(m.Header, header)
	reply, err := nc.RequestMsg(m, 5*time.Second)
	if err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	data := reply.Data
	if !asJSON {
		data = toJSON(t, data)
	}
	var a struct {
		Error  *sandbox.Error
		Answer struct{ Error *sandbox.Error }
	}
	if err := json.Unmarshal(data, &a); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	switch {
	case a.Error != nil:
		return a.Error
	case a.Answer.Error != nil:
		return a.Answer.Error
	}
	return &sandbox.Error{}
}

func toMsgpack(t *testing.T, body []byte) []byte {
	t.Helper()
	var v any
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	out, err := msgpack.Marshal(numbers(v))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// numbers makes integers of JSON's numbers where they are.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	}
	return v
}

// toJSON turns an answer, or the frame that carries one, into JSON.
func toJSON(t *testing.T, data []byte) []byte {
	t.Helper()
	var v any
	if err := msgpack.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if frame, ok := v.([]any); ok {
		v = map[string]any{"answer": frame[5]}
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestBadHeadersAndBodies(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	var handled atomic.Int64
	startServer(t, messagingtest.Conn(t, ns), "w1", func(context.Context, *messaging.Request) (any, error) {
		handled.Add(1)
		return messaging.ListAnswer{}, nil
	})
	nc := messagingtest.Conn(t, ns)
	past := strconv.FormatInt(time.Now().Add(-70*time.Second).UnixMilli(), 10)
	late := strconv.FormatInt(time.Now().Add(-30*time.Second).UnixMilli(), 10)
	for _, c := range []struct {
		name   string
		header nats.Header
		code   sandbox.Code
		field  string
	}{
		{"plain", nil, "", ""},
		{"protocol", nats.Header{"Shoal-Protocol": {"2"}}, sandbox.Unsupported, ""},
		{"content", nats.Header{"Content-Type": {"text/xml"}}, sandbox.Invalid, "Content-Type"},
		{"request id", nats.Header{"Shoal-Request": {"a.b"}}, sandbox.Invalid, "Shoal-Request"},
		{"no time left", nats.Header{"Shoal-Timeout": {"0"}}, sandbox.Timeout, ""},
		{"time", nats.Header{"Shoal-Timeout": {"soon"}}, sandbox.Invalid, "Shoal-Timeout"},
		{"the most time", nats.Header{"Shoal-Timeout": {"86400000"}}, "", ""},
		{"more time", nats.Header{"Shoal-Timeout": {"86400001"}}, sandbox.Invalid, "Shoal-Timeout"},
		{"a clock that differs", nats.Header{"Shoal-Deadline": {late}}, "", ""},
		{"deadline over", nats.Header{"Shoal-Deadline": {past}}, sandbox.Timeout, ""},
		{"deadline", nats.Header{"Shoal-Deadline": {"x"}}, sandbox.Invalid, "Shoal-Deadline"},
	} {
		before := handled.Load()
		got := ask(t, nc, "shoal.v1.main.list", []byte(`{}`), true, c.header)
		if got.Code != c.code || got.Field != c.field {
			t.Errorf("%s: %v, want code %q of %q", c.name, got, c.code, c.field)
		}
		if did := handled.Load() - before; (did == 1) != (c.code == "") {
			t.Errorf("%s: %d requests reached the handler", c.name, did)
		}
	}
	for _, body := range []string{`{"limit":1}{}`, `{"limit":1,"limit":2}`, `{"limit":1`, strings.Repeat(`[`, 100), `{"metadata":` + strings.Repeat(`{"a":`, 50)} {
		m := &nats.Msg{Subject: "shoal.v1.main.list", Data: []byte(body), Header: nats.Header{"Content-Type": {"application/json"}}}
		reply, err := nc.RequestMsg(m, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Header.Get("Nats-Service-Error-Code"); got != "invalid" {
			t.Errorf("%.40s: code %q", body, got)
		}
	}
	trailing := append(toMsgpack(t, []byte(`{"limit":1}`)), 0xc0)
	twice := []byte{0x82, 0xa5, 'l', 'i', 'm', 'i', 't', 1, 0xa5, 'l', 'i', 'm', 'i', 't', 2}
	for _, data := range [][]byte{trailing, twice, {0xc1}, []byte(strings.Repeat("\x91", 1000))} {
		reply, err := nc.Request("shoal.v1.main.list", data, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Header.Get("Nats-Service-Error-Code"); got != "invalid" {
			t.Errorf("%.20x: code %q", data, got)
		}
	}
}

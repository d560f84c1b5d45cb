package e2btest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// kind is a JSON type as the OpenAPI validator checks it.
type kind string

const (
	typeInt     kind = "integer"
	typeBool    kind = "boolean"
	typeString  kind = "string"
	typeObject  kind = "object"
	typeStrings kind = "array"
)

// schema names the fields that have a type; others are accepted and ignored.
type schema map[string]kind

// fields is a validated body.
type fields map[string]json.RawMessage

func (f fields) integer(name string) (int, bool) {
	var n int
	return n, f[name] != nil && json.Unmarshal(f[name], &n) == nil
}

func (f fields) boolean(name string) bool { return string(f[name]) == "true" }
func (f fields) falsy(name string) bool   { return string(f[name]) == "false" }

func (f fields) text(name string) string {
	var s string
	_ = json.Unmarshal(f[name], &s)
	return s
}

func (f fields) strings(name string) []string {
	var s []string
	_ = json.Unmarshal(f[name], &s)
	return s
}

const validation = "validation error: error in openapi3filter.RequestError: request body has an error: "

func invalid(w http.ResponseWriter, field, why string) {
	fail(w, http.StatusBadRequest, fmt.Sprintf("%sdoesn't match schema: Error at %q: %s", validation, "/"+field, why))
}

func missing(w http.ResponseWriter, field string) {
	invalid(w, field, fmt.Sprintf("property %q is missing", field))
}

// readBody validates a body. It answers failures itself.
func readBody(w http.ResponseWriter, r *http.Request, s schema, required bool) (fields, bool) {
	data, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	switch {
	case err != nil:
		fail(w, http.StatusBadRequest, err.Error())
		return nil, false
	case len(data) == 0 && !required:
		return fields{}, true
	case len(data) == 0:
		fail(w, http.StatusBadRequest, validation+"value is required but missing")
		return nil, false
	case !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json"):
		fail(w, http.StatusBadRequest, validation+fmt.Sprintf("header Content-Type has unexpected value %q", r.Header.Get("Content-Type")))
		return nil, false
	}
	var f fields
	if json.Unmarshal(data, &f) != nil {
		fail(w, http.StatusBadRequest, validation+"failed to decode request body")
		return nil, false
	}
	for name, k := range s {
		if raw, given := f[name]; given && !k.holds(raw) {
			invalid(w, name, "value must be "+article(k))
			return nil, false
		}
	}
	return f, true
}

func article(k kind) string {
	if strings.ContainsAny(string(k[:1]), "aio") {
		return "an " + string(k)
	}
	return "a " + string(k)
}

// holds reports whether raw is of kind k. Numbers are strict: "1" and 1.5 are
// no integers, and none is negative.
func (k kind) holds(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	switch k {
	case typeInt:
		var n int32
		return json.Unmarshal(raw, &n) == nil && string(raw) != "null" && n >= 0
	case typeBool:
		return string(raw) == "true" || string(raw) == "false"
	case typeString:
		return len(raw) > 0 && raw[0] == '"'
	case typeObject:
		return len(raw) > 0 && raw[0] == '{'
	default:
		var s []string
		return len(raw) > 0 && raw[0] == '[' && json.Unmarshal(raw, &s) == nil
	}
}

// createRequest is a create, validated.
type createRequest struct {
	template        string
	timeout         int
	autoPause       bool
	autoPauseMemory bool
	autoResume      bool
	secured         bool
	public          bool
	internet        *bool
	metadata        map[string]string
	allow, deny     []string
}

// egress is the firewall's setting: no internet replaces the list of denials
// and keeps the allowed ones.
func (c createRequest) egress() egress {
	e := egress{internet: c.internet, allow: c.allow, deny: c.deny}
	if c.internet != nil && !*c.internet {
		e.deny = []string{everything}
	}
	return e
}

const everything = "0.0.0.0/0"

func readCreate(w http.ResponseWriter, r *http.Request, second bool) (createRequest, bool) {
	f, ok := readBody(w, r, schema{
		"templateID": typeString, "timeout": typeInt, "autoPause": typeBool, "autoPauseMemory": typeBool,
		"autoResume": typeObject, "secure": typeBool, "allow_internet_access": typeBool, "network": typeObject,
		"metadata": typeObject, "envVars": typeObject,
	}, true)
	if !ok {
		return createRequest{}, false
	}
	c := createRequest{
		template: f.text("templateID"), timeout: 15, autoPause: f.boolean("autoPause"),
		autoPauseMemory: !f.falsy("autoPauseMemory"), secured: second || f.boolean("secure"), public: true,
	}
	if second {
		c.timeout = 300
	}
	if n, given := f.integer("timeout"); given {
		c.timeout = n
	}
	if f["allow_internet_access"] != nil {
		c.internet = new(f.boolean("allow_internet_access"))
	}
	var resume struct {
		Enabled bool `json:"enabled"`
	}
	_ = json.Unmarshal(f["autoResume"], &resume)
	c.autoResume = resume.Enabled
	if f["metadata"] != nil && json.Unmarshal(f["metadata"], &c.metadata) != nil {
		invalid(w, "metadata", "value must be a string")
		return c, false
	}
	ok = c.judge(w, f)
	return c, ok
}

// judge applies what the handler checks after the validator.
func (c *createRequest) judge(w http.ResponseWriter, f fields) bool {
	var n fields
	_ = json.Unmarshal(f["network"], &n)
	c.public = !n.falsy("allowPublicTraffic")
	c.allow, c.deny = n.strings("allowOut"), n.strings("denyOut")
	switch {
	case f["templateID"] == nil:
		missing(w, "templateID")
	case c.timeout == 0:
		fail(w, http.StatusBadRequest, "Timeout must be greater than 0")
	case !c.autoPauseMemory && !c.autoPause:
		fail(w, http.StatusBadRequest, "autoPauseMemory can only be set when autoPause is enabled")
	case !c.autoPauseMemory && c.autoResume:
		fail(w, http.StatusBadRequest, "autoResume cannot be combined with autoPauseMemory false")
	case !c.public && !c.secured:
		fail(w, http.StatusBadRequest, "Public traffic can only be restricted for secured sandboxes")
	default:
		return judgeNetwork(w, c.allow, c.deny)
	}
	return false
}

// judgeNetwork applies the rules for the two lists.
func judgeNetwork(w http.ResponseWriter, allow, deny []string) bool {
	for _, d := range deny {
		if d != everything && !address(d) {
			fail(w, http.StatusBadRequest, "invalid denied CIDR "+d)
			return false
		}
	}
	named := slices.ContainsFunc(allow, func(a string) bool { return !address(a) })
	if named && !slices.Contains(deny, everything) {
		fail(w, http.StatusBadRequest, "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all other traffic.")
		return false
	}
	return true
}

// address reports an IP or CIDR that is not unspecified.
func address(text string) bool {
	if a, err := netip.ParseAddr(text); err == nil {
		return !a.IsUnspecified()
	}
	p, err := netip.ParsePrefix(text)
	return err == nil && !p.Addr().IsUnspecified()
}

func (s *Server) setNetwork(w http.ResponseWriter, r *http.Request, b *box) {
	f, ok := readBody(w, r, schema{"allowOut": typeStrings, "denyOut": typeStrings, "allow_internet_access": typeBool, "rules": typeObject}, true)
	if !ok {
		return
	}
	e := egress{allow: f.strings("allowOut"), deny: f.strings("denyOut")}
	if !judgeNetwork(w, e.allow, e.deny) {
		return
	}
	if f["allow_internet_access"] != nil {
		e.internet = new(f.boolean("allow_internet_access"))
		if !*e.internet {
			e.deny = []string{everything}
		}
	}
	if b.now() != running {
		fail(w, http.StatusConflict, fmt.Sprintf("Sandbox '%s' is not running", b.id))
		return
	}
	b.mu.Lock()
	b.network = e
	b.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

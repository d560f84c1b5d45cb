package filter

import (
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
)

// A Call is an admitted request, written anew. The engine gets Method, Target
// and Body and no header of the caller.
type Call struct {
	Rule   string // the policy's name of the call
	Method string
	Target string // path and query
	Body   []byte // nil where the call takes none
	Change bool   // it changes something
	Hijack bool   // it becomes a raw stream when the engine answers 101
	Name   string // the object that the call names: a container, volume, network, image or exec
	Former string // the container's name before a rename

	version  string // "1.44", or "" where the target has none
	params   []param
	endpoint *endpoint
}

// Judge judges a whole request. The body is read only where the call takes one
// and never beyond the policy's bound. It does no other input or output: who
// owns an exec is looked up by the filter afterwards.
func (p *Policy) Judge(r *http.Request) (*Call, *Refusal) {
	if r := judgeFraming(r); r != nil {
		return nil, r
	}
	c, refusal := p.judgeTarget(r.Method, r.RequestURI)
	if refusal != nil {
		return nil, refusal
	}
	if c.Hijack && !isUpgrade(r.Header) {
		return nil, refuse("upgrade", "%s needs Connection: Upgrade and Upgrade: tcp", c.Rule)
	}
	if c.endpoint.body == nil {
		return c, judgeNoBody(r)
	}
	body, refusal := p.readBody(r)
	if refusal != nil {
		return nil, refusal
	}
	if refusal := c.endpoint.body(p, c, body); refusal != nil {
		return nil, refusal
	}
	return c, nil
}

// judgeTarget judges method, path and query.
func (p *Policy) judgeTarget(method, uri string) (*Call, *Refusal) {
	t, r := parseTarget(uri)
	if r != nil {
		return nil, r
	}
	e, vars := findEndpoint(method, t.segments)
	if e == nil {
		return nil, refuse("path.unknown", "there is no such call")
	}
	if _, ok := p.Calls[e.rule]; !ok {
		return nil, refuse("call", "%s is not admitted", e.rule)
	}
	if t.version == "" && !e.unversioned || t.version != "" && !p.admitsVersion(t.version) {
		return nil, refuse("version", "the API version must be from %s to %s", p.MinAPI, p.MaxAPI)
	}
	if r := p.judgeVars(e, vars); r != nil {
		return nil, r
	}
	params, query, r := p.judgeQuery(e, t.query)
	if r != nil {
		return nil, r
	}
	c := &Call{
		Rule: e.rule, Method: method, Target: "/" + strings.Join(t.segments, "/"), Change: e.change, Hijack: e.hijack,
		version: t.version, params: params, endpoint: e,
	}
	for _, name := range vars { // a template has one variable at most
		c.Name = name
	}
	for _, key := range []string{"name", "fromImage"} {
		v := valueOf(params, key)
		if v == nil {
			continue
		}
		if e.names != nil {
			if r := e.names(p, c.Name, *v); r != nil {
				return nil, r
			}
			c.Former = c.Name
		}
		c.Name = *v
	}
	if t.version != "" {
		c.Target = "/v" + t.version + c.Target
	}
	if query != "" {
		c.Target += "?" + query
	}
	return c, nil
}

func (p *Policy) judgeVars(e *endpoint, vars map[string]string) *Refusal {
	for kind, value := range vars {
		ok := false
		switch kind {
		case "container", "volume":
			ok = p.namesObject(kind, value, e.remove)
		case "network":
			ok = p.namesObject(kind, value, e.remove) || !e.remove && slices.Contains(p.Networks, value)
		case "exec":
			ok = isExecID(value)
		case "image":
			ok = p.admitsImage(value)
		}
		if !ok {
			return refuse("path.name", "the path names no %s of ours", kind)
		}
	}
	return nil
}

// judgeFraming judges what holds for all requests.
func judgeFraming(r *http.Request) *Refusal {
	switch {
	case r.ProtoMajor != 1 || r.ProtoMinor != 1:
		return malformed("frame.protocol", "only HTTP/1.1 is spoken")
	case len(r.TransferEncoding) > 0 || len(r.Trailer) > 0 || r.ContentLength < 0:
		return refuse("frame.length", "a body needs a Content-Length and no transfer coding")
	case r.Header.Get("Content-Encoding") != "":
		return refuse("frame.encoding", "an encoded body is not understood")
	case len(r.Header.Values("Content-Type")) > 1:
		return refuse("frame.type", "two content types")
	}
	for name := range r.Header {
		if name == "Origin" || name == "Referer" || strings.HasPrefix(name, "Sec-") {
			return refuse("frame.browser", "a browser's request")
		}
	}
	return nil
}

func judgeNoBody(r *http.Request) *Refusal {
	// A form's values would come before those of the query in the engine.
	if r.ContentLength != 0 || len(r.Header.Values("Content-Type")) > 0 {
		return refuse("frame.body", "this call takes no body and no content type")
	}
	return nil
}

func (p *Policy) readBody(r *http.Request) ([]byte, *Refusal) {
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" || len(params) > 1 || len(params) == 1 && !strings.EqualFold(params["charset"], "utf-8") {
		return nil, refuse("frame.type", "the content type must be application/json")
	}
	if r.ContentLength == 0 {
		return nil, refuse("frame.body", "this call needs a body")
	}
	if r.ContentLength > p.MaxBody {
		return nil, &Refusal{"frame.size", "the body is too long", http.StatusRequestEntityTooLarge}
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return nil, malformed("frame.short", "the body is shorter than its Content-Length")
	}
	return body, nil
}

// isUpgrade reports whether the headers ask for a raw stream, as the Docker
// client does.
func isUpgrade(h http.Header) bool {
	return slices.Equal(h.Values("Upgrade"), []string{"tcp"}) &&
		len(h.Values("Connection")) == 1 && strings.EqualFold(h.Get("Connection"), "upgrade")
}

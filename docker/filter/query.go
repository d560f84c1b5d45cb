package filter

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Longest waits that a caller may ask the engine for, in seconds.
const maxStopSeconds = 600

// A param is one key and its value, decoded once.
type param struct{ key, value string }

// judgeQuery takes the raw query apart, strictly, and writes it anew. The
// engine reads the first of two equal keys and decodes keys too, so neither
// doubles nor encoded keys are allowed.
func (p *Policy) judgeQuery(e *endpoint, raw string) (params []param, rewritten string, r *Refusal) {
	admitted := p.Calls[e.rule]
	if raw != "" {
		for pair := range strings.SplitSeq(raw, "&") {
			one, r := parseParam(pair)
			if r != nil {
				return nil, "", r
			}
			if !slices.Contains(admitted, one.key) {
				return nil, "", refuse("query.key", "the query has a key that %s does not take", e.rule)
			}
			if valueOf(params, one.key) != nil {
				return nil, "", refuse("query.double", "the query has a key twice")
			}
			params = append(params, one)
		}
	}
	for _, key := range e.required {
		if valueOf(params, key) == nil {
			return nil, "", refuse("query.required", "%s needs the key %s", e.rule, key)
		}
	}
	var b strings.Builder
	for i := range params {
		if r := p.judgeParam(&params[i]); r != nil {
			return nil, "", r
		}
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(params[i].key + "=" + url.QueryEscape(params[i].value))
	}
	return params, b.String(), nil
}

func parseParam(pair string) (param, *Refusal) {
	key, value, ok := strings.Cut(pair, "=")
	if !ok || key == "" || !only(key, isAlnum) {
		return param{}, refuse("query.grammar", "the query is not key=value with a plain key")
	}
	if strings.ContainsAny(value, "+;=#") {
		return param{}, refuse("query.grammar", "the query has a value with '+', ';', '=' or '#' unescaped")
	}
	decoded, err := url.QueryUnescape(value)
	if err != nil {
		return param{}, refuse("query.grammar", "the query has a value with a bad escape")
	}
	return param{key, decoded}, nil
}

func valueOf(params []param, key string) *string {
	for i := range params {
		if params[i].key == key {
			return &params[i].value
		}
	}
	return nil
}

// judgeParam judges one value by its key; keys mean the same in all calls.
func (p *Policy) judgeParam(q *param) *Refusal {
	ok := false
	switch q.key {
	case "name":
		ok = isName(q.value, p.Prefix)
	case "t":
		n, err := strconv.Atoi(q.value)
		ok = err == nil && n >= 0 && n <= maxStopSeconds && only(q.value, isDigit)
	case "signal":
		ok = slices.Contains([]string{"SIGKILL", "SIGTERM", "KILL", "TERM"}, q.value)
	case "force", "v", "all":
		ok = slices.Contains([]string{"1", "true", "0", "false"}, q.value)
	case "condition":
		ok = slices.Contains([]string{"not-running", "next-exit", "removed"}, q.value)
	case "fromImage":
		ok = p.admitsImage(q.value)
	case "filters":
		return p.judgeFilters(q)
	}
	if !ok {
		return refuse("query.value", "the value of %s is outside its grammar", q.key)
	}
	return nil
}

// judgeFilters admits a filter by labels of ours alone, such as
// {"label":["shoal.fleet=main"]}, and writes it anew.
func (p *Policy) judgeFilters(q *param) *Refusal {
	var f struct {
		Label []string `json:"label"`
	}
	if r := decodeStrict([]byte(q.value), &f); r != nil {
		return r
	}
	seen := map[string]bool{}
	for _, label := range f.Label {
		key, value, _ := strings.Cut(label, "=")
		if seen[key] || !slices.Contains(p.ListLabels, key) || !p.labelValueOK(key, value) {
			return refuse("query.filters", "a list is filtered by our own labels alone, each once")
		}
		seen[key] = true
	}
	if !seen[p.ListLabels[0]] {
		return refuse("query.filters", "a list must be filtered by the label %s", p.ListLabels[0])
	}
	out, r := encode(f)
	q.value = string(out)
	return r
}

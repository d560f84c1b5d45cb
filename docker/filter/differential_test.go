package filter_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"pgregory.net/rapid"
)

// A node is a JSON value whose members keep their order and may be doubled,
// which no decoded form can hold.
type node struct {
	members []member // of an object
	items   []*node  // of an array
	text    string   // of anything else, as JSON
	kind    byte     // '{', '[' or 0
}

type member struct {
	key   string // as JSON, with its quotes
	value *node
}

func parseNode(t testing.TB, d *json.Decoder) *node {
	t.Helper()
	token, err := d.Token()
	if err != nil {
		t.Fatal(err)
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return &node{text: encode(t, token)}
	}
	n := &node{kind: byte(delim)}
	for d.More() {
		if n.kind == '[' {
			n.items = append(n.items, parseNode(t, d))
			continue
		}
		key, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		n.members = append(n.members, member{encode(t, key), parseNode(t, d)})
	}
	_, _ = d.Token() // the closing one
	return n
}

func (n *node) String() string {
	var parts []string
	switch n.kind {
	case '{':
		for _, m := range n.members {
			parts = append(parts, m.key+":"+m.value.String())
		}
		return "{" + strings.Join(parts, ",") + "}"
	case '[':
		for _, item := range n.items {
			parts = append(parts, item.String())
		}
		return "[" + strings.Join(parts, " , ") + "]"
	}
	return n.text
}

// all returns n and everything below it.
func (n *node) all() []*node {
	out := []*node{n}
	for _, m := range n.members {
		out = append(out, m.value.all()...)
	}
	for _, item := range n.items {
		out = append(out, item.all()...)
	}
	return out
}

// extraKeys are what the engine knows beside what a valid body holds.
func extraKeys() (keys []string) {
	for _, typ := range []reflect.Type{reflect.TypeFor[container.Config](), reflect.TypeFor[container.HostConfig](), reflect.TypeFor[container.ExecOptions]()} {
		for _, f := range jsonFields(typ) {
			keys = append(keys, f.name)
		}
	}
	return keys
}

var leaves = []string{"null", "true", "false", "0", "1", "-1", `""`, `"x"`, "[]", "{}", "1e3", "[null]", `{"":null}`, "[0,0]"}

// mutate changes one thing about the tree.
func mutate(t *rapid.T, root *node, keys []string) {
	nodes := root.all()
	n := rapid.SampledFrom(nodes).Draw(t, "node")
	switch {
	case n.kind == '{' && len(n.members) > 0:
		i := rapid.IntRange(0, len(n.members)-1).Draw(t, "member")
		m := n.members[i]
		switch rapid.IntRange(0, 6).Draw(t, "change") {
		case 0: // double, with the same value or another
			n.members = append(n.members, member{m.key, &node{text: rapid.SampledFrom([]string{m.value.String(), "null", "{}", "[]"}).Draw(t, "value")}})
		case 1: // another spelling beside it or instead of it
			key := rapid.SampledFrom([]string{strings.ToLower(m.key), strings.ToUpper(m.key), strings.ReplaceAll(m.key, "s", "ſ"), escapeKey(m.key)}).Draw(t, "key")
			if rapid.Bool().Draw(t, "beside") {
				n.members = append(n.members, member{key, m.value})
			} else {
				n.members[i].key = key
			}
		case 2: // last becomes first
			n.members = append([]member{n.members[len(n.members)-1]}, n.members[:len(n.members)-1]...)
		case 3:
			n.members = append(n.members[:i:i], n.members[i+1:]...)
		default:
			n.members = append(n.members, member{`"` + rapid.SampledFrom(keys).Draw(t, "key") + `"`, &node{text: rapid.SampledFrom(leaves).Draw(t, "value")}})
		}
	case n.kind == '[':
		n.items = append(n.items, &node{text: rapid.SampledFrom(leaves).Draw(t, "item")})
	default:
		if strings.HasPrefix(n.text, `"`) && len(n.text) > 2 && rapid.IntRange(0, 2).Draw(t, "escape") > 0 {
			n.text = escapeKey(n.text)
			return
		}
		*n = node{text: rapid.SampledFrom(leaves).Draw(t, "value")}
	}
}

// escapeKey writes the first character of a JSON string as an escape.
func escapeKey(s string) string {
	if len(s) < 3 || s[1] == '\\' || s[1] >= 0x80 {
		return s
	}
	return fmt.Sprintf("\"\\u%04x%s", s[1], s[2:])
}

// TestDifferential changes valid bodies in structure — doubles, spellings,
// order, escapes, null, keys that the engine knows — and holds the filter to
// what FuzzBody says. Enough of them must be admitted for that to mean a thing.
func TestDifferential(t *testing.T) {
	type base struct{ target, body string }
	var bases []base
	for _, file := range []string{"testdata/dockerproxy-cases.json", "testdata/shoal-cases.json"} {
		cases := readCases(t, file)
		for i := range cases.Cases {
			c := &cases.Cases[i]
			if c.Expect == "allow" && c.Body != "" && len(c.Body) < 4<<10 && typeOf(c.Path) != "" && !strings.Contains(c.Path, "%2D") {
				bases = append(bases, base{corpusNames.in(c.Path), corpusNames.in(c.Body)})
			}
		}
	}
	keys, policies := extraKeys(), bothPolicies(t)
	tried, admitted := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		b := rapid.SampledFrom(bases).Draw(r, "base")
		root := parseNode(t, json.NewDecoder(strings.NewReader(b.body)))
		for range rapid.IntRange(1, 3).Draw(r, "changes") {
			mutate(r, root, keys)
		}
		tried++
		for _, policy := range policies {
			ok, complaint := compareBodies(t, policy, b.target, root.String())
			if complaint != "" {
				r.Fatal(complaint)
			}
			if ok {
				admitted++
			}
		}
	})
	t.Logf("%d bodies tried, %d admitted", tried, admitted)
	if admitted < tried/20 {
		t.Errorf("of %d bodies only %d were admitted: nothing is compared", tried, admitted)
	}
}

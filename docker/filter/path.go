package filter

import (
	"strings"
)

// Longest names in a path: an object's name (prefix, tenant, name, generation,
// suffix) and an image reference.
const (
	maxName  = 255
	maxImage = 512
)

// A target is a request target taken apart, with nothing decoded: the path
// holds no '%', so what was judged and what the engine's router sees are the
// same bytes. (The engine routes on the decoded path and cleans it; measured
// on Engine 20.10: %63ontainers/json answers 200, '//' and '/../' answer 301.)
type target struct {
	version  string // "1.44", or "" where the path has none
	segments []string
	query    string // raw
}

func parseTarget(raw string) (target, *Refusal) {
	path, query, _ := strings.Cut(raw, "?")
	if !strings.HasPrefix(path, "/") {
		return target{}, refuse("path.form", "the target must be a path")
	}
	segments := strings.Split(path[1:], "/")
	for _, s := range segments {
		if s == "" || s == "." || s == ".." || !only(s, isPathByte) {
			return target{}, refuse("path.grammar", "the path has an empty, dotted or unclean segment")
		}
	}
	t := target{segments: segments, query: query}
	if v, ok := versionOf(segments[0]); ok {
		t.version, t.segments = v, segments[1:]
	}
	return t, nil
}

// versionOf takes "v1.44" apart. Anything else is an ordinary segment, which no
// template begins with.
func versionOf(segment string) (string, bool) {
	v, ok := strings.CutPrefix(segment, "v")
	if !ok {
		return "", false
	}
	_, err := parseAPIVersion(v)
	return v, err == nil
}

// match compares the segments with a template such as
// "containers/{container}/json" and returns the values of its variables.
// {image} takes one or more segments, as image references hold slashes.
func match(template, segments []string) (map[string]string, bool) {
	vars := map[string]string{}
	for i, part := range template {
		switch {
		case part == "{image}":
			rest := len(template) - i - 1
			if len(segments) <= rest {
				return nil, false
			}
			vars["image"] = strings.Join(segments[:len(segments)-rest], "/")
			segments = segments[len(segments)-rest:]
		case len(segments) == 0:
			return nil, false
		case part[0] == '{':
			vars[part[1:len(part)-1]] = segments[0]
			segments = segments[1:]
		case part != segments[0]:
			return nil, false
		default:
			segments = segments[1:]
		}
	}
	return vars, len(segments) == 0
}

// isName reports whether s is a legal object name below the prefix. A name that
// begins with the prefix can be no id: the prefix holds a character that is no
// hex digit, so the engine's lookup by id prefix cannot reach it.
func isName(s, prefix string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	return ok && rest != "" && len(s) <= maxName && only(rest, isNameByte)
}

// isExecID reports whether s is an exec id as the engine makes them.
func isExecID(s string) bool {
	return len(s) == 64 && only(s, isLowerHex)
}

func only(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func isAlnum(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
}

func isNameByte(b byte) bool { return isAlnum(b) || b == '_' || b == '.' || b == '-' }

func isPathByte(b byte) bool { return isNameByte(b) || b == ':' || b == '@' }

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

func isLowerHex(b byte) bool { return isDigit(b) || b >= 'a' && b <= 'f' }

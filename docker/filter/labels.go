package filter

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// judgeObject judges the name and the labels of an object to be made, against
// each other and against the role that the labels name.
func (p *Policy) judgeObject(name string, labels map[string]string) (Role, *Refusal) {
	if !isName(name, p.Prefix) && !slices.Contains(p.fixedNames(), name) {
		return Role{}, refuse("name.grammar", "the name lacks our prefix or has a character that is not allowed")
	}
	return p.judgeLabels(name, labels)
}

func (p *Policy) judgeLabels(name string, labels map[string]string) (Role, *Refusal) {
	role, ok := p.Roles[labels[p.RoleLabel]]
	if !ok {
		return Role{}, refuse("label.role", "the label %s names no role of ours", p.RoleLabel)
	}
	if len(labels) != len(role.Labels) {
		return Role{}, refuse("label.set", "the labels must be exactly those of the role")
	}
	for _, key := range role.Labels {
		value, ok := labels[key]
		if !ok || !p.labelValueOK(key, value) {
			return Role{}, refuse("label.value", "the label %s is missing or outside its grammar", key)
		}
	}
	if name != expand(role.Name, labels) {
		return Role{}, refuse("name.binding", "the name is not the one that the labels name")
	}
	return role, nil
}

// namesObject reports whether a name is one that objects of this kind have, and
// that may be removed, if that is to be done.
func (p *Policy) namesObject(kind, name string, remove bool) bool {
	if !isName(name, p.Prefix) && !slices.Contains(p.fixedNames(), name) {
		return false
	}
	for key, role := range p.Roles {
		if role.kind() == kind && !(remove && role.Keep) && p.names[key].MatchString(name) {
			return true
		}
	}
	return false
}

func (r *Role) kind() string {
	switch {
	case r.Container != nil:
		return "container"
	case r.Volume != nil:
		return "volume"
	case r.Network != nil:
		return "network"
	}
	return ""
}

// owns reports whether the labels of an existing container, as the engine
// tells them, make it ours: an image may add labels of its own to them.
func (p *Policy) owns(name string, labels map[string]string) bool {
	role, ok := p.Roles[labels[p.RoleLabel]]
	if !ok || role.Container == nil || !isName(name, p.Prefix) {
		return false
	}
	for _, key := range role.Labels {
		if value, ok := labels[key]; !ok || !p.labelValueOK(key, value) {
			return false
		}
	}
	return name == expand(role.Name, labels) || p.renamed(labels[p.RoleLabel], name, labels)
}

// fixedNames are the names of roles that do not depend on labels, such as that
// of one shared network. The policy chose them, so they need no prefix.
func (p *Policy) fixedNames() (names []string) {
	for _, role := range p.Roles {
		if !strings.Contains(role.Name, "{") {
			names = append(names, role.Name)
		}
	}
	return names
}

// expand replaces every {label} of a template by the label's value, in one
// pass: a value is never read as a template.
func expand(template string, labels map[string]string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(template, "{")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		key, after, _ := strings.Cut(rest, "}")
		b.WriteString(labels[key])
		template = after
	}
}

// pattern turns a template into the expression of the names that it can make.
// Every label in it must be one of labels.
func (p *Policy) pattern(template string, labels []string) (*regexp.Regexp, error) {
	expr := `\A`
	for i, rest := 0, template; ; i++ {
		before, after, ok := strings.Cut(rest, "{")
		expr += regexp.QuoteMeta(before)
		if !ok {
			return regexp.Compile(expr + `\z`)
		}
		key, tail, ok := strings.Cut(after, "}")
		if !ok || !slices.Contains(labels, key) {
			return nil, fmt.Errorf("template %q names a label that the role does not have", template)
		}
		expr += "(?P<" + groupOf(i) + ">" + p.Labels[key] + ")"
		rest = tail
	}
}

package filter

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// readName takes a name apart that a role's template makes: the value of each
// label in it. Their grammars decide where one ends; a template whose values
// can hold what stands between them is no template to read by, so the name is
// put together again and compared.
func (p *Policy) readName(role, name string) (map[string]string, bool) {
	form := p.names[role]
	read := form.FindStringSubmatch(name)
	if read == nil {
		return nil, false
	}
	template := p.Roles[role].Name
	values := map[string]string{}
	for i, key := range templateLabels(template) {
		values[key] = read[form.SubexpIndex(groupOf(i))]
	}
	return values, expand(template, values) == name
}

// groupOf names the group of a template's i-th label in its expression.
func groupOf(i int) string { return "label" + strconv.Itoa(i) }

// templateLabels are the labels of a template in their order.
func templateLabels(template string) (keys []string) {
	for {
		_, rest, ok := strings.Cut(template, "{")
		if !ok {
			return keys
		}
		key, after, _ := strings.Cut(rest, "}")
		keys = append(keys, key)
		template = after
	}
}

// admits reports whether a container whose name was made of old may have the
// name that is made of now.
func (r *RenameRule) admits(old, now map[string]string) bool {
	if r == nil || old[r.Label] != r.Value || now[r.Label] == r.Value {
		return false
	}
	for key, value := range now {
		if old[key] != value && !slices.Contains(r.Free, key) {
			return false
		}
	}
	return true
}

// renamed reports whether a name is one that the container with these labels
// may have been given.
func (p *Policy) renamed(role, name string, labels map[string]string) bool {
	now, ok := p.readName(role, name)
	return ok && p.Roles[role].Rename.admits(labels, now)
}

// judgeRename judges a container's new name against its old one.
func judgeRename(p *Policy, old, now string) *Refusal {
	for _, key := range slices.Sorted(maps.Keys(p.Roles)) {
		rename := p.Roles[key].Rename
		if rename == nil {
			continue
		}
		before, ok := p.readName(key, old)
		after, ok2 := p.readName(key, now)
		if ok && ok2 && rename.admits(before, after) {
			return nil
		}
	}
	return refuse("container.rename", "only a container that was made ahead gets another name, one of its own generation")
}

func (r *Role) validateRename() error {
	if r.Rename == nil {
		return nil
	}
	if r.Container == nil {
		return errors.New("rename: only containers get another name")
	}
	used := templateLabels(r.Name)
	for _, key := range append([]string{r.Rename.Label}, r.Rename.Free...) {
		if !slices.Contains(used, key) {
			return errors.New("rename: its labels must stand in the name")
		}
	}
	if r.Rename.Value == "" || !slices.Contains(r.Rename.Free, r.Rename.Label) {
		return errors.New("rename: the label must be free and its value set")
	}
	return nil
}

// updateBody is all that may change of a container that runs.
type updateBody struct {
	Memory     int64 `json:"Memory"`
	MemorySwap int64 `json:"MemorySwap"`
	NanoCpus   int64 `json:"NanoCpus"`
	PidsLimit  int64 `json:"PidsLimit"`
}

// judgeUpdate judges new limits as those of a create: all of them are there
// and none is beyond the role's.
func judgeUpdate(p *Policy, c *Call, body []byte) *Refusal {
	var b updateBody
	if r := decodeStrict(body, &b); r != nil {
		return r
	}
	rule := p.containerRule(c.Name)
	if rule == nil {
		return refuse("label.role", "the name is not that of a container")
	}
	limits := hostConfig{
		Memory: b.Memory, MemorySwap: b.MemorySwap, NanoCpus: b.NanoCpus, PidsLimit: b.PidsLimit, CPUShares: min(1, rule.MaxCPUShares),
	}
	if r := judgeLimits(rule, &createBody{HostConfig: &limits}); r != nil {
		return r
	}
	var r *Refusal
	c.Body, r = encode(b)
	return r
}

// containerRule is the rule of the containers that have such a name.
func (p *Policy) containerRule(name string) *ContainerRule {
	for _, key := range slices.Sorted(maps.Keys(p.Roles)) {
		if role := p.Roles[key]; role.Container != nil && p.names[key].MatchString(name) {
			return role.Container
		}
	}
	return nil
}

package filter

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// maxLabel is the longest value of a label, in bytes.
const maxLabel = 8 << 10

// Validate checks the policy as a whole and prepares it for use. Its errors
// name the field.
func (p *Policy) Validate() error {
	low, err := parseAPIVersion(p.MinAPI)
	if err != nil {
		return fmt.Errorf("policy: minAPI: %w", err)
	}
	high, err := parseAPIVersion(p.MaxAPI)
	if err != nil {
		return fmt.Errorf("policy: maxAPI: %w", err)
	}
	if high.less(low) || low.less(apiVersion{1, 41}) {
		return errors.New("policy: API versions must be an ascending range from 1.41 on: older ones have weaker defaults")
	}
	if p.Prefix == "" || len(p.Prefix) > 64 || !isAlnum(p.Prefix[0]) || !only(p.Prefix, isNameByte) || only(p.Prefix, isLowerHex) {
		return errors.New("policy: prefix must be a name with a character that is no hex digit")
	}
	if p.MaxBody < 1<<10 || p.MaxBody > 1<<20 {
		return errors.New("policy: maxBody must be from 1 KiB to 1 MiB")
	}
	return errors.Join(p.validateCalls(), p.validateLabels(), p.validateImages(), p.validateRoles(), p.Exec.validate())
}

func (p *Policy) validateCalls() error {
	if len(p.Calls) == 0 {
		return errors.New("policy: calls: none is admitted")
	}
	for _, rule := range slices.Sorted(maps.Keys(p.Calls)) {
		if !hasRule(rule) {
			return fmt.Errorf("policy: calls: there is no call %q", rule)
		}
	}
	return nil
}

func (p *Policy) validateLabels() error {
	p.labels = make(map[string]*regexp.Regexp, len(p.Labels))
	for key, expr := range p.Labels {
		re, err := regexp.Compile(`\A(?:` + expr + `)\z`)
		if err != nil {
			return fmt.Errorf("policy: labels: %s: %w", key, err)
		}
		p.labels[key] = re
	}
	for _, key := range append([]string{p.RoleLabel}, p.ListLabels...) {
		if p.labels[key] == nil {
			return fmt.Errorf("policy: labels: %q has no grammar", key)
		}
	}
	if len(p.ListLabels) == 0 {
		return errors.New("policy: listLabels: none is named")
	}
	return nil
}

func (p *Policy) validateImages() error {
	p.images = nil
	for _, s := range p.Images {
		ref, err := parseImage(s)
		if err != nil {
			return fmt.Errorf("policy: images: %w", err)
		}
		p.images = append(p.images, ref)
	}
	if len(p.images) == 0 {
		return errors.New("policy: images: none is listed")
	}
	return nil
}

func (p *Policy) validateRoles() error {
	p.names = make(map[string]*regexp.Regexp, len(p.Roles))
	for _, name := range slices.Sorted(maps.Keys(p.Roles)) {
		role := p.Roles[name]
		for _, key := range role.Labels {
			if p.Labels[key] == "" {
				return fmt.Errorf("policy: role %s: label %q has no grammar", name, key)
			}
		}
		if !slices.Contains(role.Labels, p.RoleLabel) {
			return fmt.Errorf("policy: role %s: labels must hold %s", name, p.RoleLabel)
		}
		if err := role.validateRename(); err != nil {
			return fmt.Errorf("policy: role %s: %w", name, err)
		}
		templates := []string{role.Name}
		if c := role.Container; c != nil {
			if err := c.validate(); err != nil {
				return fmt.Errorf("policy: role %s: %w", name, err)
			}
			templates = append(slices.Concat(templates, c.Networks, c.Endpoints), sources(c.Mounts)...)
		}
		for _, t := range templates {
			if _, err := p.pattern(t, role.Labels); err != nil {
				return fmt.Errorf("policy: role %s: %w", name, err)
			}
		}
		p.names[name], _ = p.pattern(role.Name, role.Labels)
	}
	return nil
}

func sources(mounts []MountRule) (out []string) {
	for _, m := range mounts {
		out = append(out, m.Source)
	}
	return out
}

// validate refuses what would give the host away whatever else is checked.
func (c *ContainerRule) validate() error {
	if c.MaxMemory <= 0 || c.MaxNanoCPUs <= 0 || c.MaxPids <= 0 {
		return errors.New("container: maxMemory, maxNanoCPUs and maxPids must be set")
	}
	if len(c.Networks) == 0 || slices.ContainsFunc(c.Networks, sharesNetwork) {
		return errors.New("container: networks must be named, and never host, bridge, default or another container's")
	}
	for _, m := range c.Mounts {
		if !strings.HasPrefix(m.Target, "/") || m.Source == "" || strings.HasPrefix(m.Source, "/") {
			return errors.New("container: a mount is a named volume at an absolute path")
		}
	}
	return nil
}

func sharesNetwork(mode string) bool {
	return mode == "" || mode == "host" || mode == "bridge" || mode == "default" || strings.Contains(mode, ":")
}

func (e *ExecRule) validate() error {
	if len(e.Users) == 0 {
		return errors.New("policy: exec: users must be named")
	}
	return nil
}

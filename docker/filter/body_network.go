package filter

import (
	"maps"
	"slices"
)

type networkBody struct {
	Name     string            `json:"Name"`
	Driver   string            `json:"Driver"`
	Internal bool              `json:"Internal,omitzero"`
	Options  map[string]string `json:"Options,omitempty"`
	Labels   map[string]string `json:"Labels,omitempty"`
}

// judgeNetwork judges the body of a network create and writes it anew.
func judgeNetwork(p *Policy, c *Call, body []byte) *Refusal {
	var b networkBody
	if r := decodeStrict(body, &b); r != nil {
		return r
	}
	role, r := p.judgeObject(b.Name, b.Labels)
	if r != nil {
		return r
	}
	rule := role.Network
	switch {
	case rule == nil:
		return refuse("label.role", "the role is not that of a network")
	case b.Driver != "bridge":
		return refuse("network.driver", "the driver must be bridge")
	case b.Internal != rule.Internal:
		return refuse("network.internal", "Internal must be %t: otherwise the network has a route out", rule.Internal)
	case !slices.ContainsFunc(rule.Options, func(o map[string]string) bool { return maps.Equal(o, b.Options) }):
		return refuse("network.options", "the options must be one of the policy's sets")
	}
	c.Name = b.Name
	c.Body, r = encode(b)
	return r
}

package filter

import "strings"

// An endpoint is one call of the engine's API. The table below is closed: a
// policy chooses from it and cannot add to it.
type endpoint struct {
	rule        string // the name in policies and logs
	method      string
	template    []string
	unversioned bool     // may be called without an API version
	required    []string // query keys that must be there
	body        func(*Policy, *Call, []byte) *Refusal
	names       func(p *Policy, old, now string) *Refusal // judges a new name
	change      bool                                      // changes something, so it is in the audit log when admitted
	remove      bool                                      // removes the object that it names
	hijack      bool
}

var endpoints = []endpoint{
	{rule: "ping", method: "GET", template: split("_ping"), unversioned: true},
	{rule: "ping", method: "HEAD", template: split("_ping"), unversioned: true},
	{rule: "version", method: "GET", template: split("version"), unversioned: true},

	{rule: "container.list", method: "GET", template: split("containers/json"), required: []string{"filters"}},
	{rule: "container.create", method: "POST", template: split("containers/create"), required: []string{"name"}, body: judgeContainer, change: true},
	{rule: "container.inspect", method: "GET", template: split("containers/{container}/json")},
	{rule: "container.start", method: "POST", template: split("containers/{container}/start"), change: true},
	{rule: "container.stop", method: "POST", template: split("containers/{container}/stop"), change: true},
	{rule: "container.restart", method: "POST", template: split("containers/{container}/restart"), change: true},
	{rule: "container.kill", method: "POST", template: split("containers/{container}/kill"), change: true},
	{rule: "container.pause", method: "POST", template: split("containers/{container}/pause"), change: true},
	{rule: "container.unpause", method: "POST", template: split("containers/{container}/unpause"), change: true},
	{rule: "container.wait", method: "POST", template: split("containers/{container}/wait")},
	{rule: "container.rename", method: "POST", template: split("containers/{container}/rename"), required: []string{"name"}, names: judgeRename, change: true},
	{rule: "container.update", method: "POST", template: split("containers/{container}/update"), body: judgeUpdate, change: true},
	{rule: "container.remove", method: "DELETE", template: split("containers/{container}"), change: true, remove: true},

	{rule: "exec.create", method: "POST", template: split("containers/{container}/exec"), body: judgeExec, change: true},
	{rule: "exec.start", method: "POST", template: split("exec/{exec}/start"), body: judgeExecStart, change: true, hijack: true},
	{rule: "exec.inspect", method: "GET", template: split("exec/{exec}/json")},

	{rule: "volume.list", method: "GET", template: split("volumes"), required: []string{"filters"}},
	{rule: "volume.create", method: "POST", template: split("volumes/create"), body: judgeVolume, change: true},
	{rule: "volume.inspect", method: "GET", template: split("volumes/{volume}")},
	{rule: "volume.remove", method: "DELETE", template: split("volumes/{volume}"), change: true, remove: true},

	{rule: "network.create", method: "POST", template: split("networks/create"), body: judgeNetwork, change: true},
	{rule: "network.inspect", method: "GET", template: split("networks/{network}")},
	{rule: "network.remove", method: "DELETE", template: split("networks/{network}"), change: true, remove: true},

	{rule: "image.inspect", method: "GET", template: split("images/{image}/json")},
	{rule: "image.pull", method: "POST", template: split("images/create"), required: []string{"fromImage"}, change: true},
}

func split(s string) []string { return strings.Split(s, "/") }

// findEndpoint returns the one endpoint of the table that method and segments
// name, with the values of its variables. Literal templates stand before those
// with variables, and {volume} cannot be "create": names have a prefix.
func findEndpoint(method string, segments []string) (*endpoint, map[string]string) {
	for i := range endpoints {
		e := &endpoints[i]
		if e.method != method {
			continue
		}
		if vars, ok := match(e.template, segments); ok {
			return e, vars
		}
	}
	return nil, nil
}

// hasRule reports whether the table knows a rule of that name.
func hasRule(rule string) bool {
	for i := range endpoints {
		if endpoints[i].rule == rule {
			return true
		}
	}
	return false
}

package e2b

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTemplatePlan(t *testing.T) {
	plan, err := Template(TemplateOptions{Image: "registry.example.com/box:1", CPU: 4, MemoryMB: 4096})
	if err != nil {
		t.Fatal(err)
	}
	var create struct {
		Name     string `json:"name"`
		CPU      int    `json:"cpuCount"`
		MemoryMB int    `json:"memoryMB"`
	}
	var build struct {
		FromImage string `json:"fromImage"`
		StartCmd  string `json:"startCmd"`
		ReadyCmd  string `json:"readyCmd"`
	}
	if json.Unmarshal(plan.Create, &create) != nil || json.Unmarshal(plan.Build, &build) != nil {
		t.Fatalf("%s %s", plan.Create, plan.Build)
	}
	if create.Name != "shoal" || create.CPU != 4 || create.MemoryMB != 4096 || build.FromImage != "registry.example.com/box:1" {
		t.Errorf("%+v %+v", create, build)
	}
	if !strings.Contains(build.StartCmd, agentProgram+" serve") || !strings.Contains(build.ReadyCmd, agentSocket) {
		t.Errorf("%+v", build)
	}
	if len(plan.Steps) < 5 || !strings.Contains(strings.Join(plan.Steps, "\n"), "4 cores and 4096 MiB") {
		t.Errorf("%q", plan.Steps)
	}
}

func TestTemplateOptionsAreValidated(t *testing.T) {
	for field, o := range map[string]TemplateOptions{
		"image:":    {},
		"name:":     {Image: "a", Name: "A B"},
		"cpu:":      {Image: "a", CPU: 65},
		"memoryMb:": {Image: "a", MemoryMB: 1001},
		"image: ":   {Image: "a'; rm -rf /"},
	} {
		if _, err := Template(o); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(field)) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

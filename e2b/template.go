package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// TemplateOptions says what template to build.
type TemplateOptions struct {
	// Name of the template. Defaults to "shoal".
	Name string
	// Image is the sandbox image, as a registry that E2B can pull from knows
	// it. Required.
	Image string
	// CPU in whole cores. Defaults to 2.
	CPU int
	// MemoryMB in MiB, an even number. Defaults to 2048.
	MemoryMB int
}

// TemplatePlan is everything that a person, or a program, needs to build a
// template. E2B fixes cpu, memory and disk in it: no sandbox can have others.
type TemplatePlan struct {
	// Create is the JSON body of POST /v3/templates, whose answer names the
	// template and the build.
	Create json.RawMessage
	// Build is the JSON body of POST /v2/templates/{templateID}/builds/{buildID}.
	Build json.RawMessage
	// Steps explains the way, one sentence each, commands included.
	Steps []string
}

// The start command repeats what the image already promises, as a template build
// adds packages and users of its own: envd looks up the programs that it wraps
// every command in, as root, by a PATH that begins in /usr/local. The agent
// starts last.
var templateStart = strings.Join([]string{
	"find / -xdev ! -type l -perm /6000 -exec chmod a-s {} +",
	"find /usr/local /opt/shoal ! -user root -exec chown -h root:root {} +",
	"find /usr/local /opt/shoal ! -type l -perm /022 -exec chmod go-w {} +",
	startAgent,
}, "; ")

// templateStep is one step of a build. The arguments of RUN are the command and
// the user; that and both routes are unverified: they are known from public
// clients alone.
type templateStep struct {
	Type string   `json:"type"`
	Args []string `json:"args"`
}

// Template returns how to build the template that Config.Template names.
func Template(o TemplateOptions) (TemplatePlan, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return TemplatePlan{}, err
	}
	create, err := json.MarshalIndent(map[string]any{"name": o.Name, "cpuCount": o.CPU, "memoryMB": o.MemoryMB}, "", "  ")
	if err != nil {
		return TemplatePlan{}, err
	}
	build, err := json.MarshalIndent(struct {
		FromImage string         `json:"fromImage"`
		Steps     []templateStep `json:"steps"`
		StartCmd  string         `json:"startCmd"`
		ReadyCmd  string         `json:"readyCmd"`
	}{
		FromImage: o.Image,
		Steps: []templateStep{
			{Type: "USER", Args: []string{"root"}},
			// One disk instead of Docker's two mounts: commands read /skills and
			// cannot write it, the agent writes through its own directory.
			{Type: "RUN", Args: []string{"rmdir /opt/shoal/skills && ln -s /skills /opt/shoal/skills", "root"}},
		},
		StartCmd: templateStart,
		ReadyCmd: "test -S " + agentSocket,
	}, "", "  ")
	if err != nil {
		return TemplatePlan{}, err
	}
	return TemplatePlan{Create: create, Build: build, Steps: o.steps()}, nil
}

func (o TemplateOptions) withDefaults() TemplateOptions {
	if o.Name == "" {
		o.Name = "shoal"
	}
	if o.CPU == 0 {
		o.CPU = 2
	}
	if o.MemoryMB == 0 {
		o.MemoryMB = 2048
	}
	return o
}

func (o TemplateOptions) validate() error {
	switch {
	case !templatePattern.MatchString(o.Name):
		return fmt.Errorf("e2b template: name: %q must be lower-case letters, digits, - and _", o.Name)
	case o.Image == "" || strings.ContainsAny(o.Image, " \t\r\n'\"\\"):
		return errors.New("e2b template: image: name the sandbox image as E2B can pull it, such as registry.example.com/shoal-sandbox:1")
	case o.CPU < 1 || o.CPU > 64:
		return fmt.Errorf("e2b template: cpu: %d is not within 1 and 64", o.CPU)
	case o.MemoryMB < 256 || o.MemoryMB > 262144 || o.MemoryMB%2 != 0:
		return fmt.Errorf("e2b template: memoryMb: %d is not an even number within 256 and 262144", o.MemoryMB)
	}
	return nil
}

func (o TemplateOptions) steps() []string {
	return []string{
		"Build the sandbox image: make image",
		fmt.Sprintf("Push it where E2B can pull it: docker tag shoal-sandbox:dev %[1]s && docker push %[1]s", o.Image),
		fmt.Sprintf("Make the template (the JSON \"create\"; it fixes %d cores and %d MiB for every sandbox): POST https://api.<domain>/v3/templates with the header X-API-Key; the answer holds templateID and buildID", o.CPU, o.MemoryMB),
		"Start its build (the JSON \"build\"): POST https://api.<domain>/v2/templates/<templateID>/builds/<buildID>",
		"Wait until GET https://api.<domain>/templates/<templateID>/builds/<buildID>/status says ready",
		fmt.Sprintf("Put the name into the worker's settings: \"template\": %q", o.Name),
	}
}

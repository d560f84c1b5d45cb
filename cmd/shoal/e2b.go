package main

import (
	"encoding/json"
	"fmt"

	"shoal/e2b"
)

// e2bCmd is what helps with E2B; it contacts nobody.
type e2bCmd struct {
	Template templateCmd `cmd:"" help:"Print the steps and the JSON that build the template."`
}

type templateCmd struct {
	Name     string `default:"shoal" help:"Name of the template."`
	Image    string `required:"" help:"The sandbox image, as a registry that E2B can pull from knows it."`
	CPU      int    `name:"cpu" default:"2" help:"Cores of every sandbox of the template."`
	MemoryMB int    `name:"memory-mb" default:"2048" help:"Memory of every sandbox of the template in MiB."`
}

func (c *templateCmd) Run(a *app) error {
	plan, err := e2b.Template(e2b.TemplateOptions{Name: c.Name, Image: c.Image, CPU: c.CPU, MemoryMB: c.MemoryMB})
	if err != nil {
		return err
	}
	if a.cli.JSON {
		return json.NewEncoder(a.stdout).Encode(plan)
	}
	for i, step := range plan.Steps {
		if _, err := fmt.Fprintf(a.stdout, "%d. %s\n", i+1, step); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(a.stdout, "\nPOST /v3/templates\n%s\n\nPOST /v2/templates/{templateID}/builds/{buildID}\n%s\n", plan.Create, plan.Build)
	return err
}

package main

import (
	"context"
	"fmt"
	"time"

	"shoal/docker/filter"
)

// doctorWait bounds the reading of an engine's state.
const doctorWait = 20 * time.Second

type doctorCmd struct {
	DockerEndpoint string `name:"docker-endpoint" default:"${endpoint}" help:"The Docker engine itself, not a filter in front of it: unix:// or tcp://."`
}

// Run says how far the walls around sandboxes hold on this engine, and what to
// do about the rest. It changes nothing, and fails when there is a problem.
func (c *doctorCmd) Run(a *app) error {
	dial, err := filter.Dialer(c.DockerEndpoint)
	if err != nil {
		return fmt.Errorf("--docker-endpoint: %w", err)
	}
	ctx, cancel := context.WithTimeout(a.ctx, doctorWait)
	defer cancel()
	state, err := filter.ReadEngine(ctx, dial)
	if err != nil {
		return fmt.Errorf("%w (a filter in front of the engine does not tell: name the engine itself)", err)
	}
	findings := state.Findings()
	rows := make([][]string, 0, len(findings))
	for _, f := range findings {
		rows = append(rows, []string{string(f.Level), f.Name, f.Detail, f.Remedy})
		if f.Level == filter.LevelProblem {
			a.code = exitFailure
		}
	}
	return a.table(findings, "LEVEL NAME DETAIL REMEDY", rows)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// group is a set of rows that are measured together.
type group struct {
	name string
	own  bool // needs workers that the benchmark may look into and end
	rows func(context.Context, *rig) error
}

// groups are all rows, in the order of measuring. A new row is a probe in one of
// them; a new group is a line here.
func groups() []group {
	return []group{
		{name: "exec", rows: execRows},
		{name: "file", rows: fileRows},
		{name: "output", rows: outputRows},
		{name: "create", rows: createRows},
		{name: "rates", rows: rateRows},
		{name: "burst", rows: burstRows},
		{name: "suspend", rows: suspendRows},
		{name: "lock", rows: lockRows},
		{name: "messaging", rows: messagingRows},
		{name: "egress", own: true, rows: egressRows},
		{name: "takeover", own: true, rows: takeoverRows},
		{name: "warm", own: true, rows: warmRows},
		{name: "growth", own: true, rows: growthRows},
	}
}

func groupNames() []string {
	var names []string
	for _, g := range groups() {
		names = append(names, g.name)
	}
	return names
}

// chosen reads the names of groups; none means all.
func chosen(list string) ([]string, error) {
	if list == "" {
		return groupNames(), nil
	}
	names := strings.Split(list, ",")
	for _, n := range names {
		if !slices.Contains(groupNames(), n) {
			return nil, fmt.Errorf("-only %q: the groups are %s", n, strings.Join(groupNames(), ", "))
		}
	}
	return names, nil
}

// run measures and prints. A group that fails does not keep the others from
// being measured; the error names it.
func run(ctx context.Context, s *settings, stdout, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	r, err := newRig(ctx, s, stderr)
	if err != nil {
		return err
	}
	var failed []error
	for _, g := range groups() {
		if !slices.Contains(s.only, g.name) {
			continue
		}
		if g.own && r.home == nil {
			r.say("%s: left out, it needs workers of the benchmark's own", g.name)
			continue
		}
		if ctx.Err() != nil {
			break
		}
		if err := g.rows(ctx, r); err != nil {
			failed = append(failed, fmt.Errorf("group %s: %w", g.name, err))
		}
	}
	failed = append(failed, context.Cause(ctx), r.close(context.WithoutCancel(ctx)), r.result.print(stdout, s.json))
	return errors.Join(failed...)
}

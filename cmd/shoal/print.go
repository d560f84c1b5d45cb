package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"shoal/sandbox"
)

// printJSON prints v as one indented JSON value.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table prints rows under a header, or v as JSON when that is asked for.
func (a *app) table(v any, header string, rows [][]string) error {
	if a.cli.JSON {
		return a.printJSON(v)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(strings.Fields(header), "\t"))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// printable makes text from a sandbox harmless for a terminal.
func printable(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '�'
		}
		return r
	}, s)
}

// ago says how long ago something was.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return time.Since(t).Round(time.Second).String()
}

// size prints bytes for people.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n)/unit, 0
	for value >= unit && prefix < 4 {
		value /= unit
		prefix++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[prefix])
}

// program prints what a command runs, shortened.
func program(c sandbox.CommandInfo) string {
	const most = 60
	text := c.Shell
	if text == "" {
		text = strings.Join(c.Argv, " ")
	}
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return text
}

// ending says in a few words how a command ended.
func ending(e *sandbox.End) string {
	switch {
	case e == nil:
		return "-"
	case e.Code != nil:
		return fmt.Sprintf("exit code %d", *e.Code)
	case e.Signal > 0 && e.Reason == sandbox.Signaled:
		return fmt.Sprintf("signal %d", e.Signal)
	case e.By != "":
		return string(e.Reason) + " by " + e.By
	}
	return string(e.Reason)
}

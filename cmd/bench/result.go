package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// result is what a run prints.
type result struct {
	Settings surroundings `json:"settings"`
	Rows     []row        `json:"rows"`
}

// surroundings say where and how was measured.
type surroundings struct {
	Date   time.Time `json:"date"`
	Go     string    `json:"go"`
	System string    `json:"system"`
	CPUs   int       `json:"cpus"`
	Load   string    `json:"load"` // the machine's load averages at the start
	Image  string    `json:"image"`
	Fleet  string    `json:"fleet"`
	effort
}

func newSurroundings(s *settings, fleet string) surroundings {
	return surroundings{
		Date: time.Now().UTC().Truncate(time.Second), Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH,
		CPUs: runtime.NumCPU(), Load: loadAverage(), Image: s.image, Fleet: fleet, effort: s.effort(),
	}
}

// loadAverage returns the three load averages, "" where there are none.
func loadAverage() string {
	data, _ := os.ReadFile("/proc/loadavg") // another system has no such file
	fields := strings.Fields(string(data))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

func (r *result) print(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "row\tunit\tp50\tp99\tbaseline\tits p50\ttimes better\tfloor\t")
	for _, row := range r.Rows {
		fmt.Fprintln(t, row.line()+"\t")
	}
	return t.Flush()
}

// line is the row as fields with tabs between them.
func (w *row) line() string {
	baseline := ""
	if w.Baseline != nil {
		baseline = *w.Baseline
	}
	return strings.Join([]string{
		w.Name, w.Unit, number(&w.P50), number(&w.P99), baseline, number(w.BaselineP50), number(w.Ratio), number(w.FloorP50),
	}, "\t")
}

// number writes three significant digits or so; nothing for nil.
func number(v *float64) string {
	switch {
	case v == nil:
		return ""
	case *v >= 100 || *v <= -100:
		return fmt.Sprintf("%.0f", *v)
	case *v >= 10 || *v <= -10:
		return fmt.Sprintf("%.1f", *v)
	}
	return fmt.Sprintf("%.2f", *v)
}

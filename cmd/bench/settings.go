package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"shoal/docker"
	"shoal/image"
	"shoal/sandbox"
)

// settings say what is measured, how often, and where.
type settings struct {
	quick    bool
	json     bool
	only     []string
	count    int
	duration time.Duration
	outputMB int64
	growth   []int
	timeout  time.Duration

	natsURL, natsCreds string
	tenant             string
	worker             string
	endpoint           string
	image              string
}

// effort is how often things are done.
type effort struct {
	Samples  int           `json:"samples"`         // pairs of a row that takes milliseconds
	Rounds   int           `json:"rounds"`          // pairs of a row that takes up to seconds
	For      time.Duration `json:"forNs,omitempty"` // instead of Samples, where set
	Output   int64         `json:"outputBytes"`     // of one command
	Growth   []int         `json:"growth"`          // numbers of sandboxes
	Commands int           `json:"commands"`        // before memory is looked at again
}

func parse(args []string, stderr io.Writer) (*settings, error) {
	s := &settings{}
	var only, growth string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.BoolVar(&s.quick, "quick", false, "few samples: under a minute on a quiet machine")
	f.BoolVar(&s.json, "json", false, "print JSON instead of a table")
	f.StringVar(&only, "only", "", "groups of rows to measure, comma-separated: "+strings.Join(groupNames(), ", "))
	f.IntVar(&s.count, "count", 0, "pairs of each short row; long rows take a tenth (default 200, with -quick 30)")
	f.DurationVar(&s.duration, "for", 0, "measure each short row for this time instead of a number of pairs")
	f.Int64Var(&s.outputMB, "output-mb", 0, "MiB that a command of the output rows prints (default 1024, with -quick 128)")
	f.StringVar(&growth, "growth", "", "numbers of sandboxes at which growth is looked at (default 1,10,50, with -quick 1,4)")
	f.DurationVar(&s.timeout, "timeout", 30*time.Minute, "end of the whole run")
	f.StringVar(&s.natsURL, "nats-url", "", "measure the fleet at this NATS server, on this machine's engine, instead of a worker of the benchmark's own; rows that look into the worker or end it are left out")
	f.StringVar(&s.natsCreds, "nats-creds", "", "credentials file for -nats-url")
	f.StringVar(&s.tenant, "tenant", "main", "tenant to create sandboxes as")
	f.StringVar(&s.worker, "worker", "", "worker program to start (default: worker beside this program)")
	f.StringVar(&s.endpoint, "docker-endpoint", docker.DefaultEndpoint, "the Docker engine: unix:// or tcp://")
	f.StringVar(&s.image, "image", image.Name(), "sandbox image")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	err := s.complete(f.Args(), only, growth)
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
	}
	return s, err
}

func (s *settings) complete(rest []string, only, growth string) (err error) {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q: every setting is a flag", rest[0])
	case s.count < 0 || s.duration < 0 || s.outputMB < 0 || s.timeout <= 0:
		return errors.New("counts, sizes and times cannot be negative")
	case s.count > 0 && s.duration > 0:
		return errors.New("-count and -for exclude each other")
	}
	if s.only, err = chosen(only); err != nil {
		return err
	}
	if s.growth, err = numbers(growth); err != nil {
		return err
	}
	if s.worker == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w: use -worker", err)
		}
		s.worker = filepath.Join(filepath.Dir(self), "worker")
	}
	return sandbox.Tenant(s.tenant).Validate()
}

// numbers reads a rising comma-separated list.
func numbers(list string) ([]int, error) {
	if list == "" {
		return nil, nil
	}
	var all []int
	for field := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > 1000 || len(all) > 0 && n <= all[len(all)-1] {
			return nil, fmt.Errorf("-growth %q: give rising numbers from 1 to 1000", list)
		}
		all = append(all, n)
	}
	return all, nil
}

func (s *settings) effort() effort {
	e := effort{Samples: 200, For: s.duration, Output: 1024, Growth: []int{1, 10, 50}, Commands: 1000}
	if s.quick {
		e.Samples, e.Output, e.Growth, e.Commands = 30, 128, []int{1, 4}, 200
	}
	if s.count > 0 {
		e.Samples = s.count
	}
	if s.outputMB > 0 {
		e.Output = s.outputMB
	}
	if s.growth != nil {
		e.Growth = s.growth
	}
	e.Output <<= 20
	e.Rounds = max(e.Samples/10, 1)
	return e
}

// limits of the sandboxes on both sides: the cores of this machine, so that a
// quota of CPU does not set the rates.
func limits() sandbox.Limits {
	return sandbox.Limits{CPU: float64(min(runtime.NumCPU(), 4)), MemoryMB: 512, DiskMB: 2048, Pids: 512}
}

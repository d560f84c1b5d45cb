// Command testsum reads the events of `go test -json` on standard input. It
// prints a line per package, the whole output of what failed, and at the end how
// many tests passed, failed and were skipped, with the reason of every skip. It
// exits with 1 when anything failed or nothing ran.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// event is one line of `go doc test2json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build's output
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// summary collects the events of a run. It is used by one goroutine.
type summary struct {
	out     io.Writer
	text    map[string][]string // output by package, or package and test
	passed  int
	failed  []string
	skipped []string
}

var errFailed = errors.New("tests failed")

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	s := &summary{out: out, text: map[string][]string{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			s.line(line)
		}
		if errors.Is(err, io.EOF) {
			return s.end()
		}
		if err != nil {
			return err
		}
	}
}

// line takes one event; what is none (a build's complaint) is passed through.
func (s *summary) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		_, _ = s.out.Write(line)
		return
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "output":
		s.text[key] = append(s.text[key], e.Output)
	case "pass", "fail", "skip":
		s.ended(e, key)
	}
}

func (s *summary) ended(e event, key string) {
	name := strings.TrimSpace(key)
	switch {
	case e.Action == "fail":
		s.failed = append(s.failed, name)
		fmt.Fprintf(s.out, "FAIL    %s (%.1fs)\n", name, e.Elapsed)
		for _, text := range s.text[key] {
			fmt.Fprint(s.out, "        ", text)
		}
	case e.Test == "" && e.Action == "skip": // a package without tests
	case e.Test == "":
		fmt.Fprintf(s.out, "ok      %s (%.1fs)\n", name, e.Elapsed)
	case e.Action == "skip":
		s.skipped = append(s.skipped, name+": "+reason(s.text[key]))
	default:
		s.passed++
	}
	delete(s.text, key)
}

// reason is what a skipped test said before it was skipped.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			said = append(said, line)
		}
	}
	return strings.Join(said, " ")
}

func (s *summary) end() error {
	for _, skip := range s.skipped {
		fmt.Fprintln(s.out, "skipped", skip)
	}
	for _, fail := range s.failed {
		fmt.Fprintln(s.out, "failed ", fail)
	}
	fmt.Fprintf(s.out, "%d passed, %d failed, %d skipped\n", s.passed, len(s.failed), len(s.skipped))
	if len(s.failed) > 0 || s.passed == 0 {
		return errFailed
	}
	return nil
}

package filter_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// A caseFile is a file of verdict cases: a request, and whether it must pass.
type caseFile struct {
	Cases []verdictCase
}

// A verdictCase is one case; its steps are requests on one connection.
type verdictCase struct {
	ID       string
	Group    string
	Why      string
	Requires []string
	Policy   map[string]*string
	step
	Raw       string
	Steps     []step
	Pipelined bool
	Hijack    *hijackCase
}

type step struct {
	Method, Path, Proto string
	Headers             [][2]string
	Body                string
	BodyBase64          string
	BodyGen             *struct {
		Prefix, Repeat, Suffix string
		Times                  int
	}
	Expect           string
	AlsoOk           []string
	Status           []int
	UpstreamResponse string
	ExpectUpstream   *upstreamCase
}

// An upstreamCase is what must be true of the request that reached the engine.
type upstreamCase struct {
	RequestLine                   string
	Host                          *string
	Body                          *string
	AbsentHeaders, PresentHeaders []string
	NotContains                   []string
	SingleFraming                 bool
}

// ourNames is the one table that maps the names of a case file to ours.
type ourNames [][2]string

func (o ourNames) in(s string) string {
	for _, r := range o {
		s = strings.ReplaceAll(s, r[0], r[1])
	}
	return s
}

func readCases(t testing.TB, name string) caseFile {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var f caseFile
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(f.Cases) == 0 {
		t.Fatalf("%s holds no case", name)
	}
	return f
}

// steps are the requests of a case, one for an ordinary case.
func (c *verdictCase) steps() []step {
	if len(c.Steps) > 0 {
		return c.Steps
	}
	return []step{c.step}
}

// bytes builds the request as the case says, verbatim. Our names may be longer
// than those of the case: a Content-Length that was right stays right, one that
// was wrong stays wrong by as much, and so it is with the sizes of chunks.
func (s *step) bytes(t *testing.T, names ourNames) []byte {
	t.Helper()
	was := s.body(t)
	body := []byte(names.in(string(was)))
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s\r\n", s.Method, names.in(s.Path), s.Proto)
	for _, h := range s.Headers {
		value := names.in(h[1])
		if n, err := strconv.Atoi(value); err == nil && strings.EqualFold(h[0], "Content-Length") && n == len(was) {
			value = strconv.Itoa(len(body))
		}
		if strings.EqualFold(h[0], "Transfer-Encoding") && value == "chunked" {
			body = rechunk(was, names)
		}
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], value)
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}

func (s *step) body(t *testing.T) []byte {
	t.Helper()
	switch {
	case s.BodyBase64 != "":
		body, err := base64.StdEncoding.DecodeString(s.BodyBase64)
		if err != nil {
			t.Fatal(err)
		}
		return body
	case s.BodyGen != nil:
		return []byte(s.BodyGen.Prefix + strings.Repeat(s.BodyGen.Repeat, s.BodyGen.Times) + s.BodyGen.Suffix)
	}
	return []byte(s.Body)
}

// rechunk replaces names inside the chunks of a body and writes their sizes.
func rechunk(body []byte, names ourNames) []byte {
	var out bytes.Buffer
	rest := string(body)
	for {
		line, after, ok := strings.Cut(rest, "\r\n")
		n, err := strconv.ParseInt(line, 16, 32)
		if !ok || err != nil || n == 0 || int(n)+2 > len(after) {
			out.WriteString(names.in(rest))
			return out.Bytes()
		}
		chunk := names.in(after[:n])
		fmt.Fprintf(&out, "%x\r\n%s\r\n", len(chunk), chunk)
		rest = after[n+2:]
	}
}

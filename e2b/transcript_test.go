package e2b

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recorded is one exchange with a real envd 0.6.13.
type recorded struct {
	Label   string
	Request struct {
		Method, Path string
		Headers      [][2]string
		BodyHex      string `json:"body_hex"`
	}
	Response struct {
		StatusLine string `json:"status_line"`
		Headers    [][2]string
		BodyHex    string `json:"body_hex"`
	}
}

func transcript(t *testing.T, name string) []recorded {
	t.Helper()
	files, err := filepath.Glob("testdata/transcripts/" + name + "_*.json")
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: %v, %v", name, files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var f struct{ Exchanges []recorded }
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	return f.Exchanges
}

// playback answers each request with the next recorded answer and compares the
// request with the recorded one.
type playback struct {
	t    *testing.T
	left []recorded
}

func (p *playback) RoundTrip(r *http.Request) (*http.Response, error) {
	p.t.Helper()
	if len(p.left) == 0 {
		p.t.Errorf("a request that was not recorded: %s", r.URL.Path)
		return nil, io.ErrUnexpectedEOF
	}
	x := p.left[0]
	p.left = p.left[1:]
	p.compare(x, r)
	body, err := hex.DecodeString(x.Response.BodyHex)
	if err != nil {
		return nil, err
	}
	resp := &http.Response{Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}
	if _, err := fmt.Sscanf(x.Response.StatusLine, "HTTP/1.1 %d", &resp.StatusCode); err != nil {
		return nil, err
	}
	for _, h := range x.Response.Headers {
		resp.Header.Add(h[0], h[1])
	}
	return resp, nil
}

// compare holds a request against the recorded one: the same route, headers and
// message. Ours names another user, says who it is, and asks for keepalives.
func (p *playback) compare(x recorded, r *http.Request) {
	p.t.Helper()
	if r.Method != x.Request.Method || r.URL.Path != x.Request.Path {
		p.t.Errorf("%s %s, recorded %s %s", r.Method, r.URL.Path, x.Request.Method, x.Request.Path)
	}
	want, got := map[string]string{}, map[string]string{}
	for _, h := range x.Request.Headers {
		want[http.CanonicalHeaderKey(h[0])] = h[1]
	}
	for k, v := range r.Header {
		got[k] = v[0]
	}
	for _, k := range []string{"Host", "Content-Length", "User-Agent", "Authorization", "Keepalive-Ping-Interval"} {
		delete(want, k)
		delete(got, k)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Errorf("headers of %s (-recorded +sent):\n%s", x.Label, diff)
	}
	sent, _ := io.ReadAll(r.Body)
	recordedBody, _ := hex.DecodeString(x.Request.BodyHex)
	if diff := cmp.Diff(messages(p.t, recordedBody), messages(p.t, sent)); diff != "" {
		p.t.Errorf("body of %s (-recorded +sent):\n%s", x.Label, diff)
	}
}

// messages decodes a bare JSON body, or the envelopes of a stream. An absent
// list of arguments is an empty one.
func messages(t *testing.T, body []byte) []any {
	t.Helper()
	var all []any
	add := func(data []byte) {
		var v map[string]any
		if err := json.Unmarshal(data, &v); err != nil {
			t.Errorf("%q: %v", data, err)
		}
		if p, ok := v["process"].(map[string]any); ok {
			if args, ok := p["args"].([]any); ok && len(args) == 0 {
				delete(p, "args")
			}
		}
		all = append(all, v)
	}
	if len(body) > 0 && body[0] == '{' {
		add(body)
		return all
	}
	for len(body) >= 5 {
		n := binary.BigEndian.Uint32(body[1:])
		add(body[5 : 5+n])
		body = body[5+n:]
	}
	return all
}

func played(t *testing.T, name string, only ...int) (*envd, *playback) {
	t.Helper()
	all := transcript(t, name)
	p := &playback{t: t}
	for i, x := range all {
		if len(only) == 0 || slices.Contains(only, i) {
			p.left = append(p.left, x)
		}
	}
	return &envd{
		http: newHTTP(p), base: "http://127.0.0.1:49983", id: "iabcdefghijklmnopqrst", token: NewSecret("dummy-access-token"),
	}, p
}

// command reads what a recorded start asked for.
func command(t *testing.T, x recorded) (process, bool) {
	t.Helper()
	body, _ := hex.DecodeString(x.Request.BodyHex)
	var req struct {
		Process process
		Stdin   bool
	}
	if err := json.Unmarshal(body[5:], &req); err != nil {
		t.Fatal(err)
	}
	return req.Process, req.Stdin
}

func TestClientSpeaksAsRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		out, fail string
	}{
		"03":  {"out\n", ""},
		"04":  {"", "exit status 3"},
		"05":  {"", "signal: killed"},
		"06":  {"", "signal: segmentation fault"},
		"08":  {"", "exit status 127: nice: '/no/such/binary': No such file or directory"},
		"08b": {"", "exit status 127"},
		"08c": {"", "exit status 126"},
		"09":  {"", "invalid_argument: cwd '/no/such/dir' does not exist"},
		"09b": {"", "invalid_argument: error starting process"},
		"10":  {"", "unauthenticated: invalid username: 'ghost'"},
		"38":  {"hi\n", ""},
		"39":  {"hi\n", ""},
		"41":  {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, left := played(t, name)
			p, stdin := command(t, left.left[0])
			out, err := collect(t, e, p, stdin)
			if c.fail == "" && err != nil || c.fail != "" && (err == nil || !strings.Contains(err.Error(), c.fail)) {
				t.Errorf("%v, want %q", err, c.fail)
			}
			if out != c.out || len(left.left) != 0 {
				t.Errorf("%q, %d exchanges left", out, len(left.left))
			}
		})
	}
}

func collect(t *testing.T, e *envd, p process, stdin bool) (string, error) {
	t.Helper()
	body, pid, err := e.startProcess(t.Context(), p, stdin)
	if err != nil {
		return "", err
	}
	s := newStream(e, body, pid)
	out, err := io.ReadAll(s)
	_ = s.Close()
	return string(out), err
}

func TestClientWritesAsRecorded(t *testing.T) {
	e, left := played(t, "12", 0, 1, 2)
	p, stdin := command(t, left.left[0])
	body, pid, err := e.startProcess(t.Context(), p, stdin)
	if err != nil || pid != 60 {
		t.Fatalf("pid %d, %v", pid, err)
	}
	s := newStream(e, body, pid)
	if _, err := s.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil || len(left.left) != 0 {
		t.Errorf("%v, %d exchanges left", err, len(left.left))
	}
}

func TestClientReadsRecordedErrors(t *testing.T) {
	t.Run("12 input after the end", func(t *testing.T) {
		e, _ := played(t, "12", 3)
		err := e.sendInput(t.Context(), 60, []byte("x"))
		if x := asEnvd(err); x == nil || x.Status != 404 || x.Code != "not_found" {
			t.Error(err)
		}
	})
	t.Run("13 input without stdin", func(t *testing.T) {
		e, _ := played(t, "13", 0)
		err := e.sendInput(t.Context(), 61, []byte("x"))
		if x := asEnvd(err); x == nil || x.Code != "internal" {
			t.Error(err)
		}
	})
	t.Run("02 token missing", func(t *testing.T) {
		x := transcript(t, "02")[0]
		rt := roundTripper(func(*http.Request) (*http.Response, error) {
			body, _ := hex.DecodeString(x.Response.BodyHex)
			return reply(401, string(body)), nil
		})
		e := &envd{http: newHTTP(rt), base: "http://envd.test", token: NewSecret("t")}
		_, _, err := e.startProcess(t.Context(), process{Cmd: "true"}, false)
		if x := asEnvd(err); x == nil || !x.unauthorized() {
			t.Error(err)
		}
	})
	t.Run("36 deadline exceeded", func(t *testing.T) {
		x := transcript(t, "36")[0]
		body, _ := hex.DecodeString(x.Response.BodyHex)
		s, w := piped(t)
		go func() {
			_, _ = w.Write(body)
			_ = w.Close()
		}()
		out, err := io.ReadAll(s)
		var end *envdError
		if string(out) != "a\n" || !errors.As(err, &end) || end.Code != "deadline_exceeded" {
			t.Errorf("%q, %v", out, err)
		}
	})
}

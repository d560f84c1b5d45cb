package e2btest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"shoal/e2b/e2btest"
)

// recording is one file of testdata: exchanges with a real envd 0.6.13.
type recording struct {
	Name      string     `json:"name"`
	Exchanges []exchange `json:"exchanges"`
}

type exchange struct {
	Label   string `json:"label"`
	Request struct {
		Method  string      `json:"method"`
		Path    string      `json:"path"`
		Headers [][2]string `json:"headers"`
		BodyHex string      `json:"body_hex"`
	} `json:"request"`
	Response struct {
		StatusLine   string          `json:"status_line"`
		Headers      [][2]string     `json:"headers"`
		BodyHex      string          `json:"body_hex"`
		BodyJSON     json.RawMessage `json:"body_json"`
		Envelopes    []envelope      `json:"envelopes"`
		Disconnected bool            `json:"client_disconnected"`
	} `json:"response"`
	Disconnected bool `json:"client_disconnected"`
}

type envelope struct {
	Flags byte            `json:"flags"`
	JSON  json.RawMessage `json:"json"`
}

const token = "dummy-access-token"

// left out of the fake, each with its reason.
var notReplayed = map[string]string{
	"22_upload_octet_stream/relative path + metadata header": "file metadata is not kept",
	"25_download/gzip":           "downloads are not compressed",
	"25_download/not acceptable": "downloads are not compressed",
}

func recordings(t *testing.T) []recording {
	t.Helper()
	files, err := filepath.Glob("../testdata/transcripts/*.json")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	var all []recording
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var r recording
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, r)
	}
	return all
}

// TestFakeAnswersAsRecorded sends every recorded request to the fake daemon in
// a container and compares the answers.
func TestFakeAnswersAsRecorded(t *testing.T) {
	needDocker(t)
	fake := e2btest.New(t, e2btest.Config{
		Backend: e2btest.NewDocker(t, sandboxImage(t), nil), DefaultUser: "sandbox", Workdir: "/workspace",
		Env: map[string]string{"FOO": "bar", "E2B_SANDBOX": "false"},
	})
	daemon := fake.Daemon(t, token)
	for _, r := range recordings(t) {
		t.Run(r.Name, func(t *testing.T) { replay(t, daemon, r) })
	}
}

// overlapping recordings have calls that act on a stream listed before them.
var overlapping = map[string]bool{"12": true, "15": true, "18": true, "40": true, "44": true, "46": true}

// player replays one recording.
type player struct {
	t    *testing.T
	base string
	pids map[string]string // as recorded → as they are
	open []func()          // streams to be compared at the end
}

func replay(t *testing.T, base string, r recording) {
	p := &player{t: t, base: base, pids: map[string]string{}}
	p.prepare(r.Name)
	for i, x := range r.Exchanges {
		if notReplayed[r.Name+"/"+x.Label] != "" {
			continue
		}
		if r.Name == "14_list" && i == 1 {
			p.call(http.MethodPost, "/process.Process/SendSignal", `{"process":{"pid":61},"signal":"SIGNAL_SIGKILL"}`)
			time.Sleep(100 * time.Millisecond)
		}
		p.exchange(x, i < len(r.Exchanges)-1 && overlapping[r.Name[:2]])
	}
	if r.Name[:2] == "44" { // the recording ends with a call that it does not show
		p.call(http.MethodPost, "/process.Process/CloseStdin", `{"process":{"pid":116}}`)
	}
	for _, compare := range p.open {
		compare()
	}
}

// prepare makes what earlier recordings of the session had left.
func (p *player) prepare(name string) {
	switch name[:2] {
	case "13", "14", "43":
		recorded := map[string]string{"13": "61", "14": "61", "43": "115"}[name[:2]]
		p.background(recorded)
	case "24", "25", "26", "27":
		for path, body := range map[string]string{"a.txt": "hello\n", "b.bin": "\x00\x01\xff", "empty": ""} {
			p.put("/workspace/"+path, body)
		}
	}
}

func (p *player) background(recorded string) {
	ctx, cancel := context.WithCancel(context.Background())
	p.t.Cleanup(cancel)
	payload := `{"process":{"cmd":"/bin/sleep","args":["30"]},"stdin":false,"tag":"t1"}`
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.base+"/process.Process/Start", bytes.NewReader(frame(payload)))
	authorize(req, "application/connect+json")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		p.t.Fatal(err)
	}
	e, err := readOne(bufio.NewReader(resp.Body))
	if err != nil {
		p.t.Fatal(err)
	}
	p.learn(recorded, e)
	p.t.Cleanup(func() {
		p.call(http.MethodPost, "/process.Process/SendSignal", `{"process":{"pid":`+recorded+`},"signal":"SIGNAL_SIGKILL"}`)
		resp.Body.Close()
	})
}

func authorize(req *http.Request, contentType string) {
	req.Header.Set("X-Access-Token", token)
	req.Header.Set("Authorization", "Basic c2FuZGJveDo=")
	req.Header.Set("Content-Type", contentType)
}

func frame(payload string) []byte {
	return append(append([]byte{0}, binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...), payload...)
}

func (p *player) call(method, path, body string) {
	req, _ := http.NewRequestWithContext(context.Background(), method, p.base+path, strings.NewReader(p.translate(body)))
	authorize(req, "application/json")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
}

func (p *player) put(path, body string) {
	req, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, p.base+"/files?username=sandbox&path="+path, strings.NewReader(body))
	authorize(req, "application/octet-stream")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p.t.Fatalf("put %s: %s", path, resp.Status)
	}
}

// translate writes the pids of now for those of the recording.
func (p *player) translate(body string) string {
	for recorded, now := range p.pids {
		body = regexp.MustCompile(`\b`+recorded+`\b`).ReplaceAllString(body, now)
	}
	return body
}

// learn notes the pid of a start event.
func (p *player) learn(recorded string, e envelope) {
	if pid := pidOf(e); pid != "" && recorded != "" {
		p.pids[recorded] = pid
	}
}

func pidOf(e envelope) string {
	var m struct {
		Event struct {
			Start struct {
				PID int `json:"pid"`
			} `json:"start"`
		} `json:"event"`
	}
	if json.Unmarshal(e.JSON, &m) != nil || m.Event.Start.PID == 0 {
		return ""
	}
	return strconv.Itoa(m.Event.Start.PID)
}

// exchange sends one request; a stream that others follow stays open meanwhile.
func (p *player) exchange(x exchange, more bool) {
	p.t.Helper()
	body, err := hex.DecodeString(x.Request.BodyHex)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	req, _ := http.NewRequestWithContext(ctx, x.Request.Method, p.base+x.Request.Path, bytes.NewReader(p.body(body)))
	for _, h := range x.Request.Headers {
		switch h[0] {
		case "Host", "Content-Length":
		default:
			req.Header.Set(h[0], h[1])
		}
	}
	transport := &http.Transport{DisableCompression: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		p.t.Fatalf("%s: %v", x.Label, err)
	}
	finish := func() {
		resp.Body.Close()
		cancel()
		transport.CloseIdleConnections()
	}
	p.head(x, resp)
	if len(x.Response.Envelopes) == 0 {
		p.plain(x, resp)
		finish()
		time.Sleep(50 * time.Millisecond)
		return
	}
	r := bufio.NewReader(resp.Body)
	first, err := readOne(r)
	if err != nil {
		p.t.Fatalf("%s: %v", x.Label, err)
	}
	p.learn(pidOf(x.Response.Envelopes[0]), first)
	if x.Disconnected || x.Response.Disconnected {
		finish()
		return
	}
	compare := func() {
		p.envelopes(x, first, r)
		finish()
	}
	if more {
		p.open = append(p.open, compare)
		time.Sleep(300 * time.Millisecond)
		return
	}
	compare()
	time.Sleep(50 * time.Millisecond)
}

// body translates envelopes one by one, as lengths may change.
func (p *player) body(raw []byte) []byte {
	if len(p.pids) == 0 {
		return raw
	}
	if len(raw) < 5 || raw[0] > 3 {
		return []byte(p.translate(string(raw)))
	}
	var out []byte
	for len(raw) > 0 {
		n := binary.BigEndian.Uint32(raw[1:])
		out = append(out, frame(p.translate(string(raw[5:5+n])))...)
		raw = raw[5+n:]
	}
	return out
}

func (p *player) head(x exchange, resp *http.Response) {
	p.t.Helper()
	if got := "HTTP/1.1 " + resp.Status; got != x.Response.StatusLine {
		p.t.Errorf("%s: %s, recorded %s", x.Label, got, x.Response.StatusLine)
	}
	for _, h := range x.Response.Headers {
		switch h[0] {
		case "Date", "Content-Length", "Last-Modified", "Transfer-Encoding":
		default:
			if got := resp.Header.Get(h[0]); got != h[1] {
				p.t.Errorf("%s: header %s is %q, recorded %q", x.Label, h[0], got, h[1])
			}
		}
	}
}

// plain compares a body as JSON, else as bytes.
func (p *player) plain(x exchange, resp *http.Response) {
	p.t.Helper()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Errorf("%s: %v", x.Label, err)
	}
	want, _ := hex.DecodeString(x.Response.BodyHex)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if !bytes.Equal(got, want) {
			p.t.Errorf("%s: body %x, recorded %x", x.Label, got, want)
		}
		return
	}
	if diff := cmp.Diff(value([]byte(p.translate(string(want)))), value(got)); diff != "" {
		p.t.Errorf("%s (-recorded +got):\n%s", x.Label, diff)
	}
}

func value(data []byte) any {
	var v any
	if json.Unmarshal(data, &v) != nil {
		return string(data)
	}
	return v
}

// envelopes compares a stream: output per stream as a whole, as neither its
// cutting nor the order between the two is promised; everything else in order.
func (p *player) envelopes(x exchange, first envelope, r *bufio.Reader) {
	p.t.Helper()
	got := []envelope{first}
	for got[len(got)-1].Flags&2 == 0 {
		e, err := readOne(r)
		if err != nil {
			p.t.Errorf("%s: after %d envelopes: %v", x.Label, len(got), err)
			return
		}
		got = append(got, e)
	}
	want := x.Response.Envelopes
	for i := range want {
		want[i].JSON = json.RawMessage(p.translate(string(want[i].JSON)))
	}
	if diff := cmp.Diff(gist(want), gist(got)); diff != "" {
		p.t.Errorf("%s (-recorded +got):\n%s", x.Label, diff)
	}
}

func gist(all []envelope) []string {
	var out []string
	data := map[string][]byte{}
	for _, e := range all {
		var m struct {
			Event struct {
				Data      map[string][]byte `json:"data"`
				Keepalive *struct{}         `json:"keepalive"`
			} `json:"event"`
		}
		_ = json.Unmarshal(e.JSON, &m)
		for k, v := range m.Event.Data {
			data[k] = append(data[k], v...)
		}
		if m.Event.Data == nil {
			out = append(out, fmt.Sprint(e.Flags, value(e.JSON)))
		}
	}
	for k, v := range data {
		out = append(out, fmt.Sprintf("%s %q", k, v))
	}
	slices.Sort(out[len(out)-len(data):])
	return out
}

func readOne(r *bufio.Reader) (envelope, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return envelope{}, err
	}
	payload := make([]byte, binary.BigEndian.Uint32(head[1:]))
	if _, err := io.ReadFull(r, payload); err != nil {
		return envelope{}, err
	}
	if head[0]&1 != 0 {
		payload = unzip(payload)
	}
	return envelope{Flags: head[0], JSON: payload}, nil
}

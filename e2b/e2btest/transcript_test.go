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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"shoal/e2b/e2btest"
)

// TestFakeAnswersAsRecorded sends every recorded request to the fake daemon in
// a container and compares the answers.
func TestFakeAnswersAsRecorded(t *testing.T) {
	needDocker(t)
	backend := e2btest.NewDocker(t, sandboxImage(t), nil, "")
	fake := e2btest.New(t, e2btest.Config{
		Backend: backend, DefaultUser: "sandbox", Workdir: "/workspace",
		Env: map[string]string{"FOO": "bar", "E2B_SANDBOX": "false"},
	})
	insecure := e2btest.New(t, e2btest.Config{Backend: backend, Env: map[string]string{"E2B_SANDBOX": "false"}})
	daemons := map[string]string{"": fake.Daemon(t, token)}
	daemons["00"] = insecure.Daemon(t, "")
	daemons["07"] = daemons["00"]
	for _, r := range recordings(t) {
		if replayed[r.Name] != "" {
			continue
		}
		daemon, own := daemons[r.Name[:2]]
		if !own {
			daemon = daemons[""]
		}
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
	end  func()            // ends the process that was made in preparation
}

func replay(t *testing.T, base string, r recording) {
	p := &player{t: t, base: base, pids: map[string]string{}}
	p.prepare(r.Name)
	for i, x := range r.Exchanges {
		if leftOut[r.Name+"/"+x.Label] != "" {
			continue
		}
		if r.Name == "14_list" && i == 1 {
			p.end()
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
	switch number := name[:2]; {
	case number == "13", number == "14", number == "43":
		recorded := map[string]string{"13": "61", "14": "61", "43": "115"}[number]
		p.background(recorded)
	case number >= "24" && number <= "34":
		for path, body := range map[string]string{"a.txt": "hello\n", "b.bin": "\x00\x01\xff", "empty": "", "g.txt": "zipped", "new/deep/f.txt": "x"} {
			p.put("/workspace/"+path, body)
		}
		p.put("/workspace/rel.txt", "r", "X-Metadata-Color", "blue")
		p.root("ln -sfn /workspace/a.txt /workspace/link; ln -sfn /nowhere /workspace/dang")
	}
	if name[:2] == "31" {
		for _, dir := range []string{"m/n/o", "emptydir"} {
			p.call(http.MethodPost, "/filesystem.Filesystem/MakeDir", `{"path":"/workspace/`+dir+`"}`)
		}
	}
}

// root runs a command as root, to its end.
func (p *player) root(script string) {
	p.t.Helper()
	payload := `{"process":{"cmd":"/bin/sh","args":["-c",` + strconv.Quote(script) + `]},"stdin":false}`
	req, _ := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.base+"/process.Process/Start", bytes.NewReader(frame(payload)))
	authorize(req, "application/connect+json")
	req.Header.Set("Authorization", "Basic cm9vdDo=")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if out, err := io.ReadAll(resp.Body); err != nil || !bytes.Contains(out, []byte("exit status 0")) {
		p.t.Fatalf("%s: %q, %v", script, out, err)
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
	p.end = sync.OnceFunc(func() {
		p.call(http.MethodPost, "/process.Process/SendSignal", `{"process":{"pid":`+recorded+`},"signal":"SIGNAL_SIGKILL"}`)
		_, _ = io.Copy(io.Discard, resp.Body) // until it is listed no more
		resp.Body.Close()
	})
	p.t.Cleanup(p.end)
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

func (p *player) put(path, body string, header ...string) {
	req, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, p.base+"/files?username=sandbox&path="+path, strings.NewReader(body))
	authorize(req, "application/octet-stream")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
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
	want, got := http.Header{}, resp.Header.Clone()
	for _, h := range x.Response.Headers {
		want.Add(h[0], h[1])
	}
	for _, name := range []string{"Date", "Content-Length", "Last-Modified", "Transfer-Encoding"} {
		want.Del(name)
		got.Del(name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Errorf("%s: headers (-recorded +got):\n%s", x.Label, diff)
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
	undate(v)
	return v
}

// undate drops what depends on the day and on the file system: times of files,
// and sizes of directories.
func undate(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			undate(item)
		}
	case map[string]any:
		delete(v, "modifiedTime")
		if v["type"] == "FILE_TYPE_DIRECTORY" {
			delete(v, "size")
		}
		for _, item := range v {
			undate(item)
		}
	}
}

// listed is the time that ls prints.
var listed = regexp.MustCompile(`[A-Z][a-z]{2} +[0-9]+ [0-9]{2}:[0-9]{2} `)

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
		out = append(out, fmt.Sprintf("%s %q", k, listed.ReplaceAll(v, nil)))
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

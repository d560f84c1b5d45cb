package filter_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"shoal/docker/filter"
	"shoal/docker/filter/filtertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const switched = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"

// ourOwners is what the engine knows of our container and its exec.
func ourOwners() map[string]string {
	container := fmt.Sprintf(`{"Id":%q,"Name":"/%s","Config":{"Labels":%s}}`, corpusID, ourName, ourLabels)
	return map[string]string{
		"containers/" + ourName + "/json":  container,
		"containers/" + corpusID + "/json": container,
		"exec/" + corpusExec + "/json":     fmt.Sprintf(`{"ContainerID":%q}`, corpusID),
	}
}

func startRequest() string {
	const start = `{"Detach":false,"Tty":false}`
	return post("/exec/"+corpusExec+"/start", length(len(start))+"Connection: Upgrade\r\nUpgrade: tcp\r\n", start)
}

// openStream starts an exec over c and fails unless the engine's 101 arrives.
func openStream(t testing.TB, c net.Conn) *bufio.Reader {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, startRequest()); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("no stream: %v %v", resp, err)
	}
	return br
}

// TestAudit: every admitted change is logged with rule, name and the digest of
// what the engine got, every refusal with its rule, and never a body or a path.
func TestAudit(t *testing.T) {
	engine := newFakeEngine(t, ourOwners())
	var log filtertest.LogBuffer
	addr := startFilter(t, defaultPolicy(t), engine.dial, slog.New(slog.NewJSONHandler(&log, nil)))
	send := func(raw string) int {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(c, raw)
		return (&client{c, bufio.NewReader(c)}).status("POST")
	}
	valid := encode(t, validCreate(t))
	evil := strings.Replace(valid, `"HostConfig":{`, `"HostConfig":{"s3cret-key":"s3cret-value",`, 1)
	if got := send(post("/containers/create?name="+ourName, length(len(valid)), valid)); got != http.StatusOK {
		t.Fatalf("status %d", got)
	}
	if got := send(post("/containers/create?name="+ourName, length(len(evil)), evil)); got != http.StatusForbidden {
		t.Fatalf("status %d", got)
	}
	if got := send(post("/s3cret-path", "", "")); got != http.StatusForbidden {
		t.Fatalf("status %d", got)
	}
	if got := send("GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n"); got != http.StatusOK {
		t.Fatalf("status %d", got)
	}
	if got := send(startRequest()); got != http.StatusOK {
		t.Fatalf("status %d", got)
	}
	var lines []map[string]any
	for line := range strings.Lines(log.String()) {
		lines = append(lines, decode(t, line))
	}
	if len(lines) != 4 {
		t.Fatalf("%d lines, want 4:\n%s", len(lines), log.String())
	}
	if lines[3]["name"] != corpusExec || lines[3]["container"] != ourName {
		t.Errorf("the start of an exec is logged as %v", lines[3])
	}
	sum := sha256.Sum256(engine.recordings()[0].body)
	for key, want := range map[string]any{
		"msg": "docker call admitted", "rule": "container.create", "name": ourName, "body_sha256": hex.EncodeToString(sum[:]),
	} {
		if lines[0][key] != want {
			t.Errorf("%s is %v, want %v", key, lines[0][key], want)
		}
	}
	if lines[1]["msg"] != "docker call refused" || lines[1]["rule"] != "json.key" || lines[2]["rule"] != "path.unknown" {
		t.Errorf("refusals %v", lines[1:])
	}
	if strings.Contains(log.String(), "s3cret") {
		t.Errorf("the log quotes the request:\n%s", log.String())
	}
}

// TestShutdown ends streams and returns.
func TestShutdown(t *testing.T) {
	engine := newFakeEngine(t, ourOwners(), switched)
	engine.hijack = hijackCase{ClientHalfClose: true}
	f, err := filter.New(filter.Config{Policy: defaultPolicy(t), Dial: engine.dial, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := filter.ListenUnix(t.Context(), socket, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, l) }()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	br := openStream(t, c)
	cancel()
	if _, err := br.ReadByte(); err == nil {
		t.Error("the stream goes on")
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Serve does not return")
	}
}

// TestStreamBothWays passes a megabyte in each direction unchanged.
func TestStreamBothWays(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 64<<10)
	engine := newFakeEngine(t, ourOwners(), switched)
	engine.hijack = hijackCase{ClientHalfClose: true, UpstreamSends: big, ExpectUpstreamReceive: big}
	addr := startFilter(t, defaultPolicy(t), engine.dial, slog.New(slog.DiscardHandler))
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	br := openStream(t, c)
	if _, err := io.WriteString(c, big); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	out, err := io.ReadAll(br)
	if err != nil || string(out) != big {
		t.Errorf("received %d bytes, error %v", len(out), err)
	}
	<-engine.streamed
	if engine.received.String() != big {
		t.Errorf("the engine received %d bytes", engine.received.Len())
	}
}

// TestConnectionLimit serves no more connections than it may, streams included.
func TestConnectionLimit(t *testing.T) {
	engine := newFakeEngine(t, ourOwners(), switched)
	engine.hijack = hijackCase{ClientHalfClose: true}
	f, err := filter.New(filter.Config{Policy: defaultPolicy(t), Dial: engine.dial, Log: slog.New(slog.DiscardHandler), MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := filter.ListenUnix(t.Context(), socket, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, l) }()
	defer func() { cancel(); <-done }()
	first, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	openStream(t, first)
	second, err := net.Dial("unix", socket) // the kernel accepts it, the filter does not
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	_, _ = io.WriteString(second, "GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
	_ = second.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, err := second.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a second connection is served: %v", err)
	}
	_ = first.Close()
	_ = second.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := second.Read(make([]byte, 1)); n == 0 {
		t.Errorf("the slot of the first is not given back: %v", err)
	}
}

// TestEngineAway answers in words when the engine does not answer.
func TestEngineAway(t *testing.T) {
	away := func(context.Context) (net.Conn, error) { return nil, errors.New("secret detail") }
	addr := startFilter(t, defaultPolicy(t), away, slog.New(slog.DiscardHandler))
	for _, raw := range []string{"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n", startRequest()} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(c, raw)
		out, _ := io.ReadAll(c)
		_ = c.Close()
		if !bytes.HasPrefix(out, []byte("HTTP/1.1 502")) || bytes.Contains(out, []byte("secret")) {
			t.Errorf("answer %s", out)
		}
	}
}

// TestEngineSwitchesUnasked does not take an engine's 101 to another call for a
// stream.
func TestEngineSwitchesUnasked(t *testing.T) {
	engine := newFakeEngine(t, nil, switched)
	addr := startFilter(t, defaultPolicy(t), engine.dial, slog.New(slog.DiscardHandler))
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(c, "GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
	if status := (&client{c, bufio.NewReader(c)}).status("GET"); status != http.StatusBadGateway {
		t.Errorf("status %d", status)
	}
}

// TestBrokenAnswer does not pass half an answer on as a whole one.
func TestBrokenAnswer(t *testing.T) {
	engine := newFakeEngine(t, nil, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
	dial := func(ctx context.Context) (net.Conn, error) {
		c, err := engine.dial(ctx)
		if err == nil { // the engine goes away in mid-answer
			time.AfterFunc(300*time.Millisecond, func() { _ = c.Close() })
		}
		return c, err
	}
	addr := startFilter(t, defaultPolicy(t), dial, slog.New(slog.DiscardHandler))
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(c, "GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("%q is passed on as a whole answer", out)
	}
}

// TestSlowClients ends connections on which a request never arrives whole.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	engine := newFakeEngine(t, nil)
	addr := startFilter(t, defaultPolicy(t), engine.dial, slog.New(slog.DiscardHandler))
	var wg sync.WaitGroup
	for name, raw := range map[string]string{
		"header": "POST /v1.41/containers/create HTTP/1.1\r\nHost: docker\r\n",
		"body":   post("/containers/create?name="+ourName, length(500), `{"Image":`),
	} {
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			_, _ = io.WriteString(c, raw)
			out, err := io.ReadAll(c)
			if err != nil {
				t.Errorf("%s: the connection is not closed: %v, %q", name, err, out)
			}
		})
	}
	wg.Wait()
	if n := len(engine.recordings()); n != 0 {
		t.Errorf("%d requests reached the engine", n)
	}
}

// TestOwnersForget: a name that was removed is looked up again.
func TestOwnersForget(t *testing.T) {
	owners := ourOwners()
	engine := newFakeEngine(t, owners, answer(201, `{"Id":"x"}`), answer(201, `{"Id":"`+foreignExec+`"}`), answer(204, ""))
	addr := startFilter(t, defaultPolicy(t), engine.dial, slog.New(slog.DiscardHandler))
	send := func(method, target, body string) int {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		head := ""
		if body != "" {
			head = length(len(body))
		}
		_, _ = fmt.Fprintf(c, "%s /v1.41%s HTTP/1.1\r\nHost: docker\r\n%s\r\n%s", method, target, head, body)
		return (&client{c, bufio.NewReader(c)}).status(method)
	}
	attach := `{"AttachStdin":true,"AttachStdout":true,"AttachStderr":true,"Cmd":["/opt/shoal/bin/attach","/run/shoal/agent.sock"],"User":"0:0"}`
	delete(owners, "containers/"+ourName+"/json") // known from its creation alone
	if got := send("POST", "/containers/create?name="+ourName, encode(t, validCreate(t))); got != 201 {
		t.Fatalf("create: %d", got)
	}
	if got := send("POST", "/containers/"+ourName+"/exec", attach); got != 201 {
		t.Fatalf("exec: %d", got)
	}
	if got := send("DELETE", "/containers/"+ourName+"?force=1&v=1", ""); got != 204 {
		t.Fatalf("remove: %d", got)
	}
	if got := send("POST", "/containers/"+ourName+"/exec", attach); got != 404 {
		t.Errorf("an exec after the removal: %d", got)
	}
}

// TestEngineStateFindings judges states that this machine's engine is not in.
func TestEngineStateFindings(t *testing.T) {
	t.Parallel()
	good := filter.EngineState{
		Version: "29.6.0", API: "1.52", Containerd: "2.3.2", Runc: "1.4.1", Storage: "overlay2", Filesystem: "xfs",
		Runtimes: []string{"runc", "runsc"}, Runtime: "runc", Cgroup: "2", Seccomp: "builtin", AppArmor: true, UserNS: true,
	}
	for _, f := range good.Findings() {
		if f.Level != filter.LevelOK || f.Remedy != "" {
			t.Errorf("good engine: %+v", f)
		}
	}
	for name, change := range map[string]func(*filter.EngineState){
		"api":                      func(s *filter.EngineState) { s.API = "1.40" },
		"seccomp":                  func(s *filter.EngineState) { s.Seccomp = "unconfined" },
		"mandatory access control": func(s *filter.EngineState) { s.AppArmor = false },
		"user namespaces":          func(s *filter.EngineState) { s.UserNS = false },
		"limits":                   func(s *filter.EngineState) { s.Missing = []string{"pids"} },
		"runtimes":                 func(s *filter.EngineState) { s.Runtimes = []string{"runc"} },
		"storage":                  func(s *filter.EngineState) { s.Storage = "vfs" },
		"cgroups":                  func(s *filter.EngineState) { s.Cgroup = "1" },
		"CVE-2024-21626":           func(s *filter.EngineState) { s.Runc = "1.1.11" },
		"CVE-2025-31133, CVE-2025-52565, CVE-2025-52881": func(s *filter.EngineState) { s.Runc = "1.3.2" },
		"CVE-2024-29018":        func(s *filter.EngineState) { s.Version = "25.0.4" },
		"2026 image advisories": func(s *filter.EngineState) { s.Containerd = "" },
	} {
		s := good
		change(&s)
		found := false
		for _, f := range s.Findings() {
			found = found || f.Name == name && f.Level != filter.LevelOK
		}
		if !found {
			t.Errorf("%s is not found", name)
		}
	}
}

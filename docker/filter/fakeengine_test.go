package filter_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A recording is one request as it reached the engine.
type recording struct {
	raw     []byte
	method  string
	target  string
	header  http.Header
	body    []byte
	framing int // how many of Content-Length and Transfer-Encoding there were
}

// A fakeEngine records what reaches it and answers 200 {}, or what it was told
// to answer. It knows the containers and execs that the cases name, and tells
// the filter's own look-ups about them; those are no part of the recording.
type fakeEngine struct {
	t        *testing.T
	listener net.Listener
	owners   map[string]string // path of a look-up, without version → body of its answer
	hijack   hijackCase

	mu       sync.Mutex
	answers  []string    // guarded by mu: raw answers to come; "" is the default
	seen     []recording // guarded by mu
	received bytes.Buffer
	streamed chan struct{} // closed when a stream has ended
}

// hijackCase says what happens on a stream after the engine's 101.
type hijackCase struct {
	ClientSends           string
	SameSegment           bool
	ClientHalfClose       bool
	UpstreamSends         string
	UpstreamCloses        bool
	ClientSendsAfter      string
	ExpectUpstreamReceive string `json:"expectUpstreamReceives"`
	ExpectClientReceives  string
	MustNotReachUpstream  bool
}

func newFakeEngine(t *testing.T, owners map[string]string, answers ...string) *fakeEngine {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/engine.sock")
	if err != nil {
		t.Fatal(err)
	}
	e := &fakeEngine{t: t, listener: l, owners: owners, answers: answers, streamed: make(chan struct{})}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = c.Close() })()
				e.serve(c)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		wg.Wait()
	})
	return e
}

func (e *fakeEngine) dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", e.listener.Addr().String())
}

func (e *fakeEngine) serve(c net.Conn) {
	defer c.Close()
	var raw bytes.Buffer
	br := bufio.NewReader(io.TeeReader(c, &raw))
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		head, _, _ := strings.Cut(raw.String(), "\r\n\r\n")
		rec := recording{
			raw: bytes.Clone(raw.Bytes()), method: req.Method, target: req.RequestURI, header: req.Header, body: body,
			framing: strings.Count(strings.ToLower(head), "\ncontent-length:") + strings.Count(strings.ToLower(head), "\ntransfer-encoding:"),
		}
		raw.Reset()
		answer := e.answer(rec)
		if rec.method == http.MethodHead {
			head, _, _ := strings.Cut(answer, "\r\n\r\n")
			answer = head + "\r\n\r\n"
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
		if strings.HasPrefix(answer, "HTTP/1.1 101") {
			e.stream(c, br)
			return
		}
	}
}

func (e *fakeEngine) answer(rec recording) string {
	if rec.header.Get("User-Agent") == "shoal-dockerfilter" {
		_, path, _ := strings.Cut(strings.TrimPrefix(rec.target, "/"), "/")
		body, ok := e.owners[path]
		if rec.method != "GET" || !ok {
			return answer(404, `{"message":"not found"}`)
		}
		return answer(200, body)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = append(e.seen, rec)
	if len(e.answers) == 0 {
		return answer(200, "{}")
	}
	next := e.answers[0]
	e.answers = e.answers[1:]
	if next == "" {
		return answer(200, "{}")
	}
	return next
}

func answer(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		status, http.StatusText(status), len(body), body)
}

// stream plays the engine's side of a stream.
func (e *fakeEngine) stream(c net.Conn, br *bufio.Reader) {
	defer close(e.streamed)
	if e.hijack.UpstreamCloses {
		return
	}
	if e.hijack.UpstreamSends != "" && !e.hijack.ClientHalfClose {
		_, _ = io.WriteString(c, e.hijack.UpstreamSends)
	}
	want := len(e.hijack.ExpectUpstreamReceive)
	buf := make([]byte, 4096)
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	for e.hijack.ClientHalfClose || e.got() < want {
		n, err := br.Read(buf)
		e.mu.Lock()
		e.received.Write(buf[:n])
		e.mu.Unlock()
		if err != nil {
			break
		}
	}
	if e.hijack.ClientHalfClose {
		_, _ = io.WriteString(c, e.hijack.UpstreamSends)
	}
}

func (e *fakeEngine) got() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.received.Len()
}

func (e *fakeEngine) recordings() []recording {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]recording(nil), e.seen...)
}

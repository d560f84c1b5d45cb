package e2b

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"shoal/e2b/e2btest"
	"shoal/sandbox"
)

// raw answers every connection with bytes, piece by piece, until the client
// leaves or the pieces end.
func raw(t *testing.T, pieces ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	serve := func(c net.Conn) {
		defer c.Close()
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		for _, piece := range pieces {
			if piece == "" { // and nothing more
				_, _ = r.ReadByte()
				return
			}
			if _, err := io.WriteString(c, piece); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return "http://" + l.Addr().String()
}

const rawOK = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

// answers are what a control plane, or what has taken its place, might send.
var answers = map[string][]string{
	"a header that never ends":    {rawOK + "X: " + strings.Repeat("x", 1<<20)},
	"a header that stops":         {rawOK, ""},
	"headers without number":      {rawOK + strings.Repeat("X: y\r\n", 1<<16)},
	"interim answers without end": {strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: "+strings.Repeat("x", 1000)+"\r\n\r\n", 5000)},
	"another protocol":            {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", ""},
	"a body that stops":           {rawOK + "Content-Length: 100\r\n\r\n{", ""},
	"a body that breaks off":      {rawOK + "Content-Length: 100\r\n\r\n{"},
	"a body without end":          {rawOK + "Transfer-Encoding: chunked\r\n\r\n", strings.Repeat("8000\r\n"+strings.Repeat(" ", 0x8000)+"\r\n", 400)},
	"a chunk of another size":     {rawOK + "Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n"},
	"two lengths":                 {rawOK + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"},
	"a body that is compressed":   {rawOK + "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"},
	"depth":                       {rawOK + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", 20000, strings.Repeat("[", 20000))},
	"an error as long as a book":  {"HTTP/1.1 400 Bad\r\n\r\n" + `{"code":400,"message":"` + strings.Repeat("x", 1<<20)},
	"another language":            {"SSH-2.0-OpenSSH_9.2\r\n"},
	"the preface of another HTTP": {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
	"nothing":                     {},
	"a way elsewhere":             {"HTTP/1.1 308 Away\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"},
	"a way elsewhere within":      {"HTTP/1.1 302 Away\r\nLocation: /sandboxes/iother\r\nContent-Length: 0\r\n\r\n"},
	"an empty answer":             {rawOK + "Content-Length: 0\r\n\r\n"},
	"null":                        {rawOK + "Content-Length: 4\r\n\r\nnull"},
	"another sandbox":             {rawOK + "Content-Length: 22\r\n\r\n{\"sandboxID\":\"iother\"}"},
}

// TestHostileControlPlane: whatever is answered is an error, in time, in few
// words, and with a code of the contract.
func TestHostileControlPlane(t *testing.T) {
	for name, pieces := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &client{base: raw(t, pieces...), key: NewSecret("e2b_k"), http: newHTTP(newTransport()), log: slog.New(slog.DiscardHandler), backoff: time.Millisecond}
			defer c.http.CloseIdleConnections()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.get(ctx, "iabc")
			if err == nil || len(err.Error()) > 2000 || isGone(err) {
				t.Errorf("%.3000v", err)
			}
			if e := translate("get", err); sandbox.CodeOf(e) == "" || sandbox.CodeOf(e) == sandbox.Gone {
				t.Errorf("%v", e)
			}
		})
	}
}

// TestHostileDaemonHTTP: the same from inside a sandbox, where the answer should
// be a stream.
func TestHostileDaemonHTTP(t *testing.T) {
	for name, pieces := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &envd{http: newHTTP(newTransport()), base: raw(t, pieces...), id: "iabc", token: NewSecret("t")}
			defer e.http.CloseIdleConnections()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			_, _, err := e.startProcess(ctx, cat, true)
			if err == nil || len(err.Error()) > 2000 || time.Since(began) > 10*time.Second {
				t.Errorf("%.3000v", err)
			}
		})
	}
}

func TestHostileListing(t *testing.T) {
	item := `{"sandboxID":"ia","metadata":{"k":"v"}}`
	for name, page := range map[string]string{
		"more than was asked for": "[" + strings.Repeat(item+",", pageSize) + item + "]",
		"longer than it may be":   "[" + strings.Repeat(" ", maxListPage) + item + "]",
		"an object":               item,
	} {
		c, _ := scripted(func(int, *http.Request) (*http.Response, error) { return reply(200, page), nil })
		c.backoff = time.Millisecond
		if found, err := c.list(t.Context(), map[string]string{"k": "v"}); err == nil {
			t.Errorf("%s: %d sandboxes", name, len(found))
		}
	}
	c, n := scripted(func(n int, _ *http.Request) (*http.Response, error) {
		return reply(200, "["+item+"]", "X-Next-Token", fmt.Sprint(n)), nil
	})
	if _, err := c.list(t.Context(), nil); err == nil || n.Load() != maxPages {
		t.Errorf("without end: %v after %d pages", err, n.Load())
	}
}

// TestAnswerMayNotSendUsInside: an account in the cloud cannot make a worker
// speak, in the clear, to an address of its own network.
func TestAnswerMayNotSendUsInside(t *testing.T) {
	inside := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s was sent inside", r.URL) }))
	defer inside.Close()
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	p.cfg.Domain = "e2b.example.com"
	for _, domain := range []string{strings.TrimPrefix(inside.URL, "http://"), "localhost:2375", "10.0.0.1", "192.168.1.1:80", "a b", "x/y", "user@x", "[::1]:80"} {
		fake.Inject(e2btest.Fault{
			Match: "POST /sandboxes/*/connect", Status: 201,
			Body: fmt.Sprintf(`{"sandboxID":%q,"envdAccessToken":"t","domain":%q}`, h.Ref, domain),
		})
		_, err := p.Attach(t.Context(), h, true)
		wantCode(t, err, sandbox.Engine, "")
	}
	for _, token := range []string{"a\r\nX-Other: b", "é", strings.Repeat("x", 2000)} {
		fake.Inject(e2btest.Fault{
			Match: "POST /sandboxes/*/connect", Status: 201,
			Body: fmt.Sprintf(`{"sandboxID":%q,"envdAccessToken":%q}`, h.Ref, token),
		})
		_, err := p.Attach(t.Context(), h, true)
		wantCode(t, err, sandbox.Engine, "")
	}
}

// TestDripEndsAStream: an envelope that arrives byte by byte must still be whole
// in the time that silence may last.
func TestDripEndsAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := piped(t)
		var wrote sync.WaitGroup
		defer wrote.Wait()
		wrote.Go(func() {
			for _, b := range message(0, `{"event":{"data":{"stdout":"YWI="}}}`) {
				if _, err := w.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(10 * time.Second)
			}
		})
		began := time.Now()
		_, err := s.Read(make([]byte, 1))
		if !errors.Is(err, errSilent) || time.Since(began) != maxSilence {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

package filter_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"shoal/docker/filter/filtertest"
)

// hostileRequests are requests on whose framing or form two parsers might
// disagree. None may reach the engine; each is followed by a create that would
// give the host away, in case its end is seen elsewhere than meant.
var hostileRequests = map[string]string{
	"HTTP/0.9":                  "GET /_ping\r\n",
	"HTTP/1.0":                  "GET /_ping HTTP/1.0\r\n\r\n",
	"HTTP/1.2":                  "GET /_ping HTTP/1.2\r\nHost: docker\r\n\r\n",
	"HTTP/2 preface":            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"h2c upgrade":               "GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 1\r\n\r\nx",
	"no host":                   "GET /_ping HTTP/1.1\r\n\r\n",
	"two hosts":                 "GET /_ping HTTP/1.1\r\nHost: docker\r\nHost: docker\r\n\r\n",
	"foreign host":              "GET /_ping HTTP/1.1\r\nHost: evil\r\n\r\n",
	"OPTIONS *":                 "OPTIONS * HTTP/1.1\r\nHost: docker\r\n\r\n",
	"CONNECT":                   "CONNECT docker:80 HTTP/1.1\r\nHost: docker\r\n\r\n",
	"TRACE":                     "TRACE /_ping HTTP/1.1\r\nHost: docker\r\n\r\n",
	"absolute target":           "GET http://docker/_ping HTTP/1.1\r\nHost: docker\r\n\r\n",
	"fragment":                  "GET /_ping#x HTTP/1.1\r\nHost: docker\r\n\r\n",
	"backslash":                 "GET /_ping\\..\\info HTTP/1.1\r\nHost: docker\r\n\r\n",
	"NUL in the target":         "GET /_ping\x00 HTTP/1.1\r\nHost: docker\r\n\r\n",
	"tab in the target":         "GET /_ping\t HTTP/1.1\r\nHost: docker\r\n\r\n",
	"obs-text in the target":    "GET /_ping\xff HTTP/1.1\r\nHost: docker\r\n\r\n",
	"two spaces":                "GET  /_ping HTTP/1.1\r\nHost: docker\r\n\r\n",
	"lower-case method":         "get /_ping HTTP/1.1\r\nHost: docker\r\n\r\n",
	"space before the colon":    "GET /_ping HTTP/1.1\r\nHost: docker\r\nContent-Length : 9\r\n\r\n",
	"header without colon":      "GET /_ping HTTP/1.1\r\nHost: docker\r\nx\r\n\r\n",
	"header with NUL":           "GET /_ping HTTP/1.1\r\nHost: docker\r\nX: a\x00b\r\n\r\n",
	"header with bare CR":       "GET /_ping HTTP/1.1\r\nHost: docker\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n",
	"folded first header":       "GET /_ping HTTP/1.1\r\n Host: docker\r\n\r\n",
	"folded coding":             "POST /v1.41/containers/" + ourName + "/start HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
	"length with sign":          "GET /_ping HTTP/1.1\r\nHost: docker\r\nContent-Length: +1\r\n\r\nx",
	"length in hex":             "GET /_ping HTTP/1.1\r\nHost: docker\r\nContent-Length: 0x1\r\n\r\nx",
	"length with comma":         "GET /_ping HTTP/1.1\r\nHost: docker\r\nContent-Length: 1, 1\r\n\r\nx",
	"negative length":           "GET /_ping HTTP/1.1\r\nHost: docker\r\nContent-Length: -1\r\n\r\n",
	"length beyond 64 bits":     "GET /_ping HTTP/1.1\r\nHost: docker\r\nContent-Length: 18446744073709551617\r\n\r\nx",
	"two lengths":               "GET /_ping HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\nx",
	"length and coding":         "GET /_ping HTTP/1.1\r\nHost: docker\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"coding identity":           "GET /_ping HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding: identity\r\n\r\n",
	"coding twice":              "GET /_ping HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
	"coding in two headers":     "GET /_ping HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
	"coding with vertical tab":  "GET /_ping HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
	"coding with a quoted word": "GET /_ping HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
	"coding x-chunked":          "GET /_ping HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding: xchunked\r\n\r\n",
	"trailer":                   "GET /_ping HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding: chunked\r\nTrailer: Upgrade\r\n\r\n0\r\nUpgrade: tcp\r\n\r\n",
	"chunk extension":           "POST /v1.41/containers/" + ourName + "/start HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding: chunked\r\n\r\n0;x=\"\r\n\r\n\"\r\n\r\n",
	"encoded body":              "POST /v1.41/containers/" + ourName + "/start HTTP/1.1\r\nHost: docker\r\nContent-Encoding: gzip\r\n\r\n",
	"giant header":              "GET /_ping HTTP/1.1\r\nHost: docker\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
	"giant target":              "GET /" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: docker\r\n\r\n",
	"thousands of headers":      "GET /_ping HTTP/1.1\r\nHost: docker\r\n" + strings.Repeat("X: y\r\n", 8000) + "\r\n",
	"start that asks for h2c":   startWith("Connection: Upgrade\r\nUpgrade: h2c\r\n"),
	"start that asks for two":   startWith("Connection: Upgrade\r\nUpgrade: tcp, h2c\r\n"),
	"start that asks twice":     startWith("Connection: Upgrade\r\nUpgrade: tcp\r\nUpgrade: h2c\r\n"),
	"start that names more":     startWith("Connection: Upgrade, Content-Length\r\nUpgrade: tcp\r\n"),
	"start without upgrade":     startWith(""),
	"start as another method":   strings.Replace(startWith("Connection: Upgrade\r\nUpgrade: tcp\r\n"), "POST", "GET", 1),
	"upgrade at another call":   "GET /v1.41/containers/" + ourName + "/attach/ws HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
	"session upgrade":           "POST /v1.41/session HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
	"exec id in capitals":       strings.Replace(startWith("Connection: Upgrade\r\nUpgrade: tcp\r\n"), corpusExec, strings.ToUpper(corpusExec), 1),
	"exec id that is a prefix":  strings.Replace(startWith("Connection: Upgrade\r\nUpgrade: tcp\r\n"), corpusExec, corpusExec[:12], 1),
	"exec that is not known":    strings.Replace(startWith("Connection: Upgrade\r\nUpgrade: tcp\r\n"), corpusExec, foreignExec, 1),
	"closed in the header":      "GET /_ping HTTP/1.1\r\nHost: doc",
	"closed in the body":        "POST /v1.41/containers/create?name=" + ourName + " HTTP/1.1\r\nHost: docker\r\n" + length(500) + "\r\n{",
}

func startWith(headers string) string {
	const start = `{"Detach":false,"Tty":false}`
	return post("/exec/"+corpusExec+"/start", length(len(start))+headers, start)
}

// TestHostileHTTP: none of them reaches the engine, and nothing that follows on
// the same connection either; each is in the audit log, which quotes none.
func TestHostileHTTP(t *testing.T) {
	t.Parallel()
	evil := `{"Image":"shoal-sandbox:dev","HostConfig":{"Privileged":true}}`
	behind := post("/containers/create?name="+ourName, length(len(evil)), evil)
	for name, request := range hostileRequests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := newFakeEngine(t, ourOwners())
			var log filtertest.LogBuffer
			addr := startFilter(t, defaultPolicy(t), engine.dial, slog.New(slog.NewJSONHandler(&log, nil)))
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			if !strings.HasPrefix(name, "closed") {
				request += behind
			}
			go func() {
				_, _ = io.WriteString(c, request)
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			for br := bufio.NewReader(c); ; {
				resp, err := http.ReadResponse(br, nil)
				if err != nil {
					break // closed
				}
				out, _ := io.ReadAll(resp.Body)
				if resp.StatusCode < 400 {
					t.Errorf("answered with %d %s", resp.StatusCode, out)
				}
			}
			if seen := engine.recordings(); len(seen) > 0 {
				t.Errorf("the engine saw %q", seen[0].raw)
			}
			for deadline := time.Now().Add(10 * time.Second); !strings.Contains(log.String(), "docker call refused"); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the audit log does not tell: %s", log.String())
				}
			}
			if strings.Contains(log.String(), "Privileged") || strings.Contains(log.String(), "evil") {
				t.Errorf("the log quotes the request: %s", log.String())
			}
		})
	}
}

// TestOddButHarmless: what Go reads leniently is admitted only as the filter
// writes it anew.
func TestOddButHarmless(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"bare line feeds":    "GET /_ping HTTP/1.1\nHost: docker\n\n",
		"folded header":      "GET /_ping HTTP/1.1\r\nHost: docker\r\nX: a\r\n b\r\n\r\n",
		"obs-text":           "GET /_ping HTTP/1.1\r\nHost: docker\r\nX: \xff\xfe\r\n\r\n",
		"empty line before":  "\r\nGET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n",
		"same length twice":  "GET /_ping HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
		"upgrade stripped":   "GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"hop headers":        "GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: X-Y\r\nX-Y: 1\r\nTE: trailers\r\nProxy-Authorization: x\r\n\r\n",
		"forged look-up":     "GET /_ping HTTP/1.1\r\nHost: docker\r\nUser-Agent: shoal-dockerfilter\r\n\r\n",
		"registry's secrets": "GET /_ping HTTP/1.1\r\nHost: docker\r\nX-Registry-Auth: x\r\nCookie: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := newFakeEngine(t, nil)
			addr := startFilter(t, defaultPolicy(t), engine.dial, slog.New(slog.DiscardHandler))
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			_, _ = io.WriteString(c, request)
			status := (&client{c, bufio.NewReader(c)}).status("GET")
			seen := engine.recordings()
			if len(seen) == 0 && (status == 0 || status >= 400) {
				return // refused is right as well
			}
			const anew = "GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n"
			if len(seen) != 1 || string(seen[0].raw) != anew {
				t.Errorf("status %d, the engine saw %q", status, fmt.Sprint(seen))
			}
		})
	}
}

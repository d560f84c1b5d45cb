package egress_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// origin is a local server that keeps the bytes of each request as they came. It
// answers plain requests with a fixed text, or hands connections to a function.
type origin struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu       sync.Mutex // guards what follows
	response string
	hang     bool
	raw      func(*net.TCPConn) // when set, takes over each connection
	requests []seen
	conns    []net.Conn
}

// seen is one plain request as it arrived.
type seen struct {
	head string // request line and header, raw
	body string // unframed
}

func (s seen) requestLine() string {
	line, _, _ := strings.Cut(s.head, "\r\n")
	return line
}

// header returns the values of the named header in the raw head.
func (s seen) header(name string) []string {
	var values []string
	for line := range strings.SplitSeq(s.head, "\r\n") {
		if n, v, ok := strings.Cut(line, ":"); ok && strings.EqualFold(n, name) {
			values = append(values, strings.TrimSpace(v))
		}
	}
	return values
}

func newOrigin(t testing.TB, r *rig) *origin {
	t.Helper()
	o := &origin{listener: listen(t), response: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}
	r.dialer.lead(o.listener)
	o.wg.Go(o.accept)
	t.Cleanup(func() {
		_ = o.listener.Close()
		o.mu.Lock()
		for _, c := range o.conns {
			_ = c.Close()
		}
		o.mu.Unlock()
		o.wg.Wait()
	})
	return o
}

func (o *origin) accept() {
	for {
		c, err := o.listener.Accept()
		if err != nil {
			return
		}
		o.mu.Lock()
		o.conns = append(o.conns, c)
		raw := o.raw
		o.mu.Unlock()
		o.wg.Go(func() {
			defer c.Close()
			if raw != nil {
				raw(c.(*net.TCPConn))
				return
			}
			o.answer(c)
		})
	}
}

func (o *origin) answer(c net.Conn) {
	var raw bytes.Buffer
	r := bufio.NewReader(io.TeeReader(c, &raw))
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		head, _, _ := strings.Cut(raw.String(), "\r\n\r\n")
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		raw.Reset()
		o.mu.Lock()
		o.requests = append(o.requests, seen{head: head, body: string(body)})
		response, hang := o.response, o.hang
		o.mu.Unlock()
		if hang {
			_, _ = io.Copy(io.Discard, c)
			return
		}
		if _, err := io.WriteString(c, response); err != nil {
			return
		}
	}
}

func (o *origin) respond(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.response = text
}

func (o *origin) takeOver(f func(*net.TCPConn)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.raw = f
}

func (o *origin) got() []seen {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]seen(nil), o.requests...)
}

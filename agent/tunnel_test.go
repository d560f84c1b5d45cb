package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"shoal/agent"
	"shoal/sandbox"
)

// proxy serves the box's egress listener and returns its address.
func (b *box) proxy() string {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.server.ServeEgress(ctx, l) }()
	b.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	})
	return l.Addr().String()
}

// ask sends a request to a proxy and returns the status.
func ask(t *testing.T, address string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func TestEgress(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	address := b.proxy()
	var served atomic.Int32
	s := b.connect(agent.ClientConfig{Egress: func(conn net.Conn) {
		defer conn.Close()
		served.Add(1)
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"+r.Host[:5])
	}})
	h := s.Hello()
	waiting := make(chan int, 1)
	go func() { // before any claim it waits for a worker
		code, _ := ask(t, address)
		waiting <- code
	}()
	time.Sleep(50 * time.Millisecond)
	if _, err := s.Claim(t.Context(), agent.Claim{Boot: h.Boot, Epoch: 1, Tunnel: true}); err != nil {
		t.Fatal(err)
	}
	if code := <-waiting; code != 200 {
		t.Errorf("a connection that waited for a worker: %d", code)
	}
	if code, body := ask(t, address); code != 200 || body != "examp" {
		t.Errorf("%d %q", code, body)
	}
	if err := s.Tunnel(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if code, body := ask(t, address); code != 403 || !strings.Contains(body, "egress is off") {
		t.Errorf("off: %d %q", code, body)
	}
	if n := served.Load(); n != 2 {
		t.Errorf("%d connections reached the worker", n)
	}
	if err := s.Tunnel(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	if code, _ := ask(t, address); code != 503 {
		t.Errorf("without a worker: %d", code)
	}
}

func TestForward(t *testing.T) {
	t.Parallel()
	s := newBox(t).attach()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // answers after the end of the request: needs half-closing
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		body, _ := io.ReadAll(conn)
		_, _ = conn.Write(bytes.ToUpper(body))
	}()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	conn, err := s.Forward(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent := bytes.Repeat([]byte("hello "), 100_000)
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, bytes.ToUpper(sent)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	_ = conn.SetReadDeadline(time.Now())
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a read after the end")
	}
	_ = l.Close()
	_, err = s.Forward(t.Context(), port)
	if !isCode(err, sandbox.Unavailable) {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err := s.Forward(t.Context(), 0); !isCode(err, sandbox.Invalid) {
		t.Errorf("port 0: %v", err)
	}
}

// TestOpenSandboxesKnowNoProxy checks that programs of a sandbox with a network
// of its own are not sent to a proxy that would refuse them.
func TestOpenSandboxesKnowNoProxy(t *testing.T) {
	t.Parallel()
	for mode, want := range map[sandbox.EgressMode]string{
		sandbox.EgressOpen: "none\n", sandbox.EgressAllowlist: "http://" + agent.ProxyAddress + "\n", sandbox.EgressNone: "http://" + agent.ProxyAddress + "\n",
	} {
		s := newBox(t).connect(agent.ClientConfig{})
		spec := sandbox.Spec{Tenant: "t", Name: "n", Generation: "g", Egress: sandbox.Egress{Mode: mode}}
		if _, err := s.Claim(t.Context(), agent.Claim{Boot: s.Hello().Boot, Epoch: 1, Spec: &spec}); err != nil {
			t.Fatal(err)
		}
		if got := drain(t, start(t, s, shell(`echo ${https_proxy:-none}`))); got.out != want {
			t.Errorf("%s: the proxy is %q, want %q", mode, got.out, want)
		}
	}
}

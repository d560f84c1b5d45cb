package filter_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"shoal/docker/filter"
)

// TestListenUnix: the socket is its owner's and one group's, an abandoned one
// is replaced, and nothing else is.
func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := filter.ListenUnix(t.Context(), path, "")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o660 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
	if _, err := filter.ListenUnix(t.Context(), path, ""); err == nil {
		t.Error("a socket in use is taken over")
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	again, err := filter.ListenUnix(t.Context(), path, "")
	if err != nil {
		t.Errorf("an abandoned socket is not replaced: %v", err)
	} else {
		_ = again.Close()
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := filter.ListenUnix(t.Context(), file, ""); err == nil {
		t.Error("a file is replaced by a socket")
	}
	if _, err := filter.ListenUnix(t.Context(), path, "no such group"); err == nil {
		t.Error("a group that does not exist is accepted")
	}
}

// TestListenInsecure: loopback only, and only for callers that name it.
func TestListenInsecure(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "localhost:0", "192.0.2.1:0", "[::]:0", "127.0.0.1"} {
		if l, _, err := filter.ListenInsecure(t.Context(), address); err == nil {
			_ = l.Close()
			t.Errorf("%s is accepted", address)
		}
	}
	l, hosts, err := filter.ListenInsecure(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	engine := newFakeEngine(t, nil)
	serveOn(t, l, engine, hosts)
	for _, c := range []struct {
		host, header string
		want         int
	}{
		{l.Addr().String(), "", 200},
		{"docker", "", 200},
		{"rebind.example", "", 403},
		{"rebind.example:" + portOf(l), "", 403},
		{l.Addr().String(), "Origin: http://x.example\r\n", 403},
		{l.Addr().String(), "Sec-Fetch-Mode: no-cors\r\n", 403},
		{l.Addr().String(), "Referer: http://x.example/\r\n", 403},
	} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = fmt.Fprintf(conn, "GET /_ping HTTP/1.1\r\nHost: %s\r\n%s\r\n", c.host, c.header)
		if status := (&client{conn, bufio.NewReader(conn)}).status("GET"); status != c.want {
			t.Errorf("Host %s, %q: status %d, want %d", c.host, c.header, status, c.want)
		}
		_ = conn.Close()
	}
}

func portOf(l net.Listener) string {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func serveOn(t testing.TB, l net.Listener, engine *fakeEngine, hosts []string) {
	t.Helper()
	f, err := filter.New(filter.Config{Policy: defaultPolicy(t), Dial: engine.dial, Log: slog.New(slog.DiscardHandler), Hosts: hosts})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

// An authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

// issue writes a certificate for 127.0.0.1 and its key into files.
func (a *authority) issue(t testing.TB, usage x509.ExtKeyUsage) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "end"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:  []string{"*.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return writePEM(t, "CERTIFICATE", der), writePEM(t, "PRIVATE KEY", secret)
}

func writePEM(t testing.TB, kind string, der []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "pem")
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestListenTLS: TCP takes callers with a certificate of ours only, and streams
// work over it, half close included.
func TestListenTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	certFile, keyFile := ours.issue(t, x509.ExtKeyUsageServerAuth)
	l, hosts, err := filter.ListenTLS(t.Context(), "127.0.0.1:0", certFile, keyFile, writePEM(t, "CERTIFICATE", ours.cert.Raw))
	if err != nil {
		t.Fatal(err)
	}
	engine := newFakeEngine(t, ourOwners(), "", "", "", switched)
	engine.hijack = hijackCase{ClientHalfClose: true, UpstreamSends: "out"}
	serveOn(t, l, engine, hosts)
	dial := func(a *authority) (*tls.Conn, error) {
		conf := &tls.Config{RootCAs: x509.NewCertPool()}
		conf.RootCAs.AddCert(ours.cert)
		if a != nil {
			c, k := a.issue(t, x509.ExtKeyUsageClientAuth)
			pair, err := tls.LoadX509KeyPair(c, k)
			if err != nil {
				t.Fatal(err)
			}
			conf.Certificates = []tls.Certificate{pair}
		}
		return tls.Dial("tcp", l.Addr().String(), conf)
	}
	for name, a := range map[string]*authority{"no certificate": nil, "a foreign certificate": theirs} {
		c, err := dial(a)
		if err == nil { // TLS 1.3 tells the client only when it reads
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.WriteString(c, "GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
			_, err = http.ReadResponse(bufio.NewReader(c), nil)
			_ = c.Close()
		}
		if err == nil {
			t.Errorf("%s is served", name)
		}
	}
	for _, r := range []struct {
		head string
		want int
	}{
		{"Host: " + l.Addr().String(), 200},
		{"Host: 127.0.0.1", 200},
		{"Host: build.EXAMPLE.com:" + portOf(l), 200},
		{"Host: a.build.example.com", 403},
		{"Host: rebind.example:" + portOf(l), 403},
		{"Host: docker\r\nOrigin: https://x.example", 403},
		{"Host: docker\r\nsec-fetch-site: cross-site", 403},
	} {
		c, err := dial(ours)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(c, "HEAD /_ping HTTP/1.1\r\n"+r.head+"\r\n\r\n")
		if status := (&client{c, bufio.NewReader(c)}).status("HEAD"); status != r.want {
			t.Errorf("%q: status %d, want %d", r.head, status, r.want)
		}
		_ = c.Close()
	}
	passed := len(engine.recordings())
	c, err := dial(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	br := openStream(t, c)
	_, _ = io.WriteString(c, "in")
	_ = c.CloseWrite()
	if out, err := io.ReadAll(br); string(out) != "out" || err != nil {
		t.Errorf("received %q, error %v", out, err)
	}
	<-engine.streamed
	if engine.received.String() != "in" {
		t.Errorf("the engine received %q", engine.received.String())
	}
	if n := len(engine.recordings()) - passed; passed != 3 || n != 1 {
		t.Errorf("%d requests and %d streams reached the engine", passed, n)
	}
}

package e2e_test

import (
	"archive/zip"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"shoal/messaging"
	"shoal/sandbox"
)

// The names of the world. All but the last two answer.
const (
	listed   = "files.shoal.test"
	second   = "more.shoal.test"
	unlisted = "refused.shoal.test"
	inside   = "inside.shoal.test" // resolves to loopback
	onHost   = "host.shoal.test"   // resolves to an address of this machine
)

// world is the internet of a test: local servers that stand for public ones.
type world struct {
	origins origins
	ca      []byte // PEM
	tls     *httptest.Server
	hits    map[string]*atomic.Int64 // by name
	dir     string                   // what the servers serve as files
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), hits: map[string]*atomic.Int64{}}
	w.origins = origins{Names: map[string][]netip.Addr{
		inside: {netip.MustParseAddr("127.0.0.1")}, onHost: {hostAddr(t)},
	}, Dial: map[string]string{}}
	cert := w.certificate(t, listed, second, unlisted)
	w.tls = httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	w.tls.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	w.tls.StartTLS()
	t.Cleanup(w.tls.Close)
	plain := httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(plain.Close)
	for i, name := range []string{listed, second, unlisted} {
		addr := netip.AddrFrom4([4]byte{93, 184, 215, byte(10 + i)})
		w.origins.Names[name] = []netip.Addr{addr}
		w.origins.Dial[netip.AddrPortFrom(addr, 443).String()] = w.tls.Listener.Addr().String()
		w.origins.Dial[netip.AddrPortFrom(addr, 80).String()] = plain.Listener.Addr().String()
		w.hits[name] = new(atomic.Int64)
	}
	return w
}

// raw makes a tunnel to port 80 of name end at serve.
func (w *world) raw(t *testing.T, name string, serve func(*net.TCPConn)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn.(*net.TCPConn))
			}()
		}
	}()
	w.origins.Dial[netip.AddrPortFrom(w.origins.Names[name][0], 80).String()] = l.Addr().String()
}

func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	if n := w.hits[r.Host]; n != nil {
		n.Add(1)
	}
	switch r.URL.Path {
	case "/hello":
		fmt.Fprintf(rw, "hello from %s\n", r.Host)
	case "/big":
		n, _ := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		rw.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		_, _ = io.CopyN(rw, bigFile(), n) // the client may leave
	default:
		http.FileServer(http.Dir(w.dir)).ServeHTTP(rw, r)
	}
}

// bigFile returns bytes without end that nothing compresses.
func bigFile() io.Reader { return mathrand.NewChaCha8([32]byte{1}) }

// hostAddr returns an address of this machine that is not loopback.
func hostAddr(t *testing.T) netip.Addr {
	t.Helper()
	for _, a := range hostAddrs(t) {
		if !a.IsLoopback() && a.Is4() {
			return a
		}
	}
	t.Fatal("this machine has no address but loopback")
	return netip.Addr{}
}

func hostAddrs(t *testing.T) []netip.Addr {
	t.Helper()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var addrs []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok && !addr.IsLinkLocalUnicast() {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	return addrs
}

// certificate makes an authority and a certificate of it for names.
func (w *world) certificate(t *testing.T, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(c, parent *x509.Certificate) []byte {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "shoal test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, SubjectKeyId: []byte{1},
	}
	w.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: sign(ca, ca)})
	leaf := sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, AuthorityKeyId: []byte{1},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca)
	return tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: key}
}

// trust gives a sandbox the world's authority and returns the variables by
// which programs find it.
func (w *world) trust(t *testing.T, f *fleet, box messaging.Target) map[string]string {
	t.Helper()
	const path = "/workspace/ca.pem"
	_, err := f.client.WriteFile(t.Context(), messaging.PathTarget{Target: box, Path: path}, w.ca, sandbox.WriteOptions{Size: int64(len(w.ca))})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"CURL_CA_BUNDLE": path, "SSL_CERT_FILE": path, "PIP_CERT": path, "GIT_SSL_CAINFO": path,
		"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1", "GIT_TERMINAL_PROMPT": "0",
	}
}

// addPackage puts a wheel and its index page below /simple.
func (w *world) addPackage(t *testing.T, name string) {
	t.Helper()
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	info := name + "-1.0.dist-info/"
	files := []struct{ name, text string }{
		{name + ".py", "answer = 42\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	}
	var record bytes.Buffer
	for _, f := range files {
		add(t, z, f.name, f.text)
		sum := sha256.Sum256([]byte(f.text))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.text))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	add(t, z, info+"RECORD", record.String())
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	file := name + "-1.0-py3-none-any.whl"
	sum := sha256.Sum256(wheel.Bytes())
	w.put(t, "simple/"+name+"/"+file, wheel.Bytes())
	w.put(t, "simple/"+name+"/index.html", fmt.Appendf(nil, `<!DOCTYPE html><html><body><a href="%s#sha256=%s">%s</a></body></html>`, file, hex.EncodeToString(sum[:]), file))
}

func add(t *testing.T, z *zip.Writer, name, text string) {
	t.Helper()
	f, err := z.Create(name)
	if err == nil {
		_, err = io.WriteString(f, text)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) put(t *testing.T, name string, data []byte) {
	t.Helper()
	path := filepath.Join(w.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// addRepository puts a Git repository below /repo.git, to be cloned as plain files.
func (w *world) addRepository(t *testing.T) {
	t.Helper()
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "README"), []byte("cloned\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"-C", work, "init", "-q"},
		{"-C", work, "add", "."},
		{"-C", work, "-c", "user.name=test", "-c", "user.email=test@shoal.test", "commit", "-qm", "one"},
		{"clone", "-q", "--bare", work, filepath.Join(w.dir, "repo.git")},
		{"-C", filepath.Join(w.dir, "repo.git"), "update-server-info"},
	} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
}

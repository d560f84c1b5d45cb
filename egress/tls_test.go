package egress_test

import (
	"bufio"
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"shoal/egress"
)

// site is a TLS server with a certificate for some names, behind a rig. It echoes,
// and names the server name that its client asked for, in the way a shared front
// serves many customers at one address.
type site struct {
	roots  *x509.CertPool
	config *tls.Config
}

func newSite(t testing.TB, o *origin, names ...string) *site {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{
		roots:  x509.NewCertPool(),
		config: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
	}
	s.roots.AddCert(leaf)
	o.takeOver(s.serve)
	return s
}

func (s *site) serve(c *net.TCPConn) {
	server := tls.Server(c, s.config)
	defer server.Close()
	if server.Handshake() != nil {
		return
	}
	fmt.Fprintf(server, "serving %s\n", server.ConnectionState().ServerName)
	_, _ = io.Copy(server, server)
}

// tunnelTo asks the proxy for a tunnel and wants it.
func tunnelTo(t testing.TB, r *rig, authority string) *net.TCPConn {
	t.Helper()
	c := r.connect(t)
	if status := connect(t, c, authority); status != http.StatusOK {
		t.Fatalf("CONNECT %s: %d", authority, status)
	}
	return c
}

// connect sends a CONNECT and returns the status, leaving the rest unread.
func connect(t testing.TB, c net.Conn, authority string) int {
	t.Helper()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReaderSize(oneByte{c}, 16), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return 0
	}
	_ = c.SetReadDeadline(time.Time{})
	return resp.StatusCode
}

// oneByte keeps a buffered reader from taking what comes after the header.
type oneByte struct{ io.Reader }

func (o oneByte) Read(b []byte) (int, error) { return o.Reader.Read(b[:1]) }

// handshake speaks TLS and returns what the site says first.
func handshake(t testing.TB, c net.Conn, cfg *tls.Config) (string, error) {
	t.Helper()
	client := tls.Client(c, cfg)
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := client.HandshakeContext(ctx); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(client).ReadString('\n')
	return strings.TrimSpace(line), err
}

func tlsRig(t *testing.T, options egress.PolicyOptions) (*rig, *origin) {
	t.Helper()
	r := newRig(t, rigConfig{
		hosts:   []string{"shop.example.com"},
		options: options,
		names:   map[string][]string{"shop.example.com": {"93.184.216.34"}},
	})
	return r, newOrigin(t, r)
}

// EG-07: domain fronting. A tunnel to a listed host carries TLS for that host only.
func TestEG07ServerName(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, sni string
		rule      egress.Rule // empty: allowed
	}{
		{"the CONNECT host", "shop.example.com", ""},
		{"the CONNECT host in capitals", "SHOP.example.COM", ""},
		{"another customer of the front", "evil.example.org", egress.RuleSNI},
		{"a name below the host", "a.shop.example.com", egress.RuleSNI},
		{"a name above the host", "example.com", egress.RuleSNI},
		{"none", "", egress.RuleSNI},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, o := tlsRig(t, egress.PolicyOptions{})
			s := newSite(t, o, "shop.example.com", "evil.example.org", "example.com", "a.shop.example.com")
			c := tunnelTo(t, r, "shop.example.com:443")
			said, err := handshake(t, c, &tls.Config{ServerName: tc.sni, RootCAs: s.roots, InsecureSkipVerify: tc.sni == ""})
			d := r.decision(t, 1)
			if tc.rule == "" {
				if err != nil || d.Verdict != egress.Allowed || said != "serving "+strings.ToLower(tc.sni) && said != "serving "+tc.sni {
					t.Fatalf("said %q, err %v, decision %+v", said, err, d)
				}
				return
			}
			if err == nil || d.Verdict != egress.Denied || d.Rule != string(tc.rule) {
				t.Fatalf("said %q, err %v, decision %+v", said, err, d)
			}
			if !strings.Contains(err.Error(), "unrecognized name") {
				t.Errorf("the client does not hear why: %v", err)
			}
		})
	}
}

// EG-07: with encrypted client hello the front serves the inner name, whatever the
// outer one says. The exempt run shows that the attack is real.
func TestEG07EncryptedClientHello(t *testing.T) {
	t.Parallel()
	for _, exempt := range []bool{true, false} {
		t.Run(fmt.Sprintf("exempt %t", exempt), func(t *testing.T) {
			t.Parallel()
			var options egress.PolicyOptions
			if exempt {
				options.SNIExempt = []string{"shop.example.com"}
			}
			r, o := tlsRig(t, options)
			s := newSite(t, o, "shop.example.com", "evil.example.org")
			list, key := echConfig(t, "shop.example.com")
			s.config.EncryptedClientHelloKeys = []tls.EncryptedClientHelloKey{key}
			c := tunnelTo(t, r, "shop.example.com:443")
			said, err := handshake(t, c, &tls.Config{
				ServerName: "evil.example.org", RootCAs: s.roots,
				MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: list,
			})
			d := r.decision(t, 1)
			if exempt {
				if err != nil || said != "serving evil.example.org" {
					t.Fatalf("the attack does not work, so this test shows nothing: %q, %v", said, err)
				}
				return
			}
			if err == nil || d.Rule != string(egress.RuleECH) {
				t.Fatalf("said %q, err %v, decision %+v", said, err, d)
			}
		})
	}
}

// echConfig builds an ECHConfigList (RFC 9849 4) with a fresh X25519 key.
func echConfig(t *testing.T, publicName string) ([]byte, tls.EncryptedClientHelloKey) {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pub := key.PublicKey().Bytes()
	contents := []byte{7, 0, 0x20} // config id, DHKEM(X25519, HKDF-SHA256)
	contents = binary.BigEndian.AppendUint16(contents, uint16(len(pub)))
	contents = append(contents, pub...)
	contents = append(contents, 0, 4, 0, 1, 0, 1, 64) // HKDF-SHA256, AES-128-GCM; longest name
	contents = append(contents, byte(len(publicName)))
	contents = append(append(contents, publicName...), 0, 0)
	config := []byte{0xfe, 0x0d}
	config = binary.BigEndian.AppendUint16(config, uint16(len(contents)))
	config = append(config, contents...)
	list := binary.BigEndian.AppendUint16(nil, uint16(len(config)))
	return append(list, config...), tls.EncryptedClientHelloKey{Config: config, PrivateKey: key.Bytes()}
}

// A ClientHello in many records and many segments is understood, and arrives as it
// was sent: the handshake completes.
func TestHelloInFragments(t *testing.T) {
	t.Parallel()
	r, o := tlsRig(t, egress.PolicyOptions{})
	s := newSite(t, o, "shop.example.com")
	c := tunnelTo(t, r, "shop.example.com:443")
	said, err := handshake(t, &fragmenter{Conn: c}, &tls.Config{ServerName: "shop.example.com", RootCAs: s.roots})
	if err != nil || said != "serving shop.example.com" {
		t.Fatalf("said %q, err %v", said, err)
	}
}

// fragmenter splits the first record written into records of 40 bytes.
type fragmenter struct {
	net.Conn
	done bool
}

func (f *fragmenter) Write(b []byte) (int, error) {
	if f.done {
		return f.Conn.Write(b)
	}
	f.done = true
	for body := b[5:]; len(body) > 0; {
		n := min(40, len(body))
		record := append([]byte{b[0], b[1], b[2], 0, byte(n)}, body[:n]...)
		if _, err := f.Conn.Write(record); err != nil {
			return 0, err
		}
		body = body[n:]
		time.Sleep(time.Millisecond)
	}
	return len(b), nil
}

// A server that asks for another key share (HelloRetryRequest) works through the
// proxy.
func TestHelloRetry(t *testing.T) {
	t.Parallel()
	r, o := tlsRig(t, egress.PolicyOptions{})
	s := newSite(t, o, "shop.example.com")
	s.config.CurvePreferences = []tls.CurveID{tls.CurveP384}
	c := tunnelTo(t, r, "shop.example.com:443")
	said, err := handshake(t, c, &tls.Config{
		ServerName: "shop.example.com", RootCAs: s.roots, MinVersion: tls.VersionTLS13,
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384},
	})
	if err != nil || said != "serving shop.example.com" {
		t.Fatalf("said %q, err %v", said, err)
	}
}

// EG-08: raw bytes in a tunnel to 443 never reach the host.
func TestEG08RawBytesInATunnel(t *testing.T) {
	t.Parallel()
	for name, bytes := range map[string]string{
		"an SSH banner":              "SSH-2.0-OpenSSH_9.9\r\n",
		"a plain request":            "GET / HTTP/1.1\r\nHost: shop.example.com\r\n\r\n",
		"a TLS record that is none":  "\x16\x03\x01\x00\x04\x01\x00\x00\x00",
		"an SSLv2 hello":             "\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10",
		"an endless handshake":       "\x16\x03\x01\x40\x00\x01\xff\xff\xff" + strings.Repeat("a", 40_000),
		"empty records without end":  strings.Repeat("\x16\x03\x01\x00\x00", 100),
		"an alert before everything": "\x15\x03\x03\x00\x02\x02\x28",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, o := tlsRig(t, egress.PolicyOptions{})
			end := newTunnelEnd(nil)
			o.takeOver(end.serve)
			c := tunnelTo(t, r, "shop.example.com:443")
			r.serving.Go(func() { _, _ = io.WriteString(c, bytes) })
			_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
			answer, _ := io.ReadAll(c)
			<-end.over
			if got := end.received(); got != "" {
				t.Errorf("%d bytes reached the host", len(got))
			}
			if d := r.decision(t, 1); d.Verdict != egress.Denied || d.Rule != string(egress.RuleNotTLS) {
				t.Errorf("decision %+v, answer %q", d, answer)
			}
		})
	}
}

// A client that stalls inside its ClientHello is cut off by HeaderTimeout.
func TestHelloTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{
		egress: egress.Config{HeaderTimeout: 200 * time.Millisecond},
		hosts:  []string{"shop.example.com"},
		names:  map[string][]string{"shop.example.com": {"93.184.216.34"}},
	})
	end := newTunnelEnd(nil)
	newOrigin(t, r).takeOver(end.serve)
	c := tunnelTo(t, r, "shop.example.com:443")
	_, _ = io.WriteString(c, "\x16\x03\x01\x02\x00\x01\x00")
	_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Fatalf("read %q, %v", b, err)
	}
	if d := r.decision(t, 1); d.Rule != string(egress.RuleNotTLS) {
		t.Fatalf("decision %+v", d)
	}
}

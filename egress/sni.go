package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"time"
)

// maxHello bounds the bytes read in search of a ClientHello. Real ones, with
// post-quantum key shares, are below 4 KiB.
const maxHello = 32 << 10

// alertUnrecognizedName is a fatal TLS alert (RFC 8446 6.2), so that a client says
// something better than "connection reset".
var alertUnrecognizedName = []byte{21, 3, 3, 0, 2, 2, 112}

// Extensions that hide the server name: ESNI, and ECH from its drafts to RFC 9849.
const (
	extESNI     = 0xffce
	extECHFirst = 0xfe08
	extECH      = 0xfe0d
)

var errHelloSeen = errors.New("the ClientHello is complete")

// judgeHello reads a ClientHello, over as many records and reads as it takes,
// and returns the bytes read. The rule is empty when its server name is host, or
// when from ends before its first byte.
func judgeHello(ctx context.Context, from io.Reader, host string) ([]byte, Rule) {
	rec := &recorder{from: io.LimitReader(from, maxHello)}
	var seen *tls.ClientHelloInfo
	// crypto/tls parses strictly (no second name, no repeated extension, bounded
	// fragments). The handshake ends at once, and never writes to anybody.
	server := tls.Server(rec, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			seen = h
			return nil, errHelloSeen
		},
	})
	err := server.HandshakeContext(ctx)
	var name string
	if seen != nil {
		name, _ = normalName(seen.ServerName)
	}
	switch {
	case rec.seen.Len() == 0 && errors.Is(err, io.EOF):
		return nil, ""
	case seen == nil || !errors.Is(err, errHelloSeen):
		return nil, RuleNotTLS
	case slices.ContainsFunc(seen.Extensions, hidesName):
		return nil, RuleECH
	case name != host:
		return nil, RuleSNI
	}
	return rec.seen.Bytes(), ""
}

func hidesName(ext uint16) bool {
	return ext == extESNI || extECHFirst <= ext && ext <= extECH
}

// recorder is the read half of a connection that keeps what was read.
type recorder struct {
	from io.Reader
	seen bytes.Buffer
}

// Read implements net.Conn.
func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	r.seen.Write(b[:n])
	return n, err
}

// Write implements net.Conn; what the handshake would say goes nowhere.
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }

// Close implements net.Conn.
func (r *recorder) Close() error { return nil }

// LocalAddr implements net.Conn.
func (r *recorder) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr implements net.Conn.
func (r *recorder) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SetDeadline implements net.Conn; the caller bounds the reads.
func (r *recorder) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (r *recorder) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

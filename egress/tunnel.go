package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

var errIdle = errors.New("no traffic for too long")

const established = "HTTP/1.1 200 Connection Established\r\n\r\n"

// buffers are for moving bytes; a pair per tunnel.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// tunnel answers a CONNECT and moves bytes until both directions have ended. It
// reports whether bytes were let through.
func (c *clientConn) tunnel(ctx context.Context, w http.ResponseWriter, upstream net.Conn, d Decision) bool {
	_, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		c.proxy.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "egress cannot take over the connection", slog.Any("error", err))
		return false
	}
	c.hijacked = true
	defer context.AfterFunc(ctx, func() { _ = c.Conn.Close() })()
	if _, err := io.WriteString(c, established); err != nil {
		return false
	}
	fromClient := unread(rw.Reader, c)
	if c.session.Policy().checksSNI(target{host: d.Host, port: d.Port, tunnel: true}) {
		hello, rule := c.readHello(ctx, fromClient, d.Host)
		if unlisted(ctx) {
			rule = RuleNowUnlisted
		}
		if rule != "" {
			d.Verdict, d.Rule = Denied, string(rule)
			c.proxy.report(c.session, d)
			return false
		}
		fromClient = io.MultiReader(bytes.NewReader(hello), fromClient)
	}
	c.proxy.report(c.session, d)
	c.pump(fromClient, upstream)
	return true
}

// unread returns a reader of what r has buffered, then of conn.
func unread(r *bufio.Reader, conn io.Reader) io.Reader {
	early, _ := r.Peek(r.Buffered()) // what is buffered can be peeked
	return io.MultiReader(bytes.NewReader(bytes.Clone(early)), conn)
}

// readHello reads and judges a ClientHello within HeaderTimeout. It returns the
// bytes read. On a refusal the client gets a TLS alert.
func (c *clientConn) readHello(ctx context.Context, from io.Reader, host string) ([]byte, Rule) {
	_ = c.SetReadDeadline(time.Now().Add(c.proxy.cfg.HeaderTimeout)) // the watchdog bounds it too
	hello, rule := judgeHello(ctx, from, host)
	_ = c.SetReadDeadline(time.Time{})
	if rule == RuleSNI || rule == RuleECH {
		if _, err := c.Write(alertUnrecognizedName); err == nil {
			linger(c)
		}
	}
	return hello, rule
}

// pump moves bytes both ways. An end is passed on; an error ends both directions.
func (c *clientConn) pump(fromClient io.Reader, upstream net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if move(upstream, fromClient) != nil || c.pass(upstream) != nil {
			c.stop(nil)
		}
	})
	if move(c, upstream) != nil || c.pass(c) != nil {
		c.stop(nil)
	}
	wg.Wait()
}

// pass tells the other side that a direction has ended, and shortens the wait for
// the other direction.
func (c *clientConn) pass(to net.Conn) error {
	c.dog.shorten(c.proxy.cfg.HalfClosedTimeout)
	cw, ok := to.(closeWriter)
	if !ok {
		return errors.ErrUnsupported
	}
	return cw.CloseWrite()
}

// move copies until from ends; nil means that it ended properly.
func move(to io.Writer, from io.Reader) error {
	buf, _ := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buf)
	// The wrappers hide ReadFrom and WriteTo, which would bring buffers of their own.
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf[:])
	return err
}

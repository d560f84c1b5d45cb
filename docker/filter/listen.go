package filter

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Dialer returns the function that opens a connection to endpoint:
// unix:///path or tcp://host:port, in the clear.
func Dialer(endpoint string) (func(context.Context) (net.Conn, error), error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	d := &net.Dialer{Timeout: dialWait}
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, network, address) }, nil
}

func splitEndpoint(endpoint string) (network, address string, err error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
	case u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/"):
		return "unix", u.Path, nil
	case u.Scheme == "tcp" && u.Port() != "" && u.Path == "":
		return "tcp", u.Host, nil
	}
	return "", "", fmt.Errorf("%q is no endpoint: use unix:///path/to/socket or tcp://host:port", endpoint)
}

// socketMode leaves a socket to its owner and one group.
const socketMode = 0o660

// ListenUnix listens on a socket that its owner and one group may use (0660).
// The group is that of this process unless named. A socket that nobody answers
// on any more is replaced; anything else in its place is an error.
func ListenUnix(ctx context.Context, path, group string) (net.Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	gid := os.Getgid()
	if group != "" {
		g, err := user.LookupGroup(group)
		if err != nil {
			return nil, fmt.Errorf("docker filter: socket group: %w", err)
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return nil, fmt.Errorf("docker filter: socket group: %w", err)
		}
	}
	// The socket must never be there with more rights, however briefly.
	old := syscall.Umask(0o177)
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("docker filter: %w", err)
	}
	if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, socketMode)); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("docker filter: rights of the socket: %w", err)
	}
	return l, nil
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("docker filter: %s is there and is no socket: remove it, or listen elsewhere", path)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if c, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
		_ = c.Close()
		return fmt.Errorf("docker filter: somebody answers on %s already", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("docker filter: remove the old socket: %w", err)
	}
	return nil
}

// ListenTLS listens on a TCP address and asks every caller for a certificate
// that one of the authorities in clientCA signed. It returns the Host headers
// that such a listener may answer: the names in its own certificate.
func ListenTLS(ctx context.Context, address, certFile, keyFile, clientCA string) (net.Listener, []string, error) {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("docker filter: certificate: %w", err)
	}
	pem, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, nil, fmt.Errorf("docker filter: client authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("docker filter: %s holds no certificate", clientCA)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("docker filter: %w", err)
	}
	return tls.NewListener(l, &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
	}), hostsOf(cert.Leaf, l), nil
}

// hostsOf are the names of a certificate as a Host header writes them.
func hostsOf(cert *x509.Certificate, l net.Listener) []string {
	hosts := slices.Clone(clientHosts)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	names := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	for _, name := range names {
		name = strings.ToLower(name)
		hosts = append(hosts, name, net.JoinHostPort(name, port))
	}
	return hosts
}

// clientHosts are what the Docker client and ours send whatever the address is.
var clientHosts = []string{"api.moby.localhost", "docker"}

// ListenInsecure listens on a loopback address in the clear, for development,
// and returns the Host headers that such a listener may answer: any other name
// was made to point here by somebody else.
func ListenInsecure(ctx context.Context, address string) (net.Listener, []string, error) {
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		return nil, nil, fmt.Errorf("docker filter: %q: insecure TCP listens on a loopback address only, such as 127.0.0.1:2375", address)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("docker filter: %w", err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return l, append([]string{l.Addr().String(), "localhost:" + port}, clientHosts...), nil
}

// A limitListener accepts a bounded number of connections at once.
type limitListener struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	once  sync.Once
}

func newLimitListener(l net.Listener, n int) *limitListener {
	return &limitListener{Listener: l, slots: make(chan struct{}, n), done: make(chan struct{})}
}

func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitConn{Conn: conn, release: func() { <-l.slots }}, nil
}

func (l *limitListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// A limitConn gives its slot back when it is closed.
type limitConn struct {
	net.Conn
	unjudged atomic.Bool // a request has begun and reached no handler yet
	release  func()
	once     sync.Once
}

func (c *limitConn) Close() error {
	c.once.Do(c.release)
	return c.Conn.Close()
}

// unwrap returns the connection below a limitConn, which can be half-closed.
func unwrap(c net.Conn) net.Conn {
	if l, ok := c.(*limitConn); ok {
		return l.Conn
	}
	return c
}

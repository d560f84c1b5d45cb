package e2btest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// Config describes a fake account.
type Config struct {
	// Backend makes the machines. Defaults to Plain{}.
	Backend Backend
	// Template is the one template that exists. Defaults to "shoal".
	Template string
	// CPU, MemoryMB and DiskMB are the template's. Default to 2, 1024, 2048.
	CPU, MemoryMB, DiskMB int
	// MaxRunning is the account's limit. Defaults to 100.
	MaxRunning int
	// MaxHours is the plan's limit of a life. Defaults to 24.
	MaxHours int
	// Newer answers the routes that only newer servers have.
	Newer bool
	// NoColdBoot refuses to connect with memory:false, as servers do by default.
	NoColdBoot bool
	// IgnoreColdBoot restores the memory all the same, as older servers do.
	IgnoreColdBoot bool
	// ForgetAutoPause kills at the end of the time although a pause was asked for.
	ForgetAutoPause bool
	// DefaultUser and Workdir are the template's. Default to "root" and "".
	DefaultUser, Workdir string
	// Env is set for every process.
	Env map[string]string
	// PageSize is the most that one page of a listing holds. Defaults to 100.
	PageSize int
}

// Key is the API key that the fake accepts.
const Key = "e2b_0123456789abcdef"

// Request is one request that the fake got, in order.
type Request struct {
	// Plane is "api" or "envd".
	Plane  string
	Method string
	Path   string
	Query  string
	Header http.Header
	// Body of api requests, and of process calls of at most 64 KiB.
	Body []byte
}

// Server is a fake account with its control plane and proxy, both on loopback.
type Server struct {
	cfg   Config
	t     testing.TB
	api   *httptest.Server
	proxy *httptest.Server

	closing chan struct{}

	mu       sync.Mutex
	boxes    map[string]*box
	faults   []*Fault
	requests []Request
}

// New starts a fake that ends with the test, together with its sandboxes.
func New(t testing.TB, cfg Config) *Server {
	t.Helper()
	s := &Server{cfg: cfg.withDefaults(), t: t, boxes: map[string]*box{}, closing: make(chan struct{})}
	s.api = httptest.NewServer(s.record("api", s.faulty(s.authenticate(s.apiRoutes()))))
	s.proxy = httptest.NewServer(s.record("envd", s.faulty(http.HandlerFunc(s.forward))))
	t.Cleanup(s.close)
	return s
}

func (c Config) withDefaults() Config {
	if c.Backend == nil {
		c.Backend = Plain{}
	}
	if c.Template == "" {
		c.Template = "shoal"
	}
	if c.CPU == 0 {
		c.CPU = 2
	}
	if c.MemoryMB == 0 {
		c.MemoryMB = 1024
	}
	if c.DiskMB == 0 {
		c.DiskMB = 2048
	}
	if c.MaxRunning == 0 {
		c.MaxRunning = 100
	}
	if c.MaxHours == 0 {
		c.MaxHours = 24
	}
	if c.PageSize == 0 {
		c.PageSize = 100
	}
	return c
}

func (s *Server) close() {
	close(s.closing)
	s.mu.Lock()
	all := make([]*box, 0, len(s.boxes))
	for _, b := range s.boxes {
		all = append(all, b)
	}
	s.mu.Unlock()
	for _, b := range all {
		b.cut()
		b.timer.Stop()
	}
	s.proxy.CloseClientConnections()
	s.proxy.Close()
	s.api.CloseClientConnections()
	s.api.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, b := range all {
		if err := b.machine.destroy(ctx); err != nil {
			s.t.Errorf("destroy the machine of %s: %v", b.id, err)
		}
	}
}

// APIURL is the control plane's address.
func (s *Server) APIURL() string { return s.api.URL }

// Domain is the proxy's address; requests to it are routed by their headers.
func (s *Server) Domain() string { return strings.TrimPrefix(s.proxy.URL, "http://") }

// maxRecorded bounds the bodies that are kept for the test.
const maxRecorded = 64 << 10

// record notes every request before anything happens to it.
func (s *Server) record(plane string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := Request{Plane: plane, Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header.Clone()}
		if r.ContentLength >= 0 && r.ContentLength <= maxRecorded {
			q.Body, _ = io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(q.Body))
		}
		s.mu.Lock()
		s.requests = append(s.requests, q)
		s.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

// Requests returns what arrived since the last call of [Server.Forget].
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Forget empties the record of requests.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// Sandbox is what the fake knows of one of its sandboxes.
type Sandbox struct {
	ID       string
	State    string // "running" or "paused"
	Metadata map[string]string
	End      time.Time
	// AutoPause, Secure and PublicTraffic are as the create asked.
	AutoPause, Secure, PublicTraffic bool
	// MemoryKept says that a paused sandbox still has its processes.
	MemoryKept bool
	// Internet, AllowOut and DenyOut are the egress in force.
	Internet          bool
	AllowOut, DenyOut []string
	Boots             int
}

// Sandboxes returns what exists, in no order.
func (s *Server) Sandboxes() []Sandbox {
	s.mu.Lock()
	all := make([]*box, 0, len(s.boxes))
	for _, b := range s.boxes {
		all = append(all, b)
	}
	s.mu.Unlock()
	out := make([]Sandbox, 0, len(all))
	for _, b := range all {
		out = append(out, b.snapshot())
	}
	return out
}

// Sandbox returns one sandbox and whether it exists.
func (s *Server) Sandbox(id string) (Sandbox, bool) {
	b := s.find(id)
	if b == nil {
		return Sandbox{}, false
	}
	return b.snapshot(), true
}

// CutStreams breaks every open connection to the daemon of id, as a restart of
// E2B's proxy does. The processes go on.
func (s *Server) CutStreams(id string) {
	if b := s.find(id); b != nil {
		b.cut()
	}
}

// Expire lets the time of id be over now: it is paused or killed, as its create
// asked, when Expire returns.
func (s *Server) Expire(id string) {
	if b := s.find(id); b != nil {
		s.expire(b)
	}
}

// Clone adds a running sandbox with the same metadata and no machine of its
// own, such as a create whose answer was lost leaves behind.
func (s *Server) Clone(id string) string {
	b := s.find(id)
	if b == nil {
		return ""
	}
	c := s.newBox(b.cfg)
	c.machine = nowhere{}
	s.add(c)
	return c.id
}

// SlowPause makes the next pauses of id take d longer.
func (s *Server) SlowPause(id string, d time.Duration) {
	if b := s.find(id); b != nil {
		b.mu.Lock()
		b.slow = d
		b.mu.Unlock()
	}
}

// ResumeAfterPause lets somebody else resume id right after each of the next n
// pauses.
func (s *Server) ResumeAfterPause(id string, n int) {
	if b := s.find(id); b != nil {
		b.mu.Lock()
		b.meddle = n
		b.mu.Unlock()
	}
}

// RemoveToken makes id look like a sandbox that was created without "secure".
func (s *Server) RemoveToken(id string) {
	if b := s.find(id); b != nil {
		b.mu.Lock()
		b.token = ""
		b.mu.Unlock()
	}
}

func (s *Server) find(id string) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxes[id]
}

func newID() string {
	return "i" + strings.ToLower(rand.Text())[:20]
}

func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// gone is the text that proves absence.
func gone(id string) string {
	return fmt.Sprintf("Sandbox %q doesn't exist or you don't have access to it", id)
}

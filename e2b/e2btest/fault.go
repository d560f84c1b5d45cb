package e2btest

import (
	"net/http"
	"strings"
	"time"
)

// Fault makes matching requests fail.
type Fault struct {
	// Match is "METHOD /path"; "*" stands for one element of the path. Process
	// calls are "POST /process.Process/Start" and the like.
	Match string
	// Times is how often it strikes; 0 means once.
	Times int
	// Delay holds the request up before anything is done.
	Delay time.Duration
	// AfterWork does the work first, then answers as told.
	AfterWork bool
	// Drop closes the connection instead of answering.
	Drop bool
	// Status and Body are the answer; 0 passes the request on.
	Status int
	Body   string
	Header map[string]string
}

// The bodies of failed answers, for [Fault.Body].
const (
	// BodyGone is the one 404 that proves absence; %s is the sandbox id.
	BodyGone = `{"code":404,"message":"Sandbox \"%s\" doesn't exist or you don't have access to it"}`
	// BodyNoRoute is a 404 of a server that does not know the route.
	BodyNoRoute = `{"code":404,"message":"validation error: no matching operation was found"}`
	// BodyNoMethod is a 404 of a server that knows the path only.
	BodyNoMethod = `{"code":404,"message":"validation error: method not allowed"}`
	// BodyProxy is what a load balancer says.
	BodyProxy = "<html><body>404 Not Found</body></html>"
	// BodyConcurrency is a 429 without Retry-After.
	BodyConcurrency = `{"code":429,"message":"you have reached the maximum number of concurrent E2B sandboxes (20). Please contact us"}`
	// BodyRate is a 429 that comes with Retry-After.
	BodyRate = `{"code":429,"message":"Rate limit exceeded"}`
	// BodyKilled is a 409 that does not pass.
	BodyKilled = `{"code":409,"message":"Sandbox is being killed"}`
	// BodyInternal is a 500.
	BodyInternal = `{"code":500,"message":"internal server error"}`
)

// Inject adds a fault. Faults strike in the order in which they were added.
func (s *Server) Inject(f Fault) {
	if f.Times == 0 {
		f.Times = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// ClearFaults forgets every fault that has not struck.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// strike takes the first fault that fits a request, if any.
func (s *Server) strike(method, path string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.Times > 0 && fits(f.Match, method+" "+path) {
			f.Times--
			return f
		}
	}
	return nil
}

// fits compares element by element.
func fits(pattern, request string) bool {
	p, r := strings.Split(pattern, "/"), strings.Split(request, "/")
	if len(p) != len(r) {
		return false
	}
	for i := range p {
		if p[i] != "*" && p[i] != r[i] {
			return false
		}
	}
	return true
}

// faulty wraps a handler with the faults.
func (s *Server) faulty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := s.strike(r.Method, r.URL.Path)
		if f == nil {
			next.ServeHTTP(w, r)
			return
		}
		select {
		case <-time.After(f.Delay):
		case <-s.closing:
			panic(http.ErrAbortHandler)
		}
		switch {
		case f.Status == 0 && !f.Drop:
			next.ServeHTTP(w, r)
			return
		case f.AfterWork:
			next.ServeHTTP(discard{header: http.Header{}}, r)
		}
		if f.Drop {
			panic(http.ErrAbortHandler)
		}
		f.answer(w)
	})
}

func (f *Fault) answer(w http.ResponseWriter) {
	if strings.HasPrefix(f.Body, "{") {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
	}
	for k, v := range f.Header {
		w.Header().Set(k, v)
	}
	w.WriteHeader(f.Status)
	_, _ = w.Write([]byte(f.Body))
}

// discard takes an answer that nobody will see.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

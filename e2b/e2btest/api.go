package e2btest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// apiRoutes are those of the open-source server 54693ff, and with Newer those
// of later ones. What is missing here answers as an unknown route.
func (s *Server) apiRoutes() http.Handler {
	routes := map[string]map[string]http.HandlerFunc{
		"/sandboxes":                {"POST": s.create(false)},
		"/v2/sandboxes":             {"GET": s.list},
		"/sandboxes/{id}":           {"GET": s.withBox(s.get), "DELETE": s.withBox(s.remove)},
		"/sandboxes/{id}/connect":   {"POST": s.withBox(s.connect)},
		"/sandboxes/{id}/pause":     {"POST": s.withBox(s.pauseRoute)},
		"/sandboxes/{id}/timeout":   {"POST": s.withBox(s.setTimeout)},
		"/sandboxes/{id}/refreshes": {"POST": s.withBox(s.refresh)},
		"/sandboxes/{id}/network":   {"PUT": s.withBox(s.setNetwork)},
	}
	if s.cfg.Newer {
		routes["/v2/sandboxes"]["POST"] = s.create(true)
		routes["/v2/sandboxes/{id}/connect"] = map[string]http.HandlerFunc{"POST": s.withBox(s.connect)}
	}
	mux := http.NewServeMux()
	for path, methods := range routes {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			h := methods[r.Method]
			if h == nil {
				fail(w, http.StatusNotFound, "validation error: method not allowed")
				return
			}
			h(w, r)
		})
	}
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("Health check successful")) })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "validation error: no matching operation was found")
	})
	return mux
}

// fail answers an error in the API's form.
func fail(w http.ResponseWriter, status int, message string, errorCode ...string) {
	body := map[string]any{"code": status, "message": message}
	if len(errorCode) > 0 {
		body["error_code"] = errorCode[0]
	}
	answer(w, status, body)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body)
}

func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("X-API-Key")
		switch {
		case r.URL.Path == "/health":
		case key == "":
			fail(w, http.StatusUnauthorized, "authorization header is missing")
			return
		case key != Key:
			fail(w, http.StatusUnauthorized, "Invalid API key, please visit the dashboard for a new one")
			return
		}
		next.ServeHTTP(w, r)
	})
}

var idPattern = regexp.MustCompile(`^[a-z0-9]+$`)

// withBox finds the sandbox that a path names.
func (s *Server) withBox(next func(http.ResponseWriter, *http.Request, *box)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, _, _ := strings.Cut(r.PathValue("id"), "-")
		if !idPattern.MatchString(id) || strings.Count(r.PathValue("id"), "-") > 1 {
			fail(w, http.StatusBadRequest, "Invalid sandbox ID")
			return
		}
		b := s.find(id)
		if b == nil {
			fail(w, http.StatusNotFound, gone(id))
			return
		}
		next(w, r, b)
	}
}

func (s *Server) create(second bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, ok := readCreate(w, r, second)
		if !ok {
			return
		}
		c.autoPause = c.autoPause && !s.cfg.ForgetAutoPause
		switch {
		case c.template != s.cfg.Template:
			fail(w, http.StatusNotFound, fmt.Sprintf("template '%s' not found", c.template))
			return
		case c.timeout > s.cfg.MaxHours*3600:
			fail(w, http.StatusBadRequest, fmt.Sprintf("Timeout cannot be greater than %d hours", s.cfg.MaxHours))
			return
		case s.full():
			s.refuseMore(w)
			return
		}
		b, err := s.make(context.WithoutCancel(r.Context()), c)
		if err != nil {
			s.t.Logf("make a sandbox: %v", err)
			fail(w, http.StatusInternalServerError, "Failed to place sandbox", "sandbox_create_failed")
			return
		}
		answer(w, http.StatusCreated, s.access(b))
	}
}

func (s *Server) full() bool {
	n := 0
	for _, b := range s.Sandboxes() {
		if b.State == running {
			n++
		}
	}
	return n >= s.cfg.MaxRunning
}

func (s *Server) refuseMore(w http.ResponseWriter) {
	fail(w, http.StatusTooManyRequests, fmt.Sprintf("you have reached the maximum number of concurrent E2B sandboxes (%d). Please contact us", s.cfg.MaxRunning))
}

// access is the answer of create and connect.
func (s *Server) access(b *box) map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]any{
		"templateID": s.cfg.Template, "sandboxID": b.id, "clientID": "00000000", "envdVersion": "0.6.13", "domain": nil,
	}
	if b.token != "" {
		out["envdAccessToken"] = b.token
	}
	return out
}

func (s *Server) describe(b *box) map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	return map[string]any{
		"templateID": s.cfg.Template, "sandboxID": b.id, "clientID": "00000000", "envdVersion": "0.6.13",
		"startedAt": b.started.UTC().Format(time.RFC3339Nano), "endAt": b.end.UTC().Format(time.RFC3339Nano),
		"cpuCount": s.cfg.CPU, "memoryMB": s.cfg.MemoryMB, "diskSizeMB": s.cfg.DiskMB,
		"state": shown(b.state), "metadata": b.cfg.metadata,
	}
}

func (s *Server) get(w http.ResponseWriter, _ *http.Request, b *box) {
	if b.now() == killing {
		fail(w, http.StatusNotFound, gone(b.id))
		return
	}
	out := s.describe(b)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.token != "" {
		out["envdAccessToken"] = b.token
	}
	out["domain"] = nil
	out["allowInternetAccess"] = b.network.internet
	onTimeout := "kill"
	if b.cfg.autoPause {
		onTimeout = "pause"
	}
	out["lifecycle"] = map[string]any{"autoResume": b.cfg.autoResume, "onTimeout": onTimeout}
	answer(w, http.StatusOK, out)
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request, b *box) {
	b.turn.Lock()
	defer b.turn.Unlock()
	if s.find(b.id) == nil {
		fail(w, http.StatusNotFound, gone(b.id))
		return
	}
	if err := s.kill(context.WithoutCancel(r.Context()), b); err != nil {
		fail(w, http.StatusInternalServerError, "Error killing sandbox")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) connect(w http.ResponseWriter, r *http.Request, b *box) {
	second := strings.HasPrefix(r.URL.Path, "/v2/")
	body, ok := readBody(w, r, schema{"timeout": typeInt, "memory": typeBool}, !second)
	if !ok {
		return
	}
	life, ok := s.readLife(w, body, second)
	if !ok {
		return
	}
	if b.now() == killing {
		fail(w, http.StatusConflict, fmt.Sprintf("Sandbox %q is being killed", b.id))
		return
	}
	b.turn.Lock() // a transition in progress is waited for, another start joined
	defer b.turn.Unlock()
	switch b.now() {
	case killing:
		fail(w, http.StatusNotFound, gone(b.id))
	case running:
		s.connectRunning(w, b, life)
	default:
		s.connectPaused(w, r, b, life, body.falsy("memory"))
	}
}

func (s *Server) readLife(w http.ResponseWriter, body fields, optional bool) (time.Duration, bool) {
	seconds, given := body.integer("timeout")
	switch {
	case !given && optional:
		seconds = 300
	case !given:
		missing(w, "timeout")
		return 0, false
	case seconds > s.cfg.MaxHours*3600:
		fail(w, http.StatusBadRequest, fmt.Sprintf("Timeout cannot be greater than %d hours", s.cfg.MaxHours))
		return 0, false
	}
	return time.Duration(seconds) * time.Second, true
}

func (s *Server) connectRunning(w http.ResponseWriter, b *box, life time.Duration) {
	b.mu.Lock()
	overdue := time.Since(b.started) > time.Duration(s.cfg.MaxHours)*time.Hour
	b.mu.Unlock()
	if overdue {
		fail(w, http.StatusBadRequest, "Max instance length exceeded")
		return
	}
	b.extend(life, s.cfg.MaxHours)
	answer(w, http.StatusOK, s.access(b))
}

func (s *Server) connectPaused(w http.ResponseWriter, r *http.Request, b *box, life time.Duration, cold bool) {
	if s.full() {
		s.refuseMore(w)
		return
	}
	if cold && b.memory {
		if s.cfg.NoColdBoot {
			fail(w, http.StatusBadRequest, "memory override is disabled", "sandbox_memory_override_disabled")
			return
		}
		cold = !s.cfg.IgnoreColdBoot
	}
	if err := b.resume(context.WithoutCancel(r.Context()), life, cold); err != nil {
		s.t.Logf("resume %s: %v", b.id, err)
		fail(w, http.StatusInternalServerError, "Error resuming sandbox")
		return
	}
	answer(w, http.StatusCreated, s.access(b))
}

func (s *Server) pauseRoute(w http.ResponseWriter, r *http.Request, b *box) {
	body, ok := readBody(w, r, schema{"memory": typeBool}, false)
	if !ok {
		return
	}
	joined := b.now() == pausing
	b.turn.Lock()
	defer b.turn.Unlock()
	switch state := b.now(); {
	case state == paused && joined:
		w.WriteHeader(http.StatusNoContent)
	case state == paused:
		fail(w, http.StatusConflict, fmt.Sprintf("Error pausing sandbox - sandbox '%s' is already paused", b.id))
	case state != running:
		fail(w, http.StatusNotFound, gone(b.id))
	default:
		ctx := context.WithoutCancel(r.Context())
		if err := errors.Join(b.pause(ctx, !body.falsy("memory")), b.meddled(ctx)); err != nil {
			s.t.Logf("pause %s: %v", b.id, err)
			fail(w, http.StatusInternalServerError, "Error pausing sandbox")
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *Server) setTimeout(w http.ResponseWriter, r *http.Request, b *box) {
	body, ok := readBody(w, r, schema{"timeout": typeInt}, true)
	if !ok {
		return
	}
	life, ok := s.readLife(w, body, false)
	if !ok || !runningOnly(w, b) {
		return
	}
	b.mu.Lock()
	b.end = time.Now().Add(life)
	b.timer.Reset(life)
	b.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) refresh(w http.ResponseWriter, r *http.Request, b *box) {
	body, ok := readBody(w, r, schema{"duration": typeInt}, false)
	if !ok {
		return
	}
	seconds, _ := body.integer("duration")
	if seconds > 3600 {
		invalid(w, "duration", "number must be at most 3600")
		return
	}
	if !runningOnly(w, b) {
		return
	}
	b.extend(time.Duration(max(seconds, 15))*time.Second, s.cfg.MaxHours)
	w.WriteHeader(http.StatusNoContent)
}

// runningOnly refuses what only a running sandbox takes.
func runningOnly(w http.ResponseWriter, b *box) bool {
	switch state := b.now(); state {
	case running:
		return true
	case paused:
		fail(w, http.StatusNotFound, gone(b.id))
	default:
		fail(w, http.StatusConflict, fmt.Sprintf("Sandbox '%s' is in '%s' state", b.id, state))
	}
	return false
}

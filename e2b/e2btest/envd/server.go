package envd

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// Config is what the control plane tells the daemon of a new sandbox.
type Config struct {
	// Token is the access token; empty means an insecure sandbox.
	Token string `json:"token"`
	// DefaultUser runs what names no user. Defaults to "root".
	DefaultUser string `json:"defaultUser"`
	// Workdir is where commands start that name no directory; empty is the
	// user's home.
	Workdir string `json:"workdir"`
	// Env is set for every process.
	Env map[string]string `json:"env"`
	// AnyUser runs every process as the user of this program and takes "root"
	// and "sandbox" for known users. For tests without containers.
	AnyUser bool `json:"anyUser"`
}

// Server is one daemon. It is an [http.Handler], safe for concurrent use.
type Server struct {
	cfg     Config
	mux     *http.ServeMux
	crashed atomic.Bool
	ctx     context.Context // the life of the daemon's processes, which outlive requests
	stop    context.CancelFunc

	mu       sync.Mutex
	procs    map[int]*proc
	launched int
	metadata map[string]map[string]string // of uploaded files, by path
}

// New makes a daemon that serves until [Server.Close].
func New(cfg Config) *Server {
	if cfg.DefaultUser == "" {
		cfg.DefaultUser = "root"
	}
	s := &Server{cfg: cfg, procs: map[int]*proc{}, metadata: map[string]map[string]string{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.mux = s.routes()
	return s
}

// Close kills every process that the daemon started, as the end of the machine
// does, and waits for the direct ones.
func (s *Server) Close() {
	s.stop()
	s.mu.Lock()
	all := make([]*proc, 0, len(s.procs))
	for _, p := range s.procs {
		all = append(all, p)
	}
	s.mu.Unlock()
	for _, p := range all {
		p.signal(os.Kill)
		<-p.done
	}
}

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /envs", s.envs)
	mux.HandleFunc("GET /files", s.download)
	mux.HandleFunc("POST /files", s.upload)
	mux.HandleFunc("POST /files/compose", s.compose)
	for service, methods := range map[string]map[string]unaryMethod{
		"process.Process": {
			"List": s.list, "SendInput": s.sendInput, "CloseStdin": s.closeStdin,
			"SendSignal": s.sendSignal, "Update": s.update,
		},
		"filesystem.Filesystem": {
			"Stat": s.stat, "ListDir": s.listDir, "MakeDir": s.makeDir, "Move": s.moveFile, "Remove": s.removeFile,
		},
	} {
		for name, m := range methods {
			mux.HandleFunc("/"+service+"/"+name, s.unary(name, m))
		}
	}
	mux.HandleFunc("/process.Process/Start", s.stream(s.start))
	mux.HandleFunc("/process.Process/Connect", s.stream(s.connect))
	mux.HandleFunc("/process.Process/StreamInput", s.stream(s.streamInput))
	return mux
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.crashed.Load() {
		panic(http.ErrAbortHandler) // the connection drops, as when nobody listens
	}
	w.Header().Set("Vary", "Origin")
	if !s.authorized(r) {
		plainError(w, http.StatusUnauthorized, "unauthorized access, please provide a valid access token or method signing if supported")
		return
	}
	s.mux.ServeHTTP(w, r)
}

// authorized applies the token check that stands before every route but the
// exempt ones.
func (s *Server) authorized(r *http.Request) bool {
	switch {
	case s.cfg.Token == "", r.URL.Path == "/health", r.URL.Path == "/files":
		return true
	default:
		return r.Header.Get("X-Access-Token") == s.cfg.Token
	}
}

// plainError is the error of everything that is not Connect: an integer code.
func plainError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(map[string]any{"code": status, "message": message})
	_, _ = w.Write([]byte(b.String()))
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "")
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) envs(w http.ResponseWriter, _ *http.Request) {
	data, _ := json.Marshal(s.globalEnv())
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(data, '\n'))
}

func (s *Server) globalEnv() map[string]string {
	env := map[string]string{"E2B_SANDBOX": "true"}
	maps.Copy(env, s.cfg.Env)
	return env
}

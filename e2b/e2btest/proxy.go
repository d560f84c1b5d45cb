package e2btest

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
)

// forward is the proxy before every sandbox: it routes by the two headers, as
// the real one does where the host is an address.
func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	id, port := r.Header.Get("E2b-Sandbox-Id"), r.Header.Get("E2b-Sandbox-Port")
	switch {
	case id == "" || port == "":
		http.Error(w, "missing header", http.StatusBadRequest)
		return
	case !idPattern.MatchString(id):
		http.Error(w, "Invalid sandbox ID", http.StatusBadRequest)
		return
	case slices.Contains([]string{"/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"}, r.URL.Path):
		proxyError(w, http.StatusNotFound, map[string]any{"message": "not found", "path": r.URL.Path})
		return
	}
	b := s.find(id)
	if b == nil || b.now() != running {
		proxyError(w, http.StatusBadGateway, map[string]any{"sandboxId": id, "message": "The sandbox was not found"})
		return
	}
	if port != "49983" {
		proxyError(w, http.StatusBadGateway, map[string]any{"sandboxId": id, "message": "The sandbox is running but port is not open", "port": port})
		return
	}
	s.pass(w, r, b)
}

func proxyError(w http.ResponseWriter, status int, body map[string]any) {
	body["code"] = status
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// pass carries one request to the daemon until it is done or the sandbox's
// connections are cut.
func (s *Server) pass(w http.ResponseWriter, r *http.Request, b *box) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stop := context.AfterFunc(b.lifetime(), cancel)
	defer stop()
	broken := false
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: "envd"})
			p.Out.Header["User-Agent"] = p.In.Header["User-Agent"]
		},
		Transport:     b.proxied,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			broken = true
		},
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
	if broken {
		panic(http.ErrAbortHandler)
	}
}

package e2btest

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// list answers one page, newest first.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	want, ok := readMetadata(w, q.Get("metadata"))
	if !ok {
		return
	}
	states, ok := readStates(w, q.Get("state"))
	if !ok {
		return
	}
	limit := 100
	if q.Has("limit") {
		n, err := strconv.Atoi(q.Get("limit"))
		if err != nil || n < 1 || n > 100 {
			fail(w, http.StatusBadRequest, "validation error: parameter \"limit\" in query has an error: number must be within 1 and 100")
			return
		}
		limit = n
	}
	s.page(w, s.selected(want, states), min(limit, s.cfg.PageSize), q.Get("nextToken"))
}

// readMetadata undoes two of the three levels; the query undid the first.
func readMetadata(w http.ResponseWriter, text string) (map[string]string, bool) {
	inner, err := url.QueryUnescape(text)
	want := map[string]string{}
	for pair := range strings.SplitSeq(inner, "&") {
		if inner == "" {
			break
		}
		parts := strings.Split(pair, "=")
		if err != nil || len(parts) != 2 {
			fail(w, http.StatusBadRequest, "Error parsing metadata")
			return nil, false
		}
		k, keyErr := url.QueryUnescape(parts[0])
		v, valueErr := url.QueryUnescape(parts[1])
		if keyErr != nil || valueErr != nil {
			fail(w, http.StatusBadRequest, "Error parsing metadata")
			return nil, false
		}
		want[k] = v
	}
	return want, true
}

func readStates(w http.ResponseWriter, text string) ([]string, bool) {
	if text == "" {
		return []string{running, paused}, true
	}
	states := strings.Split(text, ",")
	for _, state := range states {
		if state != running && state != paused {
			fail(w, http.StatusBadRequest, "validation error: parameter \"state\" in query has an error: value is not one of the allowed values")
			return nil, false
		}
	}
	return states, true
}

func (s *Server) selected(want map[string]string, states []string) []*box {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*box
	for _, b := range s.boxes {
		if !slices.Contains(states, shown(b.now())) {
			continue
		}
		fitting := true
		for k, v := range want {
			fitting = fitting && b.cfg.metadata[k] == v
		}
		if fitting {
			found = append(found, b)
		}
	}
	slices.SortFunc(found, func(a, b *box) int {
		return cmp.Or(b.began().Compare(a.began()), cmp.Compare(a.id, b.id))
	})
	return found
}

func (b *box) began() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.started
}

// page writes the part after token and names the next one.
func (s *Server) page(w http.ResponseWriter, all []*box, limit int, token string) {
	if token != "" {
		data, err := base64.URLEncoding.DecodeString(token)
		at := slices.IndexFunc(all, func(b *box) bool { return b.id == string(data) })
		if err != nil || at < 0 {
			fail(w, http.StatusBadRequest, "Invalid next token")
			return
		}
		all = all[at+1:]
	}
	if len(all) > limit {
		all = all[:limit]
		w.Header().Set("X-Next-Token", base64.URLEncoding.EncodeToString([]byte(all[limit-1].id)))
	}
	out := make([]map[string]any, 0, len(all))
	for _, b := range all {
		out = append(out, s.describe(b))
	}
	answer(w, http.StatusOK, out)
}

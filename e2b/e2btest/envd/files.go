package envd

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// fileAccess checks the header token or the signature of a file request.
func (s *Server) fileAccess(r *http.Request, operation string) error {
	if s.cfg.Token == "" {
		return nil
	}
	if token := r.Header.Get("X-Access-Token"); token != "" {
		if token != s.cfg.Token {
			return errors.New("access token present in header but does not match")
		}
		return nil
	}
	q := r.URL.Query()
	given, expires := q.Get("signature"), q.Get("signature_expiration")
	if given == "" {
		return errors.New("missing signature query parameter")
	}
	text := q.Get("path") + ":" + operation + ":" + q.Get("username") + ":" + s.cfg.Token
	if expires != "" {
		text += ":" + expires
	}
	sum := sha256.Sum256([]byte(text))
	if given != "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]) {
		return errors.New("invalid signature")
	}
	if at, err := strconv.ParseInt(expires, 10, 64); expires != "" && (err != nil || at < time.Now().Unix()) {
		return errors.New("signature is already expired")
	}
	return nil
}

// target finds the file that a request speaks of. It answers failures itself.
func (s *Server) target(w http.ResponseWriter, r *http.Request, operation string) (string, account, bool) {
	if err := s.fileAccess(r, operation); err != nil {
		plainError(w, http.StatusUnauthorized, err.Error())
		return "", account{}, false
	}
	name := r.URL.Query().Get("username")
	if !r.URL.Query().Has("username") {
		name = s.cfg.DefaultUser
	}
	a, err := s.lookup(name)
	if err != nil {
		plainError(w, http.StatusUnauthorized, fmt.Sprintf("error looking up user '%s': %v", name, err))
		return "", account{}, false
	}
	path, err := s.resolve(r.URL.Query().Get("path"), a)
	if err != nil {
		plainError(w, http.StatusBadRequest, fmt.Sprintf("error resolving path: %v", err))
		return "", account{}, false
	}
	return path, a, true
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	path, _, ok := s.target(w, r, "read")
	if !ok {
		return
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		plainError(w, http.StatusNotFound, fmt.Sprintf("path '%s' does not exist", path))
		return
	case err != nil:
		plainError(w, http.StatusInternalServerError, fmt.Sprintf("error checking if path exists '%s': %v", path, err))
		return
	case info.IsDir():
		plainError(w, http.StatusBadRequest, fmt.Sprintf("path '%s' is a directory", path))
		return
	}
	zipped, err := wantsGzip(r.Header.Get("Accept-Encoding"))
	if err != nil {
		plainError(w, http.StatusNotAcceptable, fmt.Sprintf("error parsing Accept-Encoding: %v", err))
		return
	}
	f, err := os.Open(path) // the daemon is root and follows everything, as the real one does
	if err != nil {
		plainError(w, http.StatusInternalServerError, err.Error())
		return
	}
	defer f.Close()
	w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": filepath.Base(path)}))
	w.Header().Set("Vary", "Accept-Encoding")
	if zipped {
		w.Header().Set("Content-Type", mime.TypeByExtension(filepath.Ext(path)))
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.Copy(z, f)
		_ = z.Close()
		return
	}
	http.ServeContent(w, r, path, info.ModTime(), f)
}

// wantsGzip reads an Accept-Encoding; an error means that neither of the two
// encodings is taken.
func wantsGzip(accept string) (bool, error) {
	plain := true
	for part := range strings.SplitSeq(accept, ",") {
		coding, q, _ := strings.Cut(strings.TrimSpace(part), ";")
		refused := strings.TrimSpace(q) == "q=0"
		switch {
		case coding == "gzip" && !refused:
			return true, nil
		case coding == "identity" || coding == "*":
			plain = !refused
		}
	}
	if !plain {
		return false, errors.New("no acceptable encoding found, supported: [gzip]")
	}
	return false, nil
}

// written is one file of an upload's answer.
type written struct {
	Metadata map[string]string `json:"metadata,omitempty"`
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
}

// metadataPrefix begins the headers that an upload keeps with its files.
const metadataPrefix = "X-Metadata-"

// keepMetadata replaces what is kept of the file at path.
func (s *Server) keepMetadata(r *http.Request, path string) {
	kept := map[string]string{}
	for name, values := range r.Header {
		if key, ok := strings.CutPrefix(name, metadataPrefix); ok {
			kept[strings.ToLower(key)] = values[0]
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metadata[path] = kept
}

func (s *Server) metadataOf(path string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.metadata[path]
}

// compose joins files into one and removes them.
func (s *Server) compose(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		Username    string   `json:"username"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&req); err != nil {
		plainError(w, http.StatusBadRequest, err.Error())
		return
	}
	a, err := s.lookup(cmp.Or(req.Username, s.cfg.DefaultUser))
	if err != nil {
		plainError(w, http.StatusUnauthorized, fmt.Sprintf("error looking up user '%s': %v", req.Username, err))
		return
	}
	var all []io.Reader
	for _, path := range req.Sources {
		data, err := os.ReadFile(path)
		if err != nil {
			plainError(w, http.StatusNotFound, "source file not found: "+path)
			return
		}
		all = append(all, bytes.NewReader(data))
	}
	if status, err := s.store(req.Destination, a, io.MultiReader(all...)); err != nil {
		plainError(w, status, err.Error())
		return
	}
	for _, path := range req.Sources {
		_ = os.Remove(path)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(file(req.Destination))
}

// upload takes a raw body or a form.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	path, a, ok := s.target(w, r, "write")
	if !ok {
		return
	}
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	body, err := uploadBody(r)
	switch {
	case err != nil:
		plainError(w, http.StatusBadRequest, err.Error())
		return
	case kind == "multipart/form-data":
		s.uploadForm(w, r, multipart.NewReader(body, params["boundary"]), a)
		return
	case kind != "application/octet-stream":
		plainError(w, http.StatusBadRequest, fmt.Sprintf("unsupported content type: %s, expected multipart/form-data or application/octet-stream", kind))
		return
	case r.URL.Query().Get("path") == "":
		plainError(w, http.StatusBadRequest, "path query parameter is required for raw body upload")
		return
	}
	if status, err := s.store(path, a, body); err != nil {
		plainError(w, status, err.Error())
		return
	}
	s.keepMetadata(r, path)
	f := file(path)
	f.Metadata = s.metadataOf(path)
	uploaded(w, []written{f})
}

// uploadBody undoes the one content encoding that is supported.
func uploadBody(r *http.Request) (io.Reader, error) {
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "":
		return r.Body, nil
	case "gzip":
		return gzip.NewReader(r.Body)
	default:
		return nil, fmt.Errorf("error decompressing request body: unsupported Content-Encoding: %s, supported: [gzip]", encoding)
	}
}

// uploadForm takes the parts named "file"; without a path in the query their
// file names are the paths.
func (s *Server) uploadForm(w http.ResponseWriter, r *http.Request, form *multipart.Reader, a account) {
	path := r.URL.Query().Get("path")
	all := []written{}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) && err == io.EOF { //nolint:errorlint // a wrapped EOF is a broken form
			uploaded(w, all)
			return
		}
		if err != nil {
			plainError(w, http.StatusInternalServerError, fmt.Sprintf("error reading form: %v", err))
			return
		}
		if part.FormName() != "file" {
			continue
		}
		to := path
		if to == "" {
			_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			to = params["filename"]
		}
		if to, err = s.resolve(to, a); err != nil {
			plainError(w, http.StatusBadRequest, fmt.Sprintf("error resolving path: %v", err))
			return
		}
		if path != "" && len(all) > 0 {
			plainError(w, http.StatusBadRequest, fmt.Sprintf("you cannot upload multiple files to the same path '%s' in one upload request, only the first specified file was uploaded", to))
			return
		}
		if status, err := s.store(to, a, part); err != nil {
			plainError(w, status, err.Error())
			return
		}
		all = append(all, file(to))
	}
}

func file(path string) written {
	return written{Name: filepath.Base(path), Path: path, Type: "file"}
}

func uploaded(w http.ResponseWriter, all []written) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = json.NewEncoder(trimmed{w}).Encode(all)
}

// trimmed drops the line end that the encoder adds.
type trimmed struct{ w io.Writer }

func (t trimmed) Write(p []byte) (int, error) {
	_, err := t.w.Write(p[:len(p)-1])
	return len(p), err
}

// store writes as root, follows links, and gives the file to a: also one that
// existed. Not atomic.
func (s *Server) store(path string, a account, body io.Reader) (int, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return http.StatusBadRequest, fmt.Errorf("path is a directory: %s", path)
	}
	if err := s.parents(filepath.Dir(path), a); err != nil {
		return http.StatusInternalServerError, fmt.Errorf("error ensuring directories: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return http.StatusInternalServerError, fmt.Errorf("error opening file: %w", err)
	}
	defer f.Close()
	if !s.cfg.AnyUser {
		if err := f.Chown(a.uid, a.gid); err != nil {
			return http.StatusInternalServerError, err
		}
	}
	if _, err := io.Copy(f, body); err != nil {
		return http.StatusInternalServerError, err
	}
	return 0, nil
}

// parents makes missing directories, each owned by a.
func (s *Server) parents(dir string, a account) error {
	info, err := os.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return fmt.Errorf("path is a file: %s", dir)
		}
		return nil
	}
	if dir != "/" {
		if err := s.parents(filepath.Dir(dir), a); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil { // the mode that was recorded
		return fmt.Errorf("failed to create directory: %w", err)
	}
	if s.cfg.AnyUser {
		return nil
	}
	return os.Chown(dir, a.uid, a.gid)
}

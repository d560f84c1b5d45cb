package dockertest

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/image"
)

// Registry is an image registry on 127.0.0.1, which engines pull from without
// TLS. It holds one small image under every name and tag but those beginning
// with "missing".
type Registry struct {
	server *httptest.Server
	// Hold, when set before the first pull, delays the answer with the layer
	// until it is closed or the engine gives up.
	Hold chan struct{}

	blobs    map[string][]byte // by digest
	manifest []byte

	mu    sync.Mutex
	pulls int
}

const (
	manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	configType   = "application/vnd.docker.container.image.v1+json"
	layerType    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

// NewRegistry serves an image with these labels whose agent is a stand-in.
func NewRegistry(t testing.TB, labels map[string]string) *Registry {
	t.Helper()
	archive := layer(t)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(archive); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	config := encode(t, map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Labels": labels, "Env": []string{"TEST=" + t.Name()}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(archive)}},
	})
	r := &Registry{blobs: map[string][]byte{digest(config): config, digest(packed.Bytes()): packed.Bytes()}}
	r.manifest = encode(t, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": map[string]any{"mediaType": configType, "size": len(config), "digest": digest(config)},
		"layers": []any{map[string]any{"mediaType": layerType, "size": packed.Len(), "digest": digest(packed.Bytes())}},
	})
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

// Ref returns the reference of an image in the registry, and removes it from
// the engine at the end of the test.
func (r *Registry) Ref(t testing.TB, nameAndTag string) string {
	t.Helper()
	ref := strings.TrimPrefix(r.server.URL, "http://") + "/" + nameAndTag
	c := Client(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		_, _ = c.ImageRemove(ctx, ref, image.RemoveOptions{Force: true}) // it may never have been pulled
	})
	return ref
}

// Pulls returns how many manifests were fetched.
func (r *Registry) Pulls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pulls
}

// ServeHTTP implements the part of the distribution protocol that a pull needs.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	_, what, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/"), "/")
	kind, id, _ := strings.Cut(what, "/")
	switch {
	case req.URL.Path == "/v2/":
	case strings.HasPrefix(req.URL.Path, "/v2/missing"):
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`))
	case kind == "manifests":
		r.serveManifest(w, req)
	case kind == "blobs" && r.blobs[id] != nil:
		if r.Hold != nil && len(r.blobs[id]) > 4096 {
			select {
			case <-r.Hold:
			case <-req.Context().Done():
				return
			}
		}
		_, _ = w.Write(r.blobs[id])
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (r *Registry) serveManifest(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", manifestType)
	w.Header().Set("Docker-Content-Digest", digest(r.manifest))
	w.Header().Set("Content-Length", strconv.Itoa(len(r.manifest)))
	if req.Method != http.MethodHead {
		r.mu.Lock()
		r.pulls++
		r.mu.Unlock()
		_, _ = w.Write(r.manifest)
	}
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

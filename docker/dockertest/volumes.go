package dockertest

import (
	"crypto/rand"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// plugins is where the engine looks for plugins that run by themselves (Docker
// Engine plugin API, "Plugin discovery").
const plugins = "/run/docker/plugins"

// VolumeDriver runs a volume plugin that takes the option size, as the engine's
// volume plugin protocol has it, and returns its name. A volume is a tmpfs of
// that size. It needs root and the engine on this machine; at the end of the
// test it is gone, and the test fails when a volume is left.
func VolumeDriver(t testing.TB) string {
	t.Helper()
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		t.Fatalf("a volume plugin needs root: %v", err)
	}
	name := "shoal-test-" + strings.ToLower(rand.Text()[:12])
	socket := filepath.Join(plugins, name+".sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatalf("a volume plugin needs root: %v", err)
	}
	d := &sizedVolumes{dir: t.TempDir(), volumes: map[string]*sizedVolume{}}
	server := &http.Server{Handler: d.routes(), ReadHeaderTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // until Close
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		for name := range d.volumes {
			t.Errorf("the volume %s is left", name)
			_ = unix.Unmount(d.path(name), unix.MNT_DETACH) // it may not be mounted
		}
	})
	return name
}

// sizedVolumes is the plugin: its volumes by name.
type sizedVolumes struct {
	dir     string
	mu      sync.Mutex
	volumes map[string]*sizedVolume // guarded by mu
}

type sizedVolume struct {
	size string
	used int // containers that have it mounted
}

type volumeRequest struct {
	Name string
	Opts map[string]string
}

type volumeInfo struct{ Name, Mountpoint string }

func (d *sizedVolumes) path(name string) string { return filepath.Join(d.dir, name) }

func (d *sizedVolumes) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /Plugin.Activate", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"Implements": []string{"VolumeDriver"}})
	})
	mux.HandleFunc("POST /VolumeDriver.Capabilities", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"Capabilities": map[string]string{"Scope": "local"}})
	})
	for verb, do := range map[string]func(volumeRequest) (any, error){
		"Create": d.create, "Remove": d.remove, "Mount": d.mount, "Unmount": d.unmount,
		"Path": d.where, "Get": d.get, "List": d.list,
	} {
		mux.HandleFunc("POST /VolumeDriver."+verb, func(w http.ResponseWriter, r *http.Request) {
			var q volumeRequest
			err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&q)
			var answer any
			if err == nil {
				d.mu.Lock()
				answer, err = do(q)
				d.mu.Unlock()
			}
			if err != nil {
				w.WriteHeader(http.StatusInternalServerError)
				answer = map[string]string{"Err": err.Error()}
			}
			_ = json.NewEncoder(w).Encode(answer)
		})
	}
	return mux
}

func (d *sizedVolumes) create(q volumeRequest) (any, error) {
	if q.Opts["size"] == "" || len(q.Opts) != 1 {
		return nil, unix.EINVAL
	}
	if d.volumes[q.Name] == nil {
		d.volumes[q.Name] = &sizedVolume{size: q.Opts["size"]}
	}
	return struct{}{}, os.MkdirAll(d.path(q.Name), 0o700)
}

func (d *sizedVolumes) remove(q volumeRequest) (any, error) {
	v := d.volumes[q.Name]
	if v == nil || v.used > 0 {
		return nil, unix.EBUSY
	}
	delete(d.volumes, q.Name)
	_ = unix.Unmount(d.path(q.Name), unix.MNT_DETACH) // it was never mounted, or has content to lose now
	return struct{}{}, os.Remove(d.path(q.Name))
}

// mount mounts at the first use; the content stays until the removal.
func (d *sizedVolumes) mount(q volumeRequest) (any, error) {
	v := d.volumes[q.Name]
	if v == nil {
		return nil, unix.ENOENT
	}
	var st unix.Statfs_t
	if err := unix.Statfs(d.path(q.Name), &st); err != nil {
		return nil, err
	}
	if st.Type != unix.TMPFS_MAGIC {
		if err := unix.Mount("tmpfs", d.path(q.Name), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size="+v.size); err != nil {
			return nil, err
		}
	}
	v.used++
	return d.where(q)
}

func (d *sizedVolumes) unmount(q volumeRequest) (any, error) {
	if v := d.volumes[q.Name]; v != nil && v.used > 0 {
		v.used--
	}
	return struct{}{}, nil
}

func (d *sizedVolumes) where(q volumeRequest) (any, error) {
	return volumeInfo{Mountpoint: d.path(q.Name)}, nil
}

func (d *sizedVolumes) get(q volumeRequest) (any, error) {
	if d.volumes[q.Name] == nil {
		return nil, unix.ENOENT
	}
	return map[string]any{"Volume": volumeInfo{q.Name, d.path(q.Name)}}, nil
}

func (d *sizedVolumes) list(volumeRequest) (any, error) {
	all := []volumeInfo{}
	for name := range d.volumes {
		all = append(all, volumeInfo{name, d.path(name)})
	}
	return map[string]any{"Volumes": all}, nil
}

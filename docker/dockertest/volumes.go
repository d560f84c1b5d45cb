package dockertest

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// VolumeDriver runs a volume plugin for this engine alone and returns its name.
// It takes the option size, as the engine's volume plugin protocol has it; a
// volume is a tmpfs of that size. The test fails when one is left at its end.
func (d *Daemon) VolumeDriver() string {
	d.t.Helper()
	const name = "sized"
	l, err := (&net.ListenConfig{}).Listen(d.t.Context(), "unix", filepath.Join(d.plugins(), name+".sock"))
	if err != nil {
		d.t.Fatal(err)
	}
	d.volumes = &sizedVolumes{dir: filepath.Join(d.dir, "volumes"), mounting: d.mounting, volumes: map[string]*sizedVolume{}}
	d.volumes.server = &http.Server{Handler: d.volumes.routes(), ReadHeaderTimeout: 10 * time.Second}
	d.volumes.serving.Go(func() { _ = d.volumes.server.Serve(l) }) // until close
	return name
}

// sizedVolumes is the plugin: its volumes by name.
type sizedVolumes struct {
	dir      string
	mounting func(command ...string) error
	server   *http.Server
	serving  sync.WaitGroup

	mu      sync.Mutex
	volumes map[string]*sizedVolume // guarded by mu
}

type sizedVolume struct {
	size    string
	mounted bool
	used    int // containers that have it
}

type volumeRequest struct {
	Name string
	Opts map[string]string
}

type volumeInfo struct{ Name, Mountpoint string }

// close ends the plugin; a nil one is none.
func (d *sizedVolumes) close(t testing.TB) {
	if d == nil {
		return
	}
	_ = d.server.Close() // nobody asks any more
	d.serving.Wait()
	for name := range d.volumes {
		t.Errorf("the volume %s is left", name)
	}
}

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
	if v.mounted {
		if err := d.mounting("umount", d.path(q.Name)); err != nil {
			return nil, err
		}
	}
	delete(d.volumes, q.Name)
	return struct{}{}, os.Remove(d.path(q.Name))
}

// mount mounts at the first use; the content stays until the removal.
func (d *sizedVolumes) mount(q volumeRequest) (any, error) {
	v := d.volumes[q.Name]
	if v == nil {
		return nil, unix.ENOENT
	}
	if !v.mounted {
		if err := d.mounting("mount", "-t", "tmpfs", "-o", "nosuid,nodev,size="+v.size, "tmpfs", d.path(q.Name)); err != nil {
			return nil, err
		}
		v.mounted = true
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

package dockerbench

import "github.com/docker/docker/api/types/mount"

// The ends of the volumes' names.
const (
	workspace = "-workspace"
	skills    = "-skills"
)

// mounts are those of a sandbox.
func (e *Engine) mounts(name string) []mount.Mount {
	volume := func(source, target string, readOnly bool) mount.Mount {
		return mount.Mount{
			Type: mount.TypeVolume, Source: source, Target: target, ReadOnly: readOnly,
			VolumeOptions: &mount.VolumeOptions{Labels: e.labels()},
		}
	}
	return []mount.Mount{
		volume(name+workspace, "/workspace", false),
		volume(name+skills, "/skills", true),
		volume(name+skills, "/opt/shoal/skills", false),
	}
}

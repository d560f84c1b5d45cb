package dockerbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"shoal/docker"
	"shoal/sandbox"
)

// user is the sandbox user: the same program under the same id on both sides.
const user = "1000:1000"

// Engine makes and uses containers of one fleet. Its methods may be called from
// any goroutine; every wait ends with its ctx.
type Engine struct {
	client *client.Client
	fleet  string
	image  string
	limits sandbox.Limits
}

// Open connects to the engine at endpoint (unix:// or tcp://) and checks that
// it has image. limits hold for every container.
func Open(ctx context.Context, endpoint, image, fleet string, limits sandbox.Limits) (*Engine, error) {
	c, err := client.NewClientWithOpts(client.WithHost(endpoint), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("docker client for %s: %w", endpoint, err)
	}
	if _, err := c.ImageInspect(ctx, image); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("look at the image %s: %w: run make image, and make engine where no engine answers", image, err)
	}
	return &Engine{client: c, fleet: fleet, image: image, limits: limits}, nil
}

// Close closes the connections; it removes nothing.
func (e *Engine) Close() error { return e.client.Close() }

// Create creates and starts a container without a network under name and
// returns its id.
func (e *Engine) Create(ctx context.Context, name string) (string, error) {
	return e.create(ctx, name, network.NetworkNone)
}

// CreateBridged does the same on the engine's default bridge. host is this
// machine's address there.
func (e *Engine) CreateBridged(ctx context.Context, name string) (id, host string, err error) {
	if id, err = e.create(ctx, name, network.NetworkBridge); err != nil {
		return id, "", err
	}
	info, err := e.client.ContainerInspect(ctx, id)
	if err != nil {
		return id, "", fmt.Errorf("look at the container %s: %w", name, err)
	}
	end := info.NetworkSettings.Networks[network.NetworkBridge]
	if end == nil || end.Gateway == "" {
		return id, "", fmt.Errorf("the container %s has no gateway on the default bridge", name)
	}
	return id, end.Gateway, nil
}

func (e *Engine) create(ctx context.Context, name, mode string) (string, error) {
	host := e.hostConfig(name)
	host.NetworkMode = container.NetworkMode(mode)
	c, err := e.client.ContainerCreate(ctx, e.config(), host, nil, nil, name)
	if err != nil {
		return "", fmt.Errorf("create the container %s: %w", name, err)
	}
	if err := e.client.ContainerStart(ctx, c.ID, container.StartOptions{}); err != nil {
		return c.ID, fmt.Errorf("start the container %s: %w", name, err)
	}
	return c.ID, nil
}

func (e *Engine) labels() map[string]string { return map[string]string{docker.LabelFleet: e.fleet} }

func (e *Engine) config() *container.Config {
	return &container.Config{
		Image: e.image, User: "0:0", WorkingDir: "/", Labels: e.labels(),
		Entrypoint: []string{"sleep"}, Cmd: []string{"infinity"},
	}
}

// hostConfig is that of a sandbox; the volumes are made with the container.
func (e *Engine) hostConfig(name string) *container.HostConfig {
	memory, pids := int64(e.limits.MemoryMB)<<20, int64(e.limits.Pids)
	return &container.HostConfig{
		Init: new(true), ReadonlyRootfs: true, IpcMode: "private",
		CapDrop: []string{"ALL"}, CapAdd: []string{"SETUID", "SETGID", "KILL"}, SecurityOpt: []string{"no-new-privileges"},
		Resources: container.Resources{Memory: memory, MemorySwap: memory, NanoCPUs: int64(e.limits.CPU * 1e9), PidsLimit: &pids},
		Tmpfs:     map[string]string{"/tmp": "rw,exec,nosuid,nodev,mode=1777,size=64m", "/run/shoal": "rw,noexec,nosuid,nodev,mode=0700,size=4m"},
		Mounts:    e.mounts(name),
		LogConfig: container.LogConfig{Type: "none"},
	}
}

// Remove removes a container and its volumes.
func (e *Engine) Remove(ctx context.Context, id string) error {
	info, err := e.client.ContainerInspect(ctx, id)
	if err != nil {
		return fmt.Errorf("look at the container %s: %w", id, err)
	}
	if err := e.client.ContainerRemove(ctx, id, container.RemoveOptions{Force: true}); err != nil {
		return fmt.Errorf("remove the container %s: %w", id, err)
	}
	name := strings.TrimPrefix(info.Name, "/")
	return errors.Join(e.client.VolumeRemove(ctx, name+workspace, true), e.client.VolumeRemove(ctx, name+skills, true))
}

// Exec runs argv in a container as the sandbox user does, gives it stdin, and
// writes its output to stdout. Another exit code than 0 is an error.
func (e *Engine) Exec(ctx context.Context, id string, argv []string, stdin []byte, stdout io.Writer) error {
	made, err := e.client.ContainerExecCreate(ctx, id, container.ExecOptions{
		User: user, WorkingDir: "/workspace", Cmd: argv, AttachStdin: stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return fmt.Errorf("create an exec: %w", err)
	}
	if err := e.attach(ctx, made.ID, stdin, stdout); err != nil {
		return fmt.Errorf("run %s by docker exec: %w", argv[0], err)
	}
	end, err := e.client.ContainerExecInspect(ctx, made.ID)
	if err != nil {
		return fmt.Errorf("ask for the end of an exec: %w", err)
	}
	if end.ExitCode != 0 {
		return fmt.Errorf("%s ended with %d under docker exec", argv[0], end.ExitCode)
	}
	return nil
}

func (e *Engine) attach(ctx context.Context, exec string, stdin []byte, stdout io.Writer) error {
	stream, err := e.client.ContainerExecAttach(ctx, exec, container.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	stop := context.AfterFunc(ctx, stream.Close) // a hijacked connection knows no ctx
	defer stop()
	if stdin != nil {
		if _, err := stream.Conn.Write(stdin); err != nil {
			return err
		}
		if err := stream.CloseWrite(); err != nil {
			return err
		}
	}
	var stderr bytes.Buffer
	if _, err := stdcopy.StdCopy(stdout, &stderr, stream.Reader); err != nil {
		return err
	}
	return ctx.Err()
}

// Mains returns the process ids, as the host sees them, of the main processes
// of a fleet's running containers.
func (e *Engine) Mains(ctx context.Context, fleet string) ([]int, error) {
	list, err := e.client.ContainerList(ctx, container.ListOptions{Filters: byFleet(fleet)})
	if err != nil {
		return nil, fmt.Errorf("list the containers of the fleet %s: %w", fleet, err)
	}
	var pids []int
	for _, c := range list {
		info, err := e.client.ContainerInspect(ctx, c.ID)
		if err != nil {
			return nil, fmt.Errorf("look at the container %s: %w", c.ID, err)
		}
		pids = append(pids, info.State.Pid)
	}
	return pids, nil
}

// Sweep removes every container and volume with a fleet's label.
func (e *Engine) Sweep(ctx context.Context, fleet string) error {
	list, err := e.client.ContainerList(ctx, container.ListOptions{All: true, Filters: byFleet(fleet)})
	if err != nil {
		return fmt.Errorf("list the containers of the fleet %s: %w", fleet, err)
	}
	var failed []error
	for _, c := range list {
		_ = e.client.ContainerUnpause(ctx, c.ID) // most are not paused
		failed = append(failed, e.client.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true}))
	}
	volumes, err := e.client.VolumeList(ctx, volume.ListOptions{Filters: byFleet(fleet)})
	failed = append(failed, err)
	for _, v := range volumes.Volumes {
		failed = append(failed, e.client.VolumeRemove(ctx, v.Name, true))
	}
	return errors.Join(failed...)
}

func byFleet(fleet string) filters.Args {
	return filters.NewArgs(filters.Arg("label", docker.LabelFleet+"="+fleet))
}

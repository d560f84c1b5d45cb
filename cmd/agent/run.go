package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"shoal/agent"
	"shoal/agent/files"
	"shoal/agent/host"
	"shoal/agent/proc"
	"shoal/agent/threads"
)

// Where things are in a sandbox.
const (
	launchPath = "/opt/shoal/bin/launch"
	socketDir  = "/run/shoal"
	socketPath = socketDir + "/agent.sock"
	// specPath is on the skills volume, which outlives a stop; commands see the
	// name in /skills but only root may read it.
	specPath = skillsDir + "/" + specName
	specName = ".shoal-spec"
	// skillsDir is the writable mount of /skills.
	skillsDir = "/opt/shoal/skills"
)

const (
	// parkedThreads are made while there are process numbers left: at the limit a
	// Go program that needs another thread aborts (measured; 48 were enough).
	parkedThreads = 48
	// userThreads touch files and make pipes with the sandbox user's rights.
	userThreads = 4
	// gcPercent keeps the heap at 1.5 times what lives, not 2, in every sandbox of
	// the node; the agent allocates too little for the collector to be felt.
	gcPercent = 50
	// heapLimit is the agent's own; the rings for output come on top.
	heapLimit    = 24 << 20
	suspendBound = 10 * time.Second
	// ringShare and ringMost say how much of the sandbox's memory is for rings.
	ringShare = 8
	ringMost  = 32 << 20
)

// run serves until ctx ends, which is how a sandbox is suspended: commands are
// asked to end, killed, and the disk is synced before it returns.
func run(ctx context.Context, log *slog.Logger) error {
	unix.Umask(0o077)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("shut the agent's memory: %w", err)
	}
	memory := max(0, proc.OpenCgroup().Read().MemoryLimit)
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(heapLimit + rings(memory))
	threads.Park(parkedThreads)
	user, err := threads.NewPool(threads.Config{UID: host.UID, GID: host.GID, Size: userThreads})
	if err != nil {
		return err
	}
	if err := user.Start(); err != nil {
		return err
	}
	defer user.Close()
	tree, err := files.New(files.Config{Threads: user, SkillsWrite: skillsDir, Reserved: specName})
	if err != nil {
		return err
	}
	machine, err := host.New(host.Config{Launch: launchPath, Files: tree, Threads: user})
	if err != nil {
		return err
	}
	server, err := agent.NewServer(agent.ServerConfig{
		Host: machine, SpecFile: specPath, Memory: memory, Version: version, Log: log,
	})
	if err != nil {
		return err
	}
	return serve(ctx, log, machine, server)
}

func rings(memory int64) int64 {
	if memory == 0 {
		return ringMost
	}
	return min(ringMost, memory/ringShare)
}

func serve(ctx context.Context, log *slog.Logger, machine *host.Host, server *agent.Server) error {
	var wg sync.WaitGroup
	reaping, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	wg.Go(func() { machine.Run(reaping) })
	defer wg.Wait()
	defer stopReaping()

	proxy, err := new(net.ListenConfig).Listen(ctx, "tcp4", agent.ProxyAddress)
	if err != nil {
		return fmt.Errorf("take the proxy's address: %w", err)
	}
	defer proxy.Close()
	socket, err := listen(ctx)
	if err != nil {
		return err
	}
	defer socket.Close()
	// Who connects now is served once the test has passed.
	if err := machine.SelfTest(ctx); err != nil {
		return err
	}

	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	failed := make(chan error, 2)
	wg.Go(func() { failed <- server.ServeEgress(serving, proxy) })
	wg.Go(func() { failed <- server.Serve(serving, socket) })
	defer stop()
	log.Info("agent serves", "boot", server.Boot(), "version", version)
	select {
	case <-ctx.Done():
		log.Info("agent stops", "cause", context.Cause(ctx))
	case err = <-failed:
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), suspendBound)
	defer cancel()
	return errors.Join(err, server.Suspend(bounded))
}

// listen makes the socket, which only root can reach.
func listen(ctx context.Context) (net.Listener, error) {
	if err := os.Remove(socketPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the former socket: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", socketPath)
	if err != nil {
		return nil, fmt.Errorf("make the socket: %w", err)
	}
	return l, nil
}

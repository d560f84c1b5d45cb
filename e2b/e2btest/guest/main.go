// Guest is the first program of a fake E2B sandbox that is a container: it
// serves the fake daemon on a Unix socket and, at the first boot, does what the
// template's build does.
//
//	guest <directory with config.json, for the socket>
//
// Called as sync it does nothing: a container's files outlive it anyway.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"shoal/e2b/e2btest/envd"
)

// config is what the fake control plane writes for its guest.
type config struct {
	Envd envd.Config `json:"envd"`
	// Template is the body of the template's build request.
	Template template `json:"template"`
}

// template is what a build does: its steps, then a start command, whose
// processes live on in the memory of every sandbox made from it, and not after
// a boot from disk.
type template struct {
	Steps []struct {
		Type string   `json:"type"`
		Args []string `json:"args"`
	} `json:"steps"`
	StartCmd string `json:"startCmd"`
	ReadyCmd string `json:"readyCmd"`
}

// readyWait bounds the wait for a template's ready command.
const readyWait = 20 * time.Second

func main() {
	if filepath.Base(os.Args[0]) == "sync" {
		return // the disk is that of the host, whose other work a sync would wait for
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: guest <directory>")
	}
	dir := args[0]
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return err
	}
	var c config
	if err := json.Unmarshal(data, &c); err != nil {
		return err
	}
	// The real daemon runs without core dumps, and so does what it starts.
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return err
	}
	if err := firstBoot(dir, c.Template); err != nil {
		return err
	}
	socket := filepath.Join(dir, "envd.sock")
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: envd.New(c.Envd), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 640 * time.Second}
	return server.Serve(l)
}

// firstBoot builds the template unless this machine has booted before.
func firstBoot(dir string, t template) error {
	mark := filepath.Join(dir, "booted")
	if _, err := os.Stat(mark); err == nil {
		return nil
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	for _, s := range t.Steps {
		if s.Type == "RUN" {
			if err := shell(s.Args[0]); err != nil {
				return fmt.Errorf("step %q: %w", s.Args[0], err)
			}
		}
	}
	if t.StartCmd != "" {
		if err := shell(t.StartCmd); err != nil {
			return fmt.Errorf("start command: %w", err)
		}
	}
	return ready(t.ReadyCmd)
}

// shell runs a command as root.
func shell(command string) error {
	out, err := exec.Command("/bin/sh", "-c", command).CombinedOutput() // the template's own command
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// ready waits until the template's ready command succeeds.
func ready(command string) error {
	if command == "" {
		return nil
	}
	for deadline := time.Now().Add(readyWait); ; time.Sleep(10 * time.Millisecond) {
		err := shell(command)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// Guest is the first program of a fake E2B sandbox that is a container: it
// serves the fake daemon on a Unix socket and, at the first boot, starts the
// template's start command.
//
//	guest <directory with config.json, for the socket>
package main

import (
	"encoding/json"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"shoal/e2b/e2btest/envd"
)

// config is what the fake control plane writes for its guest.
type config struct {
	Envd envd.Config `json:"envd"`
	// StartCommand ran when the template was built; it lives on in the memory
	// of every sandbox made from it, and not after a boot from disk.
	StartCommand []string `json:"startCommand"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
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
	if err := firstBoot(dir, c.StartCommand); err != nil {
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

// firstBoot starts the start command unless this machine has booted before.
func firstBoot(dir string, command []string) error {
	mark := filepath.Join(dir, "booted")
	if _, err := os.Stat(mark); err == nil || len(command) == 0 {
		return nil
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec,noctx // the template's own command, for the life of the machine
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // reaped whenever it ends; the guest goes on
	return nil
}

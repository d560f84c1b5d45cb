package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"

	"shoal/messaging"
	"shoal/sandbox"
)

// credentialsFile is written by a worker that runs its own NATS server.
const credentialsFile = "nats.json"

// operatorInbox is the inbox prefix of the operator's credentials.
const operatorInbox = "_INBOX._operator"

// connection is made when a command first needs it.
type connection struct {
	client *messaging.Client
}

// close ends the connection.
func (a *app) close() {
	if a.conn.client != nil {
		_ = a.conn.client.Close() // nothing is left to be sent
	}
}

// client connects as a kernel of the tenant.
func (a *app) client() (*messaging.Client, error) {
	if a.conn.client != nil {
		return a.conn.client, nil
	}
	url, opts, err := a.natsOptions()
	if err != nil {
		return nil, err
	}
	a.conn.client, err = messaging.Connect(url, messaging.Options{Tenant: a.cli.Tenant}, opts...)
	return a.conn.client, err
}

// natsOptions says where NATS is and who we are there.
func (a *app) natsOptions() (url string, opts []nats.Option, err error) {
	c := a.cli
	if c.NATSCreds != "" {
		opts = append(opts, nats.UserCredentials(c.NATSCreds))
	}
	if c.NATSNKey != "" {
		o, err := nats.NkeyOptionFromSeed(c.NATSNKey)
		if err != nil {
			return "", nil, fmt.Errorf("read the nkey seed: %w", err)
		}
		opts = append(opts, o)
	}
	if c.NATSCA != "" {
		opts = append(opts, nats.RootCAs(c.NATSCA))
	}
	if c.NATSURL != "" {
		return c.NATSURL, opts, nil
	}
	local, err := readLocal(filepath.Join(c.StateDir, credentialsFile))
	if err != nil {
		return "", nil, err
	}
	return local.URL, append(opts, nats.UserInfo(local.User, local.Password)), nil
}

// local is how to reach the NATS server inside a worker of this machine.
type local struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password"`
}

func readLocal(path string) (local, error) {
	var l local
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l, noNATS("no worker runs on this machine (there is no %s): start one with `worker`, or name a NATS server with --nats-url", path)
	case errors.Is(err, fs.ErrPermission):
		return l, noNATS("%s belongs to another user: run shoal as the user who runs the worker, or name a NATS server with --nats-url", path)
	case err != nil:
		return l, fmt.Errorf("read the worker's credentials: %w", err)
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return l, fmt.Errorf("read the worker's credentials %s: %w", path, err)
	}
	return l, nil
}

func noNATS(format string, args ...any) error {
	return sandbox.Errorf(sandbox.Unavailable, format, args...).From(sandbox.FromClient)
}

// defaultStateDir is where a worker keeps its state unless told otherwise.
func defaultStateDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/shoal"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "shoal")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "shoal-state"
	}
	return filepath.Join(home, ".local", "state", "shoal")
}

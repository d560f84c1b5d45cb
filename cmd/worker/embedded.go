package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"
)

// credentialsFile is where other programs of this machine find the embedded
// server; loopback alone is shared by all its users.
const credentialsFile = "nats.json"

// credentials is the content of [credentialsFile].
type credentials struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password"`
}

// embedded is a NATS server with JetStream inside this process.
type embedded struct {
	srv   *server.Server
	lock  *os.File
	path  string
	creds credentials
}

// startEmbedded starts a server that keeps its data in dir and listens on
// loopback. Two servers on one directory would both run and both grant the
// same lock, so the directory is locked first.
func startEmbedded(dir string, port int) (*embedded, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	e := &embedded{
		lock: lock, path: filepath.Join(dir, credentialsFile),
		creds: credentials{User: "shoal", Password: rand.Text()},
	}
	if err := e.serve(dir, port); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return e, nil
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		_ = f.Close()
		return nil, fmt.Errorf("another worker keeps its state in %s: give this one --state-dir, or --nats-url to join it (its address is in %s)",
			dir, filepath.Join(dir, credentialsFile))
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	return f, nil
}

func (e *embedded) serve(dir string, port int) error {
	srv, err := server.NewServer(&server.Options{
		ServerName: "shoal-embedded", Host: "127.0.0.1", Port: port,
		Username: e.creds.User, Password: e.creds.Password,
		JetStream: true, StoreDir: filepath.Join(dir, "jetstream"), SyncInterval: 5 * time.Second,
		NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
	})
	if err != nil {
		return fmt.Errorf("set up the embedded NATS server: %w", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(20 * time.Second) {
		srv.Shutdown()
		return fmt.Errorf("the embedded NATS server did not become ready on 127.0.0.1:%d in 20 s: is the port taken?", port)
	}
	e.srv = srv
	e.creds.URL = srv.ClientURL()
	if err := e.writeCredentials(); err != nil {
		e.stop()
		return err
	}
	return nil
}

func (e *embedded) writeCredentials() error {
	data, err := json.Marshal(e.creds) //nolint:gosec // the file is how other programs of this user get the password
	if err != nil {
		return err
	}
	tmp := e.path + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return fmt.Errorf("write the credentials file: %w", err)
	}
	return os.Rename(tmp, e.path)
}

// stop ends the server and frees the directory; the address is no longer true,
// so its file goes first.
func (e *embedded) stop() {
	_ = os.Remove(e.path) // whoever reads it later gets "no NATS", not a hang
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
	_ = e.lock.Close()
}

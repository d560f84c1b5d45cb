// Command dockerfilter stands between a worker and the Docker engine and lets
// through what Shoal's provider needs, nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"shoal/docker/filter"
)

// flags are the settings. The policy is the default one, made from the flags of
// its group, or one read from a file.
type flags struct {
	Listen      string `default:"unix:///run/shoal/docker.sock" help:"Where workers connect: unix:///path, or tcp://host:port with TLS."`
	Engine      string `default:"unix:///var/run/docker.sock" help:"The engine: unix:///path or tcp://host:port."`
	SocketGroup string `help:"Group that may use the unix socket; this process's own by default."`
	TLSCert     string `help:"Certificate of this server, for TCP."`
	TLSKey      string `help:"Key of the certificate."`
	TLSClientCA string `name:"tls-client-ca" help:"Authorities that sign the certificates of callers."`
	InsecureTCP bool   `name:"insecure-tcp" help:"Listen on a loopback TCP address without TLS. For development only."`
	MaxConns    int    `default:"1024" help:"Most connections at once."`
	Check       bool   `help:"Print the policy, try it on the engine, print the engine's state, and exit."`

	Policy       string   `help:"File with a policy, as --check prints it. Replaces the flags below." group:"policy"`
	Prefix       string   `default:"shoal-" help:"Beginning of every object's name." group:"policy"`
	Fleet        string   `default:"main" help:"Fleet that every object belongs to." group:"policy"`
	Image        []string `default:"shoal-sandbox:dev" help:"Images that may be used and pulled." group:"policy"`
	Network      string   `help:"Bridge for sandboxes with open egress; none by default." group:"policy"`
	VolumeDriver string   `help:"Volume driver that takes a size; none by default." group:"policy"`
	WarmPool     bool     `name:"warm-pool" help:"Let workers rename and relimit containers of their warm pool (worker --warm)." group:"policy"`
	MaxMemoryMB  int64    `name:"max-memory-mb" default:"8192" help:"Most memory of a sandbox." group:"policy"`
	MaxCPU       float64  `name:"max-cpu" default:"4" help:"Most CPUs of a sandbox." group:"policy"`
	MaxPids      int64    `default:"4096" help:"Most processes of a sandbox." group:"policy"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dockerfilter:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var f flags
	parser, err := kong.New(&f, kong.Name("dockerfilter"), kong.Writers(stdout, stderr), kong.DefaultEnvars("SHOAL_FILTER"),
		kong.Description("Lets Shoal's Docker provider through to the engine, and nothing else."))
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return err
	}
	policy, err := f.policy()
	if err != nil {
		return err
	}
	dial, err := filter.Dialer(f.Engine)
	if err != nil {
		return fmt.Errorf("--engine: %w", err)
	}
	if f.Check {
		return check(ctx, policy, dial, stdout)
	}
	return f.serve(ctx, policy, dial, slog.New(slog.NewJSONHandler(stderr, nil)))
}

func (f *flags) policy() (*filter.Policy, error) {
	if f.Policy != "" {
		return filter.LoadPolicy(f.Policy)
	}
	return filter.DefaultPolicy(filter.Settings{
		Prefix: f.Prefix, Fleet: f.Fleet, Images: f.Image, Network: f.Network, VolumeDriver: f.VolumeDriver,
		WarmPool: f.WarmPool, MaxMemoryMB: f.MaxMemoryMB, MaxCPU: f.MaxCPU, MaxPids: f.MaxPids,
	})
}

type dialFunc = func(context.Context) (net.Conn, error)

// check prints and fails when the engine or the policy has a problem.
func check(ctx context.Context, policy *filter.Policy, dial dialFunc, out io.Writer) error {
	fmt.Fprintln(out, policy)
	findings, err := filter.Check(ctx, policy, dial)
	problems := 0
	for _, f := range findings {
		fmt.Fprintf(out, "%-8s %s: %s\n", f.Level, f.Name, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(out, "         %s\n", f.Remedy)
		}
		if f.Level == filter.LevelProblem {
			problems++
		}
	}
	if err == nil && problems > 0 {
		err = fmt.Errorf("check: %d problems", problems)
	}
	return err
}

func (f *flags) serve(ctx context.Context, policy *filter.Policy, dial dialFunc, log *slog.Logger) error {
	state, err := readEngine(ctx, dial)
	if err != nil {
		return err
	}
	for _, finding := range state.Findings() {
		if finding.Level == filter.LevelProblem && finding.Name == "api" {
			return fmt.Errorf("engine: %s; %s", finding.Detail, finding.Remedy)
		}
		if finding.Level != filter.LevelOK {
			log.Warn("engine", "name", finding.Name, "detail", finding.Detail, "remedy", finding.Remedy)
		}
	}
	listener, hosts, err := f.listen(ctx)
	if err != nil {
		return err
	}
	proxy, err := filter.New(filter.Config{Policy: policy, Dial: dial, Log: log, Hosts: hosts, MaxConns: f.MaxConns})
	if err != nil {
		_ = listener.Close()
		return err
	}
	log.Info("docker filter listens", "address", f.Listen, "engine", f.Engine, "version", state.Version)
	return proxy.Serve(ctx, listener)
}

// readEngine reads the engine's state, waiting up to 10 s for one that starts.
func readEngine(ctx context.Context, dial dialFunc) (*filter.EngineState, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		state, err := filter.ReadEngine(ctx, dial)
		if err == nil {
			return state, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("engine: %w", err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// listen returns the listener and the Host headers that it answers (all: nil).
func (f *flags) listen(ctx context.Context) (net.Listener, []string, error) {
	if path, ok := strings.CutPrefix(f.Listen, "unix://"); ok {
		l, err := filter.ListenUnix(ctx, path, f.SocketGroup)
		return l, nil, err
	}
	address, ok := strings.CutPrefix(f.Listen, "tcp://")
	switch {
	case !ok:
		return nil, nil, fmt.Errorf("--listen: %q is neither unix:///path nor tcp://host:port", f.Listen)
	case f.InsecureTCP:
		return filter.ListenInsecure(ctx, address)
	case f.TLSCert == "" || f.TLSKey == "" || f.TLSClientCA == "":
		return nil, nil, errors.New("--listen: TCP needs --tls-cert, --tls-key and --tls-client-ca, or --insecure-tcp for development")
	}
	return filter.ListenTLS(ctx, address, f.TLSCert, f.TLSKey, f.TLSClientCA)
}

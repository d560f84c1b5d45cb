// Command shoal runs sandboxes from the command line: it speaks to the workers
// over NATS as any kernel does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"shoal/docker"
	"shoal/sandbox"
)

// version of this program; releases set it at link time.
var version = "0.1.0" //nolint:gochecknoglobals // set by the linker

// The exit codes of shoal's own failures. A command's own code is passed on.
const (
	exitUsage   = 2
	exitFailure = 125 // as container tools do, so that it is not taken for the command's
)

// cli is the command line.
type cli struct {
	NATSURL   string         `name:"nats-url" help:"NATS servers, comma-separated; empty = those of the worker on this machine."`
	NATSCreds string         `name:"nats-creds" aliases:"creds" type:"existingfile" help:"Credentials file for NATS."`
	NATSNKey  string         `name:"nats-nkey" aliases:"nkey" type:"existingfile" help:"NKey seed file for NATS."`
	NATSCA    string         `name:"nats-ca" type:"existingfile" help:"CA certificate of the NATS servers."`
	StateDir  string         `default:"${state}" help:"Where the worker of this machine keeps its credentials file."`
	Tenant    sandbox.Tenant `default:"main" help:"Tenant to speak for."`
	JSON      bool           `help:"Print JSON instead of text."`

	Run     runCmd     `cmd:"" help:"Create a sandbox, run a command in it, destroy it."`
	Create  createCmd  `cmd:"" help:"Create a sandbox."`
	Exec    execCmd    `cmd:"" help:"Run a command in a sandbox."`
	Ls      lsCmd      `cmd:"" help:"List the sandboxes."`
	Cp      cpCmd      `cmd:"" help:"Copy files: one of the two is <sandbox>:<path>; - is standard input or output."`
	Suspend suspendCmd `cmd:"" help:"Suspend a sandbox."`
	Resume  resumeCmd  `cmd:"" help:"Resume a sandbox."`
	Rm      rmCmd      `cmd:"" help:"Destroy sandboxes."`

	Shell   shellCmd   `cmd:"" help:"Open a shell in a sandbox; Ctrl-] detaches."`
	Ps      psCmd      `cmd:"" help:"List the commands of a sandbox."`
	Kill    killCmd    `cmd:"" help:"End commands of a sandbox."`
	Attach  attachCmd  `cmd:"" help:"Follow a running command."`
	Logs    logsCmd    `cmd:"" help:"Print the kept output of a command."`
	Stats   statsCmd   `cmd:"" help:"Show what a sandbox uses."`
	Forward forwardCmd `cmd:"" help:"Forward a local port to a port in a sandbox."`
	Egress  egressCmd  `cmd:"" help:"Show, change or watch what a sandbox may reach."`

	Locks   locksCmd   `cmd:"" help:"List the tag locks."`
	Workers workersCmd `cmd:"" help:"List the workers."`
	Events  eventsCmd  `cmd:"" help:"Print what happens to sandboxes."`
	Explain explainCmd `cmd:"" help:"Say what is known about a sandbox and what happens next."`
	Sweep   sweepCmd   `cmd:"" help:"Sweep now, or say what a sweep would do."`
	E2b     e2bCmd     `cmd:"" name:"e2b" help:"Help with E2B."`
	Doctor  doctorCmd  `cmd:"" help:"Say how safe a Docker engine is for sandboxes, and what to do about it."`
	Init    initCmd    `cmd:"" help:"Make the buckets, with the operator's credentials."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

// app is what the commands share.
type app struct {
	cli    *cli
	ctx    context.Context //nolint:containedctx // the life of one command line
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	code   int // the exit code of a command that ran
	conn   connection
	interrupts
}

func main() {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(a.main(context.Background(), os.Args[1:]))
}

// main runs one command line and returns the exit code.
func (a *app) main(ctx context.Context, args []string) int {
	var c cli
	left := -1 // the code with which help or usage ended the parsing
	parser, err := kong.New(&c,
		kong.Name("shoal"),
		kong.Description("Run sandboxes over NATS. Every flag can be given as an environment variable, named in brackets."),
		kong.DefaultEnvars("SHOAL"),
		kong.Vars{"state": defaultStateDir(), "endpoint": docker.DefaultEndpoint},
		kong.Writers(a.stdout, a.stderr),
		kong.Exit(func(code int) { left = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		return a.fail(err)
	}
	k, err := parser.Parse(args)
	switch {
	case left >= 0:
		return left
	case err != nil:
		fmt.Fprintf(a.stderr, "shoal: %s (see shoal --help)\n", err)
		return exitUsage
	}
	a.cli = &c
	defer a.close()
	ctx, stop := a.interruptible(ctx)
	defer stop()
	a.ctx = ctx
	if err := k.Run(a); err != nil {
		return a.fail(err)
	}
	return a.code
}

// fail prints err in plain words and returns the exit code for it.
func (a *app) fail(err error) int {
	if a.cli != nil && a.cli.JSON {
		_ = a.printJSON(map[string]any{"error": sandbox.AsError(err)}) // the exit code says it too
		return exitFailure
	}
	fmt.Fprintf(a.stderr, "shoal: %s\n", plain(err))
	return exitFailure
}

// plain adds to an error what to do about it, where the code alone tells.
func plain(err error) string {
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		return err.Error()
	}
	text := e.Message
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	if text == "" {
		text = string(e.Code)
	}
	if e.ID != "" {
		text += " (see the worker's log, id " + e.ID + ")"
	}
	if hint := hints[e.Code]; hint != "" {
		text += "; " + hint
	}
	return strings.Replace(err.Error(), e.Error(), text, 1) // what was tried stays in front
}

// hints say what a person may do next.
var hints = map[sandbox.Code]string{ //nolint:gochecknoglobals // never written to
	sandbox.Exists:   "choose another name, or add --replace",
	sandbox.Gone:     "create it anew",
	sandbox.Draining: "try again in a moment",
}

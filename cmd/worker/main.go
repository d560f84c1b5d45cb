// Command worker serves sandboxes: it answers kernels on NATS by driving an
// engine. Without a NATS server it starts one of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/lmittmann/tint"
	"golang.org/x/term"

	"shoal/docker"
	"shoal/sandbox"
)

func main() {
	var s settings
	kong.Parse(&s,
		kong.Name("worker"),
		kong.Description("Serve sandboxes for agent kernels over NATS. Every flag can be given as an environment variable, named in brackets."),
		kong.DefaultEnvars("SHOAL"),
		kong.Vars{"state": defaultStateDir(), "endpoint": docker.DefaultEndpoint, "image": docker.DefaultImage},
	)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := newLogger(os.Stderr, s.LogLevel)
	if err := run(ctx, &s, log); err != nil {
		log.Error("the worker stopped", "error", plain(err))
		stop()
		os.Exit(1)
	}
}

// newLogger writes colours to a terminal and JSON otherwise.
func newLogger(f *os.File, level slog.Level) *slog.Logger {
	if term.IsTerminal(int(f.Fd())) {
		return slog.New(tint.NewTextHandler(f, &tint.Options{Level: level, TimeFormat: "15:04:05.000"}))
	}
	return slog.New(slog.NewJSONHandler(f, &slog.HandlerOptions{Level: level}))
}

// plain adds the cause to an error of the contract: the person who starts a
// worker may see it.
func plain(err error) string {
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok || e.Unwrap() == nil {
		return err.Error()
	}
	return fmt.Sprintf("%s (%s)", err, e.Unwrap())
}

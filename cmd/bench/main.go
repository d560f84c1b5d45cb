// Command bench compares Shoal with docker exec on this machine: every row is
// measured in turns with what it is compared to, in one run. It starts the
// workers it needs beside the engine, or uses a fleet that is there, ends by
// itself and removes what it made.
//
// Its JSON (-json) is
//
//	{"settings": {…}, "rows": [{"name", "unit", "p50", "p99",
//	  "baseline", "baseline_p50", "ratio", "floor_p50"}]}
//
// p99 is the value that 99 of 100 samples are no worse than: of a rate, the low
// end. ratio says how many times better than the baseline Shoal is, as the
// median over the pairs that were measured right after one another; floor_p50
// is what no way to a sandbox can beat. What a row has not got is null.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	s, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		os.Exit(2) // the flags have said why
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, s, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

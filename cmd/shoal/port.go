package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"shoal/messaging"
	"shoal/sandbox"
)

type forwardCmd struct {
	named
	Ports string `arg:"" help:"Port in the sandbox, or <local>:<port>; local 0 = any free one."`
}

// Run accepts connections on the loopback and carries them into the sandbox
// until it is interrupted.
func (c *forwardCmd) Run(a *app) error {
	local, remote, err := parsePorts(c.Ports)
	if err != nil {
		return err
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	if _, err := client.Get(a.ctx, c.target()); err != nil {
		return err // a wrong name is said now, not at the first connection
	}
	var lc net.ListenConfig
	l, err := lc.Listen(a.ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(local)))
	if err != nil {
		return fmt.Errorf("listen on port %d: %w", local, err)
	}
	fmt.Fprintf(a.stderr, "shoal: %s leads to port %d of %s; Ctrl-C ends it\n", l.Addr(), remote, c.Sandbox)
	stop := context.AfterFunc(a.ctx, func() { _ = l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if a.ctx.Err() != nil {
				return nil
			}
			return err
		}
		wg.Go(func() { a.carry(client, c.target(), remote, conn) })
	}
}

func parsePorts(s string) (local, remote int, err error) {
	l, r, both := strings.Cut(s, ":")
	if !both {
		r = l
	}
	local, err = strconv.Atoi(l)
	if err == nil {
		remote, err = strconv.Atoi(r)
	}
	if err != nil || local < 0 || local > 65535 || remote < 1 || remote > 65535 {
		return 0, 0, sandbox.InvalidField("ports", "%q; write 8080 or 3000:8080", s)
	}
	return local, remote, nil
}

// carry joins one connection with one into the sandbox.
func (a *app) carry(client *messaging.Client, t messaging.Target, port int, conn net.Conn) {
	defer conn.Close()
	ctx, cancel := contextFor(a.ctx, startTime)
	inside, err := client.Dial(ctx, t, port)
	cancel()
	if err != nil {
		fmt.Fprintf(a.stderr, "shoal: port %d: %s\n", port, plain(err))
		return
	}
	defer inside.Close()
	stop := context.AfterFunc(a.ctx, func() {
		_ = conn.Close()
		_ = inside.Close()
	})
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { a.oneWay(inside, conn) })
	wg.Go(func() { a.oneWay(conn, inside) })
	wg.Wait()
}

// oneWay copies until the end and passes it on.
func (a *app) oneWay(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		err = half.CloseWrite()
	}
	if err != nil {
		_ = to.Close()
		_ = from.Close()
		if a.ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			fmt.Fprintf(a.stderr, "shoal: connection: %s\n", plain(err))
		}
	}
}

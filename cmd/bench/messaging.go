package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"shoal/messaging"
	"shoal/sandbox"
)

// messagingRows measure the messaging layer alone, on a NATS server of its own
// and with a handler that does nothing, against NATS request and reply alone.
func messagingRows(ctx context.Context, r *rig) error {
	e, err := newEcho()
	if err != nil {
		return fmt.Errorf("set up the messaging layer alone: %w", err)
	}
	defer e.close()
	get := func(ctx context.Context) error {
		_, err := e.client.Get(ctx, messaging.Target{Sandbox: "bench"})
		return err
	}
	err = r.measure(ctx, probe{
		name: "request", unit: unitMS, baseline: "NATS request", ours: timed(get), base: timed(e.ask),
	})
	if err != nil {
		return err
	}
	const atOnce, total = 64, 6400
	return r.measure(ctx, probe{
		name: "request64", unit: unitRate, more: true, long: true, baseline: "NATS request",
		ours: func(ctx context.Context) (float64, error) { return perSecond(ctx, atOnce, total, get) },
		base: func(ctx context.Context) (float64, error) { return perSecond(ctx, atOnce, total, e.ask) },
	})
}

// echo answers every request at once: through the messaging layer, and on a
// plain subject.
type echo struct {
	nats   *server.Server
	far    *nats.Conn // the answering side
	near   *nats.Conn // the plain asking side
	server *messaging.Server
	client *messaging.Client
}

const echoSubject = "echo"

func newEcho() (_ *echo, err error) {
	e := &echo{}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	e.nats, err = server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		return nil, err
	}
	e.nats.Start()
	if !e.nats.ReadyForConnections(10 * time.Second) {
		return nil, errors.New("the NATS server was not ready in 10 s")
	}
	id := messaging.WorkerID(sandbox.NewID())
	if e.far, err = nats.Connect(e.nats.ClientURL(), messaging.WorkerConnOptions(id)...); err != nil {
		return nil, err
	}
	if e.near, err = nats.Connect(e.nats.ClientURL()); err != nil {
		return nil, err
	}
	if _, err = e.far.Subscribe(echoSubject, func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		return nil, err
	}
	e.server, err = messaging.NewServer(messaging.Config{Conn: e.far, Worker: id, Version: "0.0.0", Handler: nothing})
	if err != nil {
		return nil, err
	}
	if err := e.server.Start(); err != nil {
		return nil, err
	}
	e.client, err = messaging.Connect(e.nats.ClientURL(), messaging.Options{})
	return e, err
}

func nothing(context.Context, *messaging.Request) (any, error) { return messaging.SandboxInfo{}, nil }

func (e *echo) ask(ctx context.Context) error {
	_, err := e.near.RequestWithContext(ctx, echoSubject, make([]byte, 100)) // about as long as a small request
	return err
}

func (e *echo) close() {
	if e.client != nil {
		_ = e.client.Close()
	}
	if e.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = e.server.Shutdown(ctx)
	}
	for _, nc := range []*nats.Conn{e.near, e.far} {
		if nc != nil {
			nc.Close()
		}
	}
	if e.nats != nil {
		e.nats.Shutdown()
		e.nats.WaitForShutdown()
	}
}

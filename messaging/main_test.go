package messaging_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"shoal/messaging"
	"shoal/messaging/messagingtest"
)

// What the example connects to.
var (
	natsURL     string
	natsOptions []nats.Option
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run gives the example a server with a fleet of fakes, and looks for
// goroutines that were left behind.
func run(m *testing.M) int {
	ns, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		log.Fatal(err)
	}
	ns.Start()
	nc, err := nats.Connect("", nats.InProcessServer(ns))
	if err != nil {
		log.Fatal(err)
	}
	natsOptions = append(natsOptions, nats.InProcessServer(ns))
	fake := messagingtest.NewFake(map[string]messagingtest.Program{
		"python3 double.py": func(_ context.Context, p *messagingtest.Proc) int { fmt.Fprintln(p.Stdout(), 42); return 0 },
	})
	stop, err := fake.Serve(nc, messaging.WorkerID("example"))
	if err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	stop()
	nc.Close()
	ns.Shutdown()
	ns.WaitForShutdown()
	time.Sleep(50 * time.Millisecond)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Println(err)
		return 1
	}
	return code
}

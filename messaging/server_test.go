package messaging_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/messaging"
	"shoal/messaging/messagingtest"
	"shoal/sandbox"
)

func startServer(t *testing.T, nc *nats.Conn, worker messaging.WorkerID, h messaging.Handler, change ...func(*messaging.Config)) *messaging.Server {
	t.Helper()
	cfg := messaging.Config{Conn: nc, Worker: worker, Version: "0.1.0", Handler: h}
	for _, c := range change {
		c(&cfg)
	}
	s, err := messaging.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return s
}

// A bare connection asks in JSON and gets one JSON message back.
func TestPlainJSONRequest(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	startServer(t, messagingtest.Conn(t, ns), "w1", func(_ context.Context, r *messaging.Request) (any, error) {
		if _, ok := r.Body.(*messaging.ListRequest); !ok {
			return nil, sandbox.Errorf(sandbox.Internal, "body is %T", r.Body)
		}
		return messaging.ListAnswer{Sandboxes: []messaging.SandboxInfo{{Name: "a.b"}}}, nil
	})
	m := nats.NewMsg("shoal.v1.main.list")
	m.Header.Set("Content-Type", "application/json")
	m.Data = []byte(`{"limit":5}`)
	reply, err := messagingtest.Conn(t, ns).RequestMsg(m, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Worker string
		Error  *sandbox.Error
		Result messaging.ListAnswer
	}
	if err := json.Unmarshal(reply.Data, &a); err != nil {
		t.Fatalf("%v in %s", err, reply.Data)
	}
	if a.Error != nil || a.Worker != "w1" || len(a.Result.Sandboxes) != 1 || a.Result.Sandboxes[0].Name != "a.b" {
		t.Fatalf("answer %s", reply.Data)
	}
}

// One command as a bare JSON connection runs it: started, data, end.
func TestPlainJSONExec(t *testing.T) {
	t.Parallel()
	ns := messagingtest.Server(t)
	startServer(t, messagingtest.Conn(t, ns), "w1", func(ctx context.Context, r *messaging.Request) (any, error) {
		out := r.Output()
		r.Boot, r.Epoch = "boot1", 7
		if err := out.Started(0, messaging.Started{ID: "c1"}); err != nil {
			return nil, err
		}
		if err := out.Data(ctx, sandbox.Stdout, []byte("hi\n")); err != nil {
			return nil, err
		}
		code := 3
		return sandbox.End{Reason: sandbox.Exited, Code: &code, Bytes: 3}, nil
	})
	nc := messagingtest.Conn(t, ns)
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	m := &nats.Msg{Subject: "shoal.v1.main.exec", Reply: inbox, Header: nats.Header{"Content-Type": {"application/json"}}}
	m.Data = []byte(`{"sandbox":"demo","command":{"id":"c1","shell":"echo hi"}}`)
	if err := nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for range 3 {
		got, err := sub.NextMsg(2 * time.Second)
		if err != nil {
			t.Fatalf("%v after %s", err, all.String())
		}
		all.Write(got.Data)
		t.Logf("%s", got.Data)
	}
	for _, want := range []string{`"kind":"started"`, `"boot":"boot1"`, `"kind":"data","command":"c1","epoch":7,"offset":0,"stream":"stdout","data":"aGkK"`, `"kind":"end"`, `"code":3`} {
		if !bytes.Contains(all.Bytes(), []byte(want)) {
			t.Errorf("no %s in %s", want, all.String())
		}
	}
}

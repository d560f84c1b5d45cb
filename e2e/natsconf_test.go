package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"shoal/docker/dockertest"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// secured is a server started from nats.conf itself, with keys of the test.
type secured struct {
	*process
	url   string
	seeds map[string]string // by role: path of the seed file
}

func startSecured(t *testing.T) *secured {
	t.Helper()
	s := &secured{seeds: map[string]string{}}
	env := []string{"SHOAL_NATS_STORE=" + t.TempDir()}
	for _, role := range []string{"WORKER", "OPERATOR", "T1", "T2"} {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, _ := pair.PublicKey()
		seed, _ := pair.Seed()
		s.seeds[role] = filepath.Join(t.TempDir(), role+".seed")
		if err := os.WriteFile(s.seeds[role], seed, 0o600); err != nil {
			t.Fatal(err)
		}
		env = append(env, "SHOAL_NKEY_"+role+"="+public)
	}
	// Command-line flags override the file's addresses and directory, so that
	// the file itself is what is tested.
	port := freePort(t)
	s.url = "nats://127.0.0.1:" + strconv.Itoa(port)
	s.process = start(t, "nats-server", env, "-c", "../nats.conf", "-a", "127.0.0.1", "-p", strconv.Itoa(port), "-m", strconv.Itoa(freePort(t)))
	eventually(t, 10*time.Second, "the server answers", func() error {
		nc, err := nats.Connect(s.url, s.as(t, "OPERATOR", "_operator"))
		if err == nil {
			nc.Close()
		}
		return err
	})
	return s
}

// as returns the options of a role whose inbox prefix is _INBOX.<inbox>.
func (s *secured) as(t *testing.T, role, inbox string) nats.Option {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(s.seeds[role])
	if err != nil {
		t.Fatal(err)
	}
	return func(o *nats.Options) error {
		for _, opt := range []nats.Option{key, nats.CustomInboxPrefix("_INBOX." + inbox), nats.PermissionErrOnSubscribe(true)} {
			if err := opt(o); err != nil {
				return err
			}
		}
		return nil
	}
}

// violations collects what a server refuses on a connection.
type violations struct {
	mu  sync.Mutex
	all []string
}

func (v *violations) option() nats.Option {
	return nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.all = append(v.all, err.Error())
	})
}

func (v *violations) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.all)
}

func (s *secured) connect(t *testing.T, role, inbox string) (*nats.Conn, *violations) {
	t.Helper()
	v := &violations{}
	nc, err := nats.Connect(s.url, s.as(t, role, inbox), v.option())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, v
}

func (s *secured) kernel(t *testing.T, tenant sandbox.Tenant) (*messaging.Client, *violations) {
	t.Helper()
	v := &violations{}
	c, err := messaging.Connect(s.url, messaging.Options{Tenant: tenant}, s.as(t, strings.ToUpper(string(tenant)), string(tenant)), v.option())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, v
}

func TestNATSConf(t *testing.T) {
	t.Parallel()
	dockertest.NeedImage(t)
	s := startSecured(t)
	operator, broken := s.connect(t, "OPERATOR", "_operator")
	js, err := jetstream.New(operator)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Create(t.Context(), js, kv.Config{}); err != nil {
		t.Fatal(err)
	}
	fleetName := dockertest.Fleet(t)
	var workers []*process
	for range 2 {
		workers = append(workers, start(t, "worker", nil, "--nats-url", s.url, "--nats-nkey", s.seeds["WORKER"], "--fleet", fleetName, "--image", dockertest.Image))
	}
	t1, bad1 := s.kernel(t, "t1")
	t2, bad2 := s.kernel(t, "t2")
	eventually(t, 30*time.Second, "the workers serve", func() error {
		_, err := t1.List(t.Context(), messaging.ListRequest{})
		return err
	})
	worksForBoth(t, t1, t2)
	for i, v := range []*violations{broken, bad1, bad2} {
		if v.count() != 0 {
			t.Errorf("role %d was refused something it needs: %v", i, v.all)
		}
	}
	for _, w := range workers {
		data, _ := os.ReadFile(w.log)
		if strings.Contains(strings.ToLower(string(data)), "permissions violation") {
			t.Errorf("a worker was refused something it needs:\n%s", tail(data, 2000))
		}
	}
	attacks(t, s)
}

// worksForBoth runs a sandbox of the same name for two tenants.
func worksForBoth(t *testing.T, kernels ...*messaging.Client) {
	t.Helper()
	for _, c := range kernels {
		info, err := c.Create(t.Context(), messaging.CreateRequest{Name: "same", Limits: sandbox.Limits{MemoryMB: 256}})
		if err != nil {
			t.Fatal(err)
		}
		box := messaging.Target{Sandbox: info.Name, Generation: info.Generation}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if _, err := c.Destroy(ctx, box); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
		r, err := c.Run(t.Context(), box, sandbox.Command{Shell: "echo " + string(c.Tenant()) + " > f; cat f"}, messaging.RunOptions{})
		if err != nil || string(r.Stdout) != string(c.Tenant())+"\n" {
			t.Fatalf("run: %+v, %v", r, err)
		}
		if _, err := c.WriteFile(t.Context(), messaging.PathTarget{Target: box, Path: "/workspace/g"}, []byte("x"), sandbox.WriteOptions{Size: 1}); err != nil {
			t.Fatal(err)
		}
		lock, err := c.Lock(t.Context(), box, "tag", messaging.LockOptions{TTL: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Release(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		list, err := c.List(t.Context(), messaging.ListRequest{})
		if err != nil || len(list.Sandboxes) != 1 {
			t.Fatalf("tenant %s sees %d sandboxes, %v", c.Tenant(), len(list.Sandboxes), err)
		}
	}
}

// attacks tries what a tenant must not be able to do.
func attacks(t *testing.T, s *secured) {
	t.Helper()
	for name, subject := range map[string]string{
		"read another's inbox": "_INBOX.t2.>", "read every inbox": "_INBOX.>", "read everything": ">",
		"read another's requests": "shoal.v1.t2.>", "read all requests": "shoal.v1.*.exec",
		"read another's events": "shoal.v1.t2.event.>", "read the records": "$KV.>",
		"read the fleet's subjects": "shoal.v1._fleet.>", "be a worker without a queue": "shoal.v1.*.create",
	} {
		nc, v := s.connect(t, "T1", "t1")
		_, _ = nc.SubscribeSync(subject)
		_ = nc.Flush()
		refused(t, name, v)
	}
	nc, v := s.connect(t, "T1", "t1")
	_, _ = nc.QueueSubscribeSync("shoal.v1.t1.create", messaging.Queue)
	_ = nc.Flush()
	refused(t, "join the workers' queue group", v)
	for name, subject := range map[string]string{
		"ask as another tenant": "shoal.v1.t2.list", "ask a worker as another tenant": "shoal.v1.t2.at.w.list",
		"speak as a worker to a worker": "shoal.v1._fleet.w.adopt", "forge a record": "$KV.shoal_handles.t1.same",
		"forge a lock": "$KV.shoal_locks.t1.same.tag", "forge an event": "shoal.v1.t1.event.same.exited",
		"forge a reply": "_INBOX.t2.x", "make a consumer": "$JS.API.CONSUMER.CREATE.KV_shoal_handles",
		"read a record": "$JS.API.DIRECT.GET.KV_shoal_handles.$KV.shoal_handles.t2.same", "drop a bucket": "$JS.API.STREAM.DELETE.KV_shoal_handles",
		"read its own record": "$JS.API.DIRECT.GET.KV_shoal_handles.$KV.shoal_handles.t1.same", "read a lock": "$JS.API.DIRECT.GET.KV_shoal_locks.$KV.shoal_locks.t2.same.tag",
		"ask the leader for a record": "$JS.API.STREAM.MSG.GET.KV_shoal_handles", "list the keys": "$JS.API.STREAM.INFO.KV_shoal_handles",
		"speak as the owner of another's command": "shoal.v1.t2.at.w.command.same.c.ack", "look for services": "$SRV.PING",
	} {
		nc, v := s.connect(t, "T1", "t1")
		_ = nc.Publish(subject, []byte("{}"))
		_ = nc.Flush()
		refused(t, name, v)
	}
	for name, subject := range map[string]string{
		"make a bucket": "$JS.API.STREAM.CREATE.KV_more", "change a bucket": "$JS.API.STREAM.UPDATE.KV_shoal_handles",
		"drop a bucket": "$JS.API.STREAM.DELETE.KV_shoal_handles", "empty a bucket": "$JS.API.STREAM.PURGE.KV_shoal_handles",
		"ask as a tenant": "shoal.v1.t1.list",
	} {
		nc, v := s.connect(t, "WORKER", "_worker")
		_ = nc.Publish(subject, []byte("{}"))
		_ = nc.Flush()
		refused(t, "(as a worker) "+name, v)
	}
	nc, v = s.connect(t, "WORKER", "_worker")
	_, _ = nc.SubscribeSync("shoal.v1.*.create") // without the group it would get every request
	_ = nc.Flush()
	refused(t, "(as a worker) hear every request", v)
	nc, v = s.connect(t, "OPERATOR", "_operator")
	_ = nc.Publish("shoal.v1.t1.exec", []byte("{}"))
	_ = nc.Flush()
	refused(t, "(as the operator) run a command", v)
	foreignReply(t, s)
}

func refused(t *testing.T, what string, v *violations) {
	t.Helper()
	eventually(t, 5*time.Second, "a tenant is refused to "+what, func() error {
		if v.count() == 0 {
			return errNotRefused
		}
		return nil
	})
}

var errNotRefused = sandbox.Errorf(sandbox.Internal, "the server allowed it")

// foreignReply: the server lets a tenant name any reply subject, so the worker
// must not answer to another tenant's inbox.
func foreignReply(t *testing.T, s *secured) {
	t.Helper()
	victim, _ := s.connect(t, "T2", "t2")
	sub, err := victim.SubscribeSync("_INBOX.t2.trap")
	if err != nil {
		t.Fatal(err)
	}
	_ = victim.Flush()
	nc, _ := s.connect(t, "T1", "t1")
	m := nats.NewMsg("shoal.v1.t1.list")
	m.Reply = "_INBOX.t2.trap"
	m.Header.Set("Content-Type", "application/json")
	m.Data = []byte("{}")
	if err := nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	if got, err := sub.NextMsg(2 * time.Second); err == nil {
		t.Fatalf("a worker answered to another tenant's inbox: %s", got.Data)
	}
	m.Reply = "_INBOX.t1.mine"
	own, err := nc.SubscribeSync("_INBOX.t1.mine")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	if _, err := own.NextMsg(5 * time.Second); err != nil {
		t.Fatalf("the same request with its own inbox: %v", err)
	}
}

package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"shoal/fleet"
	"shoal/kv"
	"shoal/messaging"
	"shoal/sandbox"
)

// slow is a server whose answers come late now and then.
type slow struct{ server *server.Server }

func (s slow) InProcessConn() (net.Conn, error) {
	c, err := s.server.InProcessConn()
	return slowConn{c}, err
}

type slowConn struct{ net.Conn }

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if rand.IntN(8) == 0 {
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
	return n, err
}

// NK-13: 50 claims on 10 members by three workers, whose reads are delayed and
// some of which know an old record. Each member has one owner; a member that
// another worker has taken over meanwhile is not given away.
func TestNK13FiftyClaimsOnTen(t *testing.T) {
	t.Parallel()
	var started atomic.Int64
	r := newRig(t, 0, nil)
	r.tune = func(c *fleet.Config) {
		c.Warm = 3
		if started.Add(1) == 1 {
			c.Warm = 4
		}
		nc, err := nats.Connect("", nats.InProcessServer(slow{r.srv}), nats.ReconnectBufSize(-1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		c.Store = r.store(nc)    // the records alone: a worker that is slow in all is taken for dead
		c.SweepEvery = time.Hour // the stolen ones stay where they are
	}
	for range 3 {
		r.worker()
	}
	r.warmed(10)
	members := r.members()
	store := r.records()
	stolen := map[sandbox.Name]bool{}
	for name := range members {
		if len(stolen) == 2 {
			break
		}
		e, err := store.Handles.Get(t.Context(), kv.HandleKey(sandbox.PoolTenant, name))
		if err != nil {
			t.Fatal(err)
		}
		e.Value.Owner = "thief"
		if err := store.Handles.Put(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		stolen[name] = true
	}
	var mu sync.Mutex
	claimed := map[sandbox.Name][]sandbox.Name{}
	r.fake().SetHook(func(op string, h sandbox.Handle) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case op == "Claim":
			claimed[h.Pool] = append(claimed[h.Pool], h.Name)
		case op == "Create" && h.Tenant == sandbox.PoolTenant:
			return sandbox.Errorf(sandbox.Busy, "no more members")
		}
		return nil
	})
	var wg sync.WaitGroup
	generations := make([]string, 50)
	for i := range generations {
		wg.Go(func() {
			c := r.kernel("main")
			info, err := c.Create(t.Context(), messaging.CreateRequest{Name: sandbox.Name(fmt.Sprintf("s%d", i))})
			if err != nil {
				if sandbox.CodeOf(err) != sandbox.Busy {
					t.Errorf("create %d: %v", i, err)
				}
				return
			}
			generations[i] = info.Generation
			res, err := c.Run(t.Context(), messaging.Target{Sandbox: info.Name}, sandbox.Command{Shell: fmt.Sprintf("echo %d >> $HOME/who; cat $HOME/who", i)}, messaging.RunOptions{})
			if err != nil || string(res.Stdout) != fmt.Sprintf("%d\n", i) {
				t.Errorf("sandbox %d: %+v, %v", i, res, err)
			}
		})
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	for name, owners := range claimed {
		if len(owners) != 1 || stolen[name] {
			t.Errorf("member %s (stolen %t) was given to %v", name, stolen[name], owners)
		}
	}
	if len(claimed) != 8 {
		t.Errorf("%d members were given away, want 8", len(claimed))
	}
	seen := map[string]bool{}
	for _, g := range generations {
		if g != "" && seen[g] {
			t.Errorf("two sandboxes are one: %s", g)
		}
		seen[g] = true
	}
}

// NK-20: another image drains the members, never what was handed out.
func TestNK20NewRecipeDrainsMembersOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, warm(2))
	r.warmed(2)
	box := r.create("old")
	p, err := r.client.Exec(t.Context(), box, sandbox.Command{Shell: "sleep 4; echo kept"})
	if err != nil {
		t.Fatal(err)
	}
	r.warmed(2)
	old := r.members()
	r.fake().SetRecipe("new")
	soon(t, 30*time.Second, "the members are new ones", func() bool {
		now := r.members()
		for name := range old {
			if _, still := now[name]; still {
				return false
			}
		}
		return len(now) == 2
	})
	var out strings.Builder
	if end, err := p.Copy(t.Context(), &out, &out); err != nil || end.Code == nil || *end.Code != 0 || out.String() != "kept\n" {
		t.Fatalf("the sandbox that was handed out: %+v, %v, %q", end, err, out.String())
	}
	time.Sleep(time.Second) // two sweeps
	r.run(box, "true")
	r.poolSettles(2)
}

// NK-12 with a pool: what was handed out comes back under its name, the members
// of the lost bucket go.
func TestNK12WithAPool(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, func(c *fleet.Config) { c.Warm, c.SweepGrace = 1, time.Second })
	r.warmed(2)
	info, err := r.client.Create(t.Context(), messaging.CreateRequest{Name: "given", Env: map[string]string{"SECRET": "s"}, Metadata: map[string]string{"n": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	r.run(messaging.Target{Sandbox: "given"}, "echo kept > $HOME/file")
	r.warmed(2)
	lost := r.members()
	r.loseBuckets()
	soon(t, 60*time.Second, "it is listed again, complete", func() bool {
		list, err := r.client.List(t.Context(), messaging.ListRequest{})
		return err == nil && len(list.Sandboxes) == 1 && list.Sandboxes[0].Metadata["n"] == "1" && list.Sandboxes[0].Generation == info.Generation
	})
	if got := r.run(messaging.Target{Sandbox: "given", Generation: info.Generation}, "cat $HOME/file; echo $SECRET"); got != "kept\ns\n" {
		t.Errorf("%q", got)
	}
	soon(t, 60*time.Second, "the pool is a new one", func() bool {
		now := r.members()
		for name := range lost {
			if _, still := now[name]; still {
				return false
			}
		}
		return len(now) == 2
	})
	if _, err := r.client.Destroy(t.Context(), messaging.Target{Sandbox: "given"}); err != nil {
		t.Fatal(err)
	}
	r.warmed(2)
	if objects, _ := r.engine.List(t.Context()); len(objects) != 2 {
		t.Errorf("%d sandboxes in the engine", len(objects))
	}
}

// A claim that ended before the agent knew of it is not rebuilt: nobody was
// given that sandbox.
func TestNK12UnfinishedClaimIsNotRebuilt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, func(c *fleet.Config) { c.SweepGrace = 100 * time.Millisecond })
	spec := sandbox.Spec{
		Tenant: sandbox.PoolTenant, Name: "m", Generation: sandbox.NewID(), Bucket: "lost",
		Limits: sandbox.DefaultLimits(), Egress: sandbox.Egress{Mode: sandbox.EgressNone},
	}
	h, err := r.engine.Create(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec.Tenant, spec.Name = "main", "half"
	if _, err := r.fake().Claim(t.Context(), h, spec); err != nil {
		t.Fatal(err)
	}
	r.worker()
	soon(t, 20*time.Second, "it is removed", func() bool {
		objects, err := r.engine.List(t.Context())
		return err == nil && len(objects) == 0
	})
}

package docker_test

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/sandbox"
)

// Attach carries bytes of all values both ways and ends with the stream.
func TestAttachCarriesBytes(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	h := mustCreate(t, p, newSpec("bytes"))
	s, err := p.Attach(t.Context(), h, false)
	if err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Write(sent); err != nil {
			t.Errorf("write: %v", err)
		}
	})
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("what comes back differs: %v", err)
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	eventually(t, "the attach program has ended", func() bool {
		top, err := dockertest.Client(t).ContainerTop(t.Context(), h.Ref, nil)
		return err == nil && len(top.Processes) == 2 // init and agent
	})
	mustDestroy(t, p, h)
}

func TestAttachEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	h := mustCreate(t, p, newSpec("context"))
	ctx, cancel := context.WithCancel(t.Context())
	s, err := p.Attach(ctx, h, false)
	if err != nil {
		t.Fatal(err)
	}
	cancel() // it bounded the attaching only
	if _, err := s.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	_ = s.Close() // read to its end above
	_, err = p.Attach(ctx, h, false)
	wantCode(t, err, sandbox.Canceled)
	mustDestroy(t, p, h)
}

// LC-17: somebody touches the container behind our back.
func TestTouchedBehindOurBack(t *testing.T) {
	t.Parallel()
	p, fleet := newProvider(t)
	c := dockertest.Client(t)
	h := mustCreate(t, p, newSpec("touched"))

	if err := c.ContainerStop(t.Context(), h.Ref, container.StopOptions{Timeout: new(int)}); err != nil {
		t.Fatal(err)
	}
	s, err := p.Attach(t.Context(), h, true) // auto-start
	if err != nil {
		t.Fatalf("attach after a stop: %v (%v)", err, cause(err))
	}
	_ = s.Close() // nothing was written
	if err := c.ContainerRemove(t.Context(), h.Ref, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	_, err = p.Attach(t.Context(), h, true)
	wantCode(t, err, sandbox.Gone)
	if o, err := p.Inspect(t.Context(), h); err != nil || o.State != sandbox.Absent {
		t.Errorf("inspect: %s, %v; want absent", o.State, err)
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Complete || list[0].Generation != h.Generation {
		t.Errorf("list: %+v, %v; want the volumes as an incomplete sandbox", list, err)
	}
	mustDestroy(t, p, h)
	dockertest.NothingLeft(t, fleet)
}

// RL-05, RL-08: whatever a create leaves when its worker dies carries labels
// and is found.
func TestListShowsHalfDoneObjects(t *testing.T) {
	t.Parallel()
	image := dockertest.NewRegistry(t, ours).Ref(t, "standin:1")
	p, fleet := newProvider(t, func(c *docker.Config) { c.Image = image })
	h := mustCreate(t, p, newSpec("half"))
	c := dockertest.Client(t)
	if err := c.ContainerRemove(t.Context(), h.Ref, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.VolumeRemove(t.Context(), "shoal-t1-half."+h.Generation+"-skills", false); err != nil {
		t.Fatal(err)
	}
	foreign, _ := newProvider(t, func(c *docker.Config) { c.Image = image })
	if list, err := foreign.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("another fleet sees %v, %v", list, err)
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Complete || list[0].Bucket != "bucket-1" || time.Since(list[0].Created) > time.Minute {
		t.Fatalf("list: %+v, %v; want one incomplete sandbox", list, err)
	}
	if err := foreign.DestroyByName(t.Context(), h.Tenant, h.Name); err != nil {
		t.Fatal(err)
	}
	if list, _ := p.List(t.Context()); len(list) != 1 {
		t.Error("another fleet removed it")
	}
	if err := p.DestroyByName(t.Context(), h.Tenant, h.Name); err != nil {
		t.Fatal(err)
	}
	dockertest.NothingLeft(t, fleet)
}

func TestEngineIDIsTheSameForAll(t *testing.T) {
	t.Parallel()
	ids := make(chan string, 8)
	var wg sync.WaitGroup
	for range cap(ids) {
		p, _ := newProvider(t, func(c *docker.Config) { c.Image = dockertest.Image })
		wg.Go(func() {
			id, err := p.EngineID(t.Context())
			if err != nil {
				t.Error(err)
			}
			ids <- id
		})
	}
	wg.Wait()
	close(ids)
	first := <-ids
	for id := range ids {
		if id != first || sandbox.ValidateID("engine", id) != nil {
			t.Errorf("ids %q and %q", first, id)
		}
	}
}

package docker_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"shoal/docker"
	"shoal/docker/dockertest"
	"shoal/sandbox"
)

// The engine stops and comes back: streams end, nothing is called gone, and the
// sandboxes are there again.
func TestEngineRestart(t *testing.T) {
	t.Parallel()
	image := dockertest.NewRegistry(t, ours).Ref(t, "standin:1")
	d := dockertest.NewDaemon(t)
	p, err := docker.New(docker.Config{Endpoint: d.Endpoint(), Image: image})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	h := mustCreate(t, p, newSpec("restart"))
	s, err := p.Attach(t.Context(), h, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	broke := make(chan error, 1)
	go func() {
		_, err := s.Read(make([]byte, 1))
		broke <- err
	}()

	d.Stop()
	select {
	case err := <-broke:
		if err == nil || !errors.Is(err, io.EOF) && sandbox.CodeOf(err) == "" {
			t.Errorf("the stream: %v, want an end", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the stream hangs although the engine is gone")
	}
	_, err = p.Inspect(t.Context(), h)
	wantCode(t, err, sandbox.Engine)
	_, err = p.Attach(t.Context(), h, true)
	wantCode(t, err, sandbox.Engine)
	wantCode(t, p.Destroy(t.Context(), h), sandbox.Engine)
	_, err = p.Create(t.Context(), newSpec("while-away"), nil)
	wantCode(t, err, sandbox.Engine)

	d.Start()
	if o, err := p.Inspect(t.Context(), h); err != nil || o.State != sandbox.Stopped {
		t.Errorf("after the restart: %s, %v; want stopped", o.State, err)
	}
	again, err := p.Attach(t.Context(), h, true)
	if err != nil {
		t.Fatalf("attach after the restart: %v (%v)", err, cause(err))
	}
	if _, err := again.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(again, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	_ = again.Close() // the engine goes with the test
	mustDestroy(t, p, h)
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left on the engine: %v, %v", list, err)
	}
}

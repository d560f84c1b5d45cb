package docker_test

import (
	"errors"
	"io"
	"syscall"
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
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, make([]byte, 1)); err != nil { // from now on the program surely runs
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, s) // what the engine says before the end is a matter of its version
		ended <- err
	}()

	d.Stop()
	select {
	case err := <-ended:
		if err != nil && sandbox.CodeOf(err) == "" && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the stream ended with %v, want an end or a code", err)
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

package docker

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"shoal/sandbox"
)

// KL-10: an engine that does not notice the end of a program leaves its stream
// open; who reads it is not left waiting for a sandbox that was ended.
func TestStreamsEndWithTheirContainer(t *testing.T) {
	for what, end := range map[string]func(*Provider) error{
		"destroy": func(p *Provider) error { return p.Destroy(t.Context(), handle) },
		"suspend": func(p *Provider) error { return p.Suspend(t.Context(), handle, sandbox.SuspendDisk) },
		"reset":   func(p *Provider) error { return p.Reset(t.Context(), handle) },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFakeEngine(t)
			f.on("POST /containers/"+object+"/exec", func(w http.ResponseWriter, _ *fakeEngine) {
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, `{"Id":"abc"}`)
			})
			f.on("POST /exec/abc/start", func(w http.ResponseWriter, _ *fakeEngine) {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { _ = conn.Close() })
				_, _ = io.WriteString(conn, "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
			})
			f.on("POST /containers/"+object+"/stop", func(w http.ResponseWriter, f *fakeEngine) {
				f.state = "exited"
				w.WriteHeader(http.StatusNoContent)
			})
			p := f.provider(t)
			s, err := p.Attach(t.Context(), handle, false)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := s.Read(make([]byte, 1))
				ended <- err
			}()
			if err := end(p); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err == nil {
					t.Error("bytes out of nothing")
				}
			case <-time.After(20 * time.Second):
				t.Error("the stream hangs")
			}
			_ = s.Close() // it was closed
			if len(p.links.open) != 0 {
				t.Errorf("%d streams are kept", len(p.links.open))
			}
		})
	}
}

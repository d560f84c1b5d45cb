package launch_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"shoal/agent/boxtest"
	"shoal/agent/proc"
)

// attached is a running attach, with the other end of each of its pipes.
type attached struct {
	*proc.Child
	stdin, stdout *os.File
}

func attach(t *testing.T, socket string) *attached {
	t.Helper()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child, err := proc.NewOwnReaper().Fork(func() (int, error) {
		return syscall.ForkExec(boxtest.Program("attach"), []string{"attach", socket}, &syscall.ProcAttr{
			Files: []uintptr{inR.Fd(), outW.Fd(), 2},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = inR.Close(), outW.Close()
	t.Cleanup(func() { _, _ = inW.Close(), outR.Close() })
	return &attached{child, inW, outR}
}

func (a *attached) ends(t *testing.T, within time.Duration) proc.Exit {
	t.Helper()
	began := time.Now()
	select {
	case <-a.Done():
		t.Logf("attach ended after %v", time.Since(began))
	case <-time.After(within):
		t.Error("attach does not end")
		_ = a.Signal(syscall.SIGKILL)
	}
	return a.Exit()
}

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	_ = l.(*net.UnixListener).SetDeadline(time.Now().Add(20 * time.Second))
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// The socket appears after attach has begun; then bulk goes both ways at once.
func attachJoins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	a := attach(t, path)
	time.Sleep(200 * time.Millisecond)
	conn := accept(t, listen(t, path))
	up, down := make([]byte, 8<<20), make([]byte, 8<<20)
	_, _ = rand.Read(up)
	_, _ = rand.Read(down)
	sent := make(chan error, 2)
	go func() { _, err := a.stdin.Write(up); sent <- err }()
	go func() { _, err := conn.Write(down); sent <- err }()
	gotUp := make(chan []byte, 1)
	go func() {
		b := make([]byte, len(up))
		_, _ = io.ReadFull(conn, b)
		gotUp <- b
	}()
	gotDown := make([]byte, len(down))
	if _, err := io.ReadFull(a.stdout, gotDown); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(gotDown, down) || !bytes.Equal(<-gotUp, up) {
		t.Error("bytes were changed on the way")
	}
	for range cap(sent) {
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
	// What the agent says last arrives before attach ends.
	if _, err := conn.Write([]byte("last")); err != nil {
		t.Error(err)
	}
	conn.Close()
	if rest, err := io.ReadAll(a.stdout); string(rest) != "last" || err != nil {
		t.Errorf("after the agent's end: %q, %v", rest, err)
	}
	if e := a.ends(t, 5*time.Second); e.Code != 0 || e.Signal != 0 {
		t.Errorf("got %+v", e)
	}
}

// The worker is gone, the agent floods: attach must not go on for nobody, neither
// while somebody drains its output nor while nobody does.
func attachEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	l := listen(t, path)
	for _, drained := range []bool{true, false} {
		a := attach(t, path)
		conn := accept(t, l)
		go func() { _, _ = io.Copy(conn, flood{}) }()
		if drained {
			go func() { _, _ = io.Copy(io.Discard, a.stdout) }()
		}
		time.Sleep(200 * time.Millisecond)
		a.stdin.Close()
		a.ends(t, 5*time.Second)
	}
	// The same with a full way up, which nobody reads at the agent's end.
	a := attach(t, path)
	accept(t, l)
	_ = a.stdin.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	_, _ = io.Copy(a.stdin, flood{})
	a.stdin.Close()
	a.ends(t, 5*time.Second)
}

type flood struct{}

func (flood) Read(p []byte) (int, error) { return len(p), nil }

func attachAlone(t *testing.T) {
	if e := attach(t, "/etc/passwd/agent.sock").ends(t, 5*time.Second); e.Code != 3 {
		t.Errorf("got %+v", e)
	}
}

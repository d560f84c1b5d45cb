package e2b

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"shoal/agent"
	"shoal/e2b/e2btest"
	"shoal/image"
	"shoal/sandbox"
)

// guestDir holds the program in the containers; it is TestMain's.
var guestDir string

// builtGuest builds the program in the containers once.
var builtGuest = sync.OnceValues(func() (string, error) {
	path := filepath.Join(guestDir, "guest")
	return path, e2btest.BuildGuest(context.Background(), path)
})

func TestMain(m *testing.M) {
	var err error
	if guestDir, err = os.MkdirTemp("", "e2bguest"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m,
		goleak.Cleanup(func(code int) {
			_ = os.RemoveAll(guestDir)
			os.Exit(code)
		}),
		// idle connections of transports that live as long as their provider
		goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// contained is a provider on a fake whose sandboxes are containers, made by the
// very template that `shoal e2b template` prints.
func contained(t *testing.T, c e2btest.Config, change ...func(*Config)) (*e2btest.Server, *Provider) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Docker; run without -short")
	}
	plan, err := Template(TemplateOptions{Image: "registry.example.com/shoal-sandbox:1"})
	if err != nil {
		t.Fatal(err)
	}
	guest, err := builtGuest()
	if err != nil {
		t.Fatal(err)
	}
	c.Backend = e2btest.NewDocker(t, image.Name(), plan.Build, guest)
	fake := e2btest.New(t, c)
	cfg := Config{APIKey: NewSecret(e2btest.Key), Template: "shoal", APIURL: fake.APIURL(), Domain: fake.Domain()}
	for _, f := range change {
		f(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return fake, p
}

// claimed attaches and claims.
func claimed(t *testing.T, p *Provider, h sandbox.Handle, wake bool) *agent.Session {
	t.Helper()
	rwc, err := p.Attach(t.Context(), h, wake)
	if err != nil {
		t.Fatal(err)
	}
	s, err := agent.Connect(t.Context(), rwc, agent.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Claim(t.Context(), agent.Claim{Boot: s.Hello().Boot, Epoch: s.Hello().Epoch + 1}); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a command to its end, acknowledging as a worker does: what came,
// then the end.
func run(t *testing.T, s *agent.Session, script string) (string, sandbox.End) {
	t.Helper()
	c := sandbox.Command{ID: sandbox.CommandID(sandbox.NewID()), Shell: script}.WithDefaults()
	st, err := s.Start(t.Context(), agent.StartRequest{Boot: s.Hello().Boot, Command: c})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var out strings.Builder
	var offset int64
	for {
		e, err := st.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out.Write(e.Data)
		offset = e.Offset + int64(len(e.Data))
		if e.End != nil {
			if err := st.AckEnd(t.Context(), offset); err != nil {
				t.Fatal(err)
			}
			return out.String(), *e.End
		}
	}
}

// inside is one sandbox in a container that the subtests use one after another:
// each container costs seconds.
type inside struct {
	whole *testing.T // sessions outlive the subtest that opens them
	fake  *e2btest.Server
	p     *Provider
	h     sandbox.Handle
	s     *agent.Session
}

func TestAgentInAContainer(t *testing.T) {
	fake, p := contained(t, e2btest.Config{})
	began := time.Now()
	h, err := p.Create(t.Context(), spec("a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &inside{whole: t, fake: fake, p: p, h: h}
	b.s = claimed(t, p, h, true)
	out, end := run(t, b.s, "id -u; echo hello")
	if out != "1000\nhello\n" || end.Code == nil || *end.Code != 0 {
		t.Fatalf("%q %+v", out, end)
	}
	t.Logf("create to first result: %s", time.Since(began))
	t.Run("at most two requests for a short command", b.requests)
	t.Run("E2-10 no upload is root's", b.uploads)
	t.Run("E2-09 takeover after a break", b.takeover)
	t.Run("E2-14 what was written before the pause is there after it", b.lastWrite)
	t.Run("memory is kept over a pause", b.memory)
	t.Run("files are kept over a pause without memory", b.files)
	t.Run("a reset has a new boot", b.reset)
	t.Run("a second attach takes over", b.second)
	t.Run("E2-09 after a resume all is killed by its mark", b.killAll)
}

func (b *inside) requests(t *testing.T) {
	for range 3 {
		run(t, b.s, "true") // the first ones may carry what was left over
	}
	b.fake.Forget()
	const commands = 20
	for range commands {
		run(t, b.s, "true")
	}
	requests := b.fake.Requests()
	for _, r := range requests {
		if !strings.HasSuffix(r.Path, "/SendInput") {
			t.Errorf("%s %s", r.Method, r.Path)
		}
	}
	t.Logf("%d requests for %d commands", len(requests), commands)
	if len(requests) > 2*commands+signs {
		t.Errorf("%d requests for %d commands", len(requests), commands)
	}
}

// signs are requests of the stream itself that may fall between the commands: it
// shows now and then that it lives.
const signs = 2

// uploads writes through a link that leads out: E2B's own upload would follow it
// as root, the agent writes as the user, and E2B's is never used.
func (b *inside) uploads(t *testing.T) {
	run(t, b.s, "ln -s /etc /workspace/l")
	b.fake.Forget()
	for _, path := range []string{"/workspace/l/evil", "/workspace/l/passwd"} {
		if _, err := b.s.WriteFile(t.Context(), path, sandbox.WriteOptions{Size: 4}, strings.NewReader("evil")); sandbox.CodeOf(err) != sandbox.Permission {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := b.s.WriteFile(t.Context(), "/workspace/good", sandbox.WriteOptions{Size: 4}, strings.NewReader("good")); err != nil {
		t.Error(err)
	}
	if out, _ := run(t, b.s, "cat /workspace/good; stat -c %u /workspace/good; ls /etc/evil; grep -c evil /etc/passwd"); !strings.HasPrefix(out, "good1000\n") || strings.Contains(out, "1\n1") {
		t.Errorf("%q", out)
	}
	for _, r := range b.fake.Requests() {
		if strings.HasPrefix(r.Path, "/files") || strings.HasPrefix(r.Path, "/filesystem.") {
			t.Errorf("%s %s", r.Method, r.Path)
		}
	}
}

// lastWrite pauses right after a write, at the end of the sandbox's time and
// without memory.
func (b *inside) lastWrite(t *testing.T) {
	for name, pause := range map[string]func() error{
		"at the end of its time": func() error { b.fake.Expire(b.h.Ref); return nil },
		"without memory":         func() error { return b.p.Suspend(t.Context(), b.h, sandbox.SuspendDisk) },
	} {
		run(t, b.s, "echo '"+name+"' > /workspace/last")
		if err := pause(); err != nil {
			t.Fatal(err)
		}
		_ = b.s.Close()
		b.s = claimed(b.whole, b.p, b.h, true)
		if out, _ := run(t, b.s, "cat /workspace/last"); out != name+"\n" {
			t.Errorf("%s: %q", name, out)
		}
	}
}

func (b *inside) memory(t *testing.T) {
	boot := b.s.Hello().Boot
	_ = b.s.Close()
	if err := b.p.Suspend(t.Context(), b.h, sandbox.SuspendMemory); err != nil {
		t.Fatal(err)
	}
	b.s = claimed(b.whole, b.p, b.h, true)
	if b.s.Hello().Boot != boot {
		t.Error("the agent was started anew")
	}
}

func (b *inside) files(t *testing.T) {
	run(t, b.s, "echo kept > /workspace/f")
	boot := b.s.Hello().Boot
	_ = b.s.Close()
	if err := b.p.Suspend(t.Context(), b.h, sandbox.SuspendDisk); err != nil {
		t.Fatal(err)
	}
	b.s = claimed(b.whole, b.p, b.h, true) // nobody started the agent but this attach
	if b.s.Hello().Boot == boot {
		t.Error("the agent lived on")
	}
	if out, _ := run(t, b.s, "cat /workspace/f"); out != "kept\n" {
		t.Errorf("%q", out)
	}
}

func (b *inside) reset(t *testing.T) {
	boot := b.s.Hello().Boot
	if err := b.p.Reset(t.Context(), b.h); err != nil {
		t.Fatal(err)
	}
	_ = b.s.Close()
	b.s = claimed(b.whole, b.p, b.h, false)
	if b.s.Hello().Boot == boot {
		t.Error("the same boot")
	}
}

func (b *inside) second(t *testing.T) {
	other := claimed(b.whole, b.p, b.h, false)
	select {
	case <-b.s.Done():
	case <-time.After(20 * time.Second):
		t.Error("the older session lives on")
	}
	if out, _ := run(t, other, "echo mine"); out != "mine\n" {
		t.Errorf("%q", out)
	}
	b.s = other
}

// takeover breaks the stream in mid-output and follows on a new one.
func (b *inside) takeover(t *testing.T) {
	const lines = 60
	c := sandbox.Command{ID: "long", Shell: fmt.Sprintf("for i in $(seq %d); do echo $i; sleep 0.05; done", lines)}.WithDefaults()
	st, err := b.s.Start(t.Context(), agent.StartRequest{Boot: b.s.Hello().Boot, Command: c})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	var offset int64
	for offset < 20 {
		e, err := st.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got.Write(e.Data)
		offset = e.Offset + int64(len(e.Data))
	}
	b.fake.CutStreams(b.h.Ref)
	for err == nil {
		_, err = st.Recv(t.Context())
	}
	if errors.Is(err, io.EOF) || sandbox.CodeOf(err) == "" {
		t.Errorf("the break looks like an end: %v", err)
	}
	b.s = claimed(b.whole, b.p, b.h, false)
	again, err := b.s.Follow(t.Context(), agent.FollowRequest{ID: "long", Offset: offset})
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := again.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.End != nil {
			break
		}
		if e.Offset != offset {
			t.Fatalf("output at %d after %d", e.Offset, offset)
		}
		got.Write(e.Data)
		offset += int64(len(e.Data))
		if err := again.Ack(t.Context(), offset); err != nil {
			t.Fatal(err)
		}
	}
	if err := again.AckEnd(t.Context(), offset); err != nil {
		t.Error(err)
	}
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	if got.String() != want.String() {
		t.Errorf("lost or repeated: %q", got.String())
	}
}

// killAll lets the sandbox's time end with a stream open. E2B's own list of
// processes knows none of those that the agent started.
func (b *inside) killAll(t *testing.T) {
	c := sandbox.Command{ID: "bg", Shell: "setsid sleep 1234 & sleep 1234", Background: true}.WithDefaults()
	st, err := b.s.Start(t.Context(), agent.StartRequest{Boot: b.s.Hello().Boot, Command: c})
	if err != nil {
		t.Fatal(err)
	}
	st.Close()
	for deadline := time.Now().Add(20 * time.Second); ; {
		if out, _ := run(t, b.s, "pgrep -fc 'sleep 123[4]'"); out == "2\n" || out == "3\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the command does not run")
		}
	}
	b.fake.Expire(b.h.Ref)
	b.s = claimed(b.whole, b.p, b.h, true)
	killed, err := b.s.Kill(t.Context(), sandbox.KillRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := run(t, b.s, "pgrep -fc 'sleep 123[4]'"); strings.TrimSpace(out) != "0" {
		t.Errorf("%s left after %+v", out, killed)
	}
}

package e2b

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"shoal/agent"
	"shoal/e2b/e2btest"
	"shoal/sandbox"
)

// live is a provider on the account that the environment names. Without one
// the test is skipped: nothing else here needs an account.
func live(t *testing.T) *Provider {
	t.Helper()
	key, template := os.Getenv("E2B_API_KEY"), os.Getenv("E2B_TEMPLATE")
	if key == "" || template == "" {
		t.Skip("live E2B tests are skipped: set E2B_API_KEY and E2B_TEMPLATE (E2B_API_URL and E2B_DOMAIN are optional)")
	}
	p, err := New(Config{
		APIKey: NewSecret(key), Template: template, APIURL: os.Getenv("E2B_API_URL"), Domain: os.Getenv("E2B_DOMAIN"),
		Fleet: "live-test", TimeoutSeconds: 300, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestLiveAssumptions checks, one by one, what the rest of this package takes
// for granted about the cloud and what could not be seen in the open source.
func TestLiveAssumptions(t *testing.T) {
	p := live(t)
	h, err := p.Create(t.Context(), spec("live"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := p.Destroy(ctx, h); err != nil {
			t.Error(err)
		}
	})
	checkAssumptions(t, p, h, 2*time.Minute)
}

// TestFakeKeepsTheAssumptions runs the same checks on the fake: they are code
// that works, and the fake is no kinder than what they ask for.
func TestFakeKeepsTheAssumptions(t *testing.T) {
	_, p := contained(t, e2btest.Config{})
	h, err := p.Create(t.Context(), spec("live"), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkAssumptions(t, p, h, time.Second)
}

func checkAssumptions(t *testing.T, p *Provider, h sandbox.Handle, silence time.Duration) {
	for _, c := range []struct {
		assumption string
		check      func(*testing.T, *Provider, sandbox.Handle)
	}{
		{"a wrong key is 401 or 403", liveWrongKey},
		{"an unknown sandbox is a 404 with the text that proves it", liveUnknown},
		{"the first version's create knows secure and autoPause", liveReadBack},
		{"a listing filters by metadata", liveListing},
		{"connect extends a running sandbox, never shortens, and answers 200", liveExtend},
		{"refreshes extends, and is 404 for a paused one", liveRefresh},
		{"pausing twice is 409 with a known text", livePauseTwice},
		{"the attach program runs as root and the agent answers", liveAgent},
		{"input of the largest size passes the proxy", liveLargeInput},
		{"a silent stream is kept", func(t *testing.T, p *Provider, h sandbox.Handle) { liveSilence(t, p, h, silence) }},
		{"a pause keeps the memory", liveMemory},
		{"a pause without memory boots anew, with 201", liveReset},
		{"the network can be replaced while running", liveNetwork},
		{"the sandbox has no way out, neither IPv4 nor IPv6", liveNoWayOut},
	} {
		t.Run(strings.ReplaceAll(c.assumption, " ", "_"), func(t *testing.T) { c.check(t, p, h) })
	}
}

func liveWrongKey(t *testing.T, p *Provider, _ sandbox.Handle) {
	c := *p.api
	c.key = NewSecret("e2b_0000000000000000000000000000000000000000")
	_, err := c.list(t.Context(), nil)
	if e := asAPI(err); e == nil || (e.Status != http.StatusUnauthorized && e.Status != http.StatusForbidden) {
		t.Error(err)
	}
}

func liveUnknown(t *testing.T, p *Provider, _ sandbox.Handle) {
	if _, err := p.api.get(t.Context(), "i00000000000000000000"); !isGone(err) {
		t.Error(err)
	}
}

func liveReadBack(t *testing.T, p *Provider, h sandbox.Handle) {
	d, err := p.api.get(t.Context(), h.Ref)
	if err != nil || d.AccessToken.IsZero() || d.Lifecycle == nil || d.Lifecycle.OnTimeout != "pause" {
		t.Errorf("%+v, %v", d, err)
	}
}

func liveListing(t *testing.T, p *Provider, h sandbox.Handle) {
	found, err := p.api.list(t.Context(), p.ofGeneration(h.Tenant, h.Name, h.Generation))
	if err != nil || len(found) != 1 || found[0].SandboxID != h.Ref {
		t.Errorf("%+v, %v", found, err)
	}
	none, err := p.api.list(t.Context(), map[string]string{metaFleet: "no such fleet & more=é"})
	if err != nil || len(none) != 0 {
		t.Errorf("%+v, %v", none, err)
	}
}

func liveExtend(t *testing.T, p *Provider, h sandbox.Handle) {
	before, err := p.api.get(t.Context(), h.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if _, resumed, err := p.api.connect(t.Context(), h.Ref, 60, false); err != nil || resumed {
		t.Errorf("resumed %t, %v", resumed, err)
	}
	after, err := p.api.get(t.Context(), h.Ref)
	if err != nil || after.EndAt.Before(before.EndAt) {
		t.Errorf("%s, then %s, %v", before.EndAt, after.EndAt, err)
	}
}

func liveRefresh(t *testing.T, p *Provider, h sandbox.Handle) {
	if err := p.api.refresh(t.Context(), h.Ref, 10*time.Minute); err != nil {
		t.Error(err)
	}
	if d, err := p.api.get(t.Context(), h.Ref); err != nil || time.Until(d.EndAt) < 9*time.Minute {
		t.Errorf("%s, %v", d.EndAt, err)
	}
	if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
		t.Fatal(err)
	}
	if err := p.api.refresh(t.Context(), h.Ref, time.Minute); asAPI(err) == nil || asAPI(err).Status != http.StatusNotFound {
		t.Error(err)
	}
	if err := p.Resume(t.Context(), h); err != nil {
		t.Fatal(err)
	}
}

func livePauseTwice(t *testing.T, p *Provider, h sandbox.Handle) {
	for range 2 {
		if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
			t.Error(err)
		}
	}
	if err := p.api.pause(t.Context(), h.Ref, true); !alreadyPaused(err) {
		t.Error(err)
	}
	if err := p.Resume(t.Context(), h); err != nil {
		t.Fatal(err)
	}
}

func liveAgent(t *testing.T, p *Provider, h sandbox.Handle) {
	s := claimed(t, p, h, true)
	if out, end := run(t, s, "id -u; grep Seccomp: /proc/self/status"); !strings.HasPrefix(out, "1000\n") || end.Code == nil {
		t.Errorf("%q %+v", out, end)
	}
}

func liveLargeInput(t *testing.T, p *Provider, h sandbox.Handle) {
	r, err := p.wake(t.Context(), h.Ref, h.Name)
	if err != nil {
		t.Fatal(err)
	}
	checkLargeInput(t, p.envdOf(h.Ref, r))
}

func liveSilence(t *testing.T, p *Provider, h sandbox.Handle, silence time.Duration) {
	t.Helper()
	s := claimed(t, p, h, true)
	select {
	case <-s.Done():
		t.Error(s.Err())
	case <-time.After(silence):
	}
	if out, _ := run(t, s, "echo there"); out != "there\n" {
		t.Errorf("%q", out)
	}
}

func bootOf(t *testing.T, p *Provider, h sandbox.Handle) string {
	t.Helper()
	rwc, err := p.Attach(t.Context(), h, true)
	if err != nil {
		t.Fatal(err)
	}
	s, err := agent.Connect(t.Context(), rwc, agent.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return s.Hello().Boot
}

func liveMemory(t *testing.T, p *Provider, h sandbox.Handle) {
	before := bootOf(t, p, h)
	if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
		t.Fatal(err)
	}
	if after := bootOf(t, p, h); after != before {
		t.Error("the agent was started anew")
	}
}

func liveReset(t *testing.T, p *Provider, h sandbox.Handle) {
	before := bootOf(t, p, h)
	if err := p.Reset(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if after := bootOf(t, p, h); after == before {
		t.Error("the answer was 201, but the memory was kept")
	}
}

func liveNetwork(t *testing.T, p *Provider, h sandbox.Handle) {
	for _, allow := range [][]string{{"example.com", "*.example.org"}, {}} {
		if err := p.api.setNetwork(t.Context(), h.Ref, networkUpdate{AllowOut: allow, DenyOut: []string{everything}, AllowInternetAccess: len(allow) > 0}); err != nil {
			t.Error(err)
		}
	}
}

func liveNoWayOut(t *testing.T, p *Provider, h sandbox.Handle) {
	s := claimed(t, p, h, true)
	for _, target := range []string{"https://1.1.1.1", "https://[2606:4700:4700::1111]", "http://169.254.169.254"} {
		out, _ := run(t, s, "curl --noproxy '*' -sS -k -o /dev/null -m 5 "+target+" && echo reached")
		if strings.Contains(out, "reached") {
			t.Errorf("%s was reached", target)
		}
	}
}

// TestDaemon is the part that needs an envd and no control plane: one of one's
// own where E2B_ENVD_URL and E2B_ENVD_TOKEN name it, else the fake's.
func TestDaemon(t *testing.T) {
	if os.Getenv("E2B_ENVD_URL") == "" {
		t.Setenv("E2B_ENVD_URL", e2btest.New(t, e2btest.Config{}).Daemon(t, "a-token")+"/")
		t.Setenv("E2B_ENVD_TOKEN", "a-token")
	}
	e := &envd{
		http: newHTTP(newTransport()), base: strings.TrimRight(os.Getenv("E2B_ENVD_URL"), "/"),
		id: "iabcdefghijklmnopqrst", token: NewSecret(os.Getenv("E2B_ENVD_TOKEN")),
	}
	t.Run("largest input", func(t *testing.T) { checkLargeInput(t, e) })
	t.Run("end", func(t *testing.T) {
		body, pid, err := e.startProcess(t.Context(), shell("cat; exit 7"), true)
		if err != nil {
			t.Fatal(err)
		}
		s := newStream(e, body, pid)
		defer s.Close()
		if _, err := s.Write([]byte("in")); err != nil {
			t.Fatal(err)
		}
		expect(t, s, "in")
		if err := e.closeStdin(t.Context(), pid); err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(s)
		var end *exitError
		if !errors.As(err, &end) || end.ExitCode != 7 {
			t.Error(err)
		}
	})
	t.Run("wrong token", func(t *testing.T) {
		wrong := *e
		wrong.token = NewSecret("wrong")
		_, _, err := wrong.startProcess(t.Context(), shell("true"), false)
		if x := asEnvd(err); x == nil || !x.unauthorized() {
			t.Error(err)
		}
	})
	t.Run("missing directory", func(t *testing.T) {
		p := shell("true")
		p.Cwd = "/no/such"
		_, _, err := e.startProcess(t.Context(), p, false)
		if x := asEnvd(err); x == nil || x.Code != "invalid_argument" {
			t.Error(err)
		}
	})
}

// checkLargeInput sends inputs of the largest size through cat.
func checkLargeInput(t *testing.T, e *envd) {
	t.Helper()
	body, pid, err := e.startProcess(t.Context(), cat, true)
	if err != nil {
		t.Fatal(err)
	}
	s := newStream(e, body, pid)
	defer s.Close()
	data := bytes.Repeat([]byte("0123456789abcdef"), 2*maxInput/16)
	wrote := make(chan error, 1)
	go func() {
		_, err := s.Write(data)
		wrote <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%v, equal %t", err, bytes.Equal(got, data))
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

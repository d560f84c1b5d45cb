package e2b

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"shoal/e2b/e2btest"
	"shoal/sandbox"
)

// TestRows holds, under their ids, the cases that other E2B clients failed. The
// others that need a container (E2-09, E2-10, E2-14) are in TestAgentInAContainer.
func TestRows(t *testing.T) {
	for _, row := range []struct {
		id, promise string
		test        func(*testing.T)
	}{
		{"E2-01", "a life is never shortened", testLifeIsNeverShortened},
		{"E2-02", "a sandbox that would be killed is refused", testSandboxThatWouldBeKilledIsRefused},
		{"E2-02", "the end of its time pauses, also after a resume", testEndOfTimePausesAndResumeBringsBack},
		{"E2-03", "a resume sends a body, and 400 is not gone", testResumeSendsABody},
		{"E2-05", "only what E2B denies is gone", testGoneIsOnlyWhatE2BDenies},
		{"E2-05", "a sandbox that vanishes under a command is gone with its files", testVanishesUnderACommand},
		{"E2-06", "rate limits are waited for", testRateLimitsAreWaitedFor},
		{"E2-06", "a create is repeated only when surely not done", testCreateIsRepeatedOnlyWhenSurelyNotDone},
		{"E2-06", "a create is not doubled", testCreateIsNotDoubled},
		{"E2-07", "a create says everything", testCreateSaysEverything},
		{"E2-12", "ends are told apart", testEndsAreToldApart},
		{"E2-13", "a resume is one for all", testResumeIsOneForAll},
		{"E2-14", "a pause without memory comes after a sync", testSyncComesFirst},
	} {
		t.Run(row.id+" "+row.promise, row.test)
	}
}

// testVanishesUnderACommand: what is lost under an open stream is a break, never
// a command's own end, and what follows is told that the files are lost.
func testVanishesUnderACommand(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p, other := newProvider(t, fake), newProvider(t, fake)
	h := create(t, p, "a")
	s, err := p.Attach(t.Context(), h, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := io.WriteString(s, "x"); err != nil {
		t.Fatal(err)
	}
	expect(t, s, "x")
	if err := other.Destroy(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(s); err == nil {
		t.Error("the end looks like one of the process itself")
	}
	for _, wake := range []bool{true, false} {
		_, err := p.Attach(t.Context(), h, wake)
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Code != sandbox.Gone || !strings.Contains(e.Message, "files are lost") {
			t.Errorf("wake %t: %v", wake, err)
		}
	}
}

// testSyncComesFirst: a worker asks for a sync before every pause that drops the
// memory, also one that never spoke to the sandbox before. A sync that fails or
// hangs does not stop the pause.
func testSyncComesFirst(t *testing.T) {
	for name, pause := range map[string]func(*Provider, sandbox.Handle) error{
		"suspend": func(p *Provider, h sandbox.Handle) error { return p.Suspend(t.Context(), h, sandbox.SuspendDisk) },
		"reset":   func(p *Provider, h sandbox.Handle) error { return p.Reset(t.Context(), h) },
	} {
		t.Run(name, func(t *testing.T) {
			fake := e2btest.New(t, e2btest.Config{})
			h := create(t, newProvider(t, fake), "a")
			stranger := newProvider(t, fake)
			fake.Forget()
			if err := pause(stranger, h); err != nil {
				t.Fatal(err)
			}
			requests := fake.Requests()
			sync := slices.IndexFunc(requests, func(r e2btest.Request) bool {
				return strings.HasSuffix(r.Path, "/Start") && strings.Contains(string(r.Body), "/bin/sync")
			})
			paused := slices.IndexFunc(requests, func(r e2btest.Request) bool { return strings.HasSuffix(r.Path, "/pause") })
			if sync < 0 || paused < sync {
				t.Errorf("sync is request %d, pause %d", sync, paused)
			}
			if err := stranger.Resume(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			fake.Inject(e2btest.Fault{Match: "POST /process.Process/Start", Status: 500, Body: e2btest.BodyInternal})
			if err := pause(stranger, h); err != nil {
				t.Errorf("after a sync that failed: %v", err)
			}
		})
	}
}

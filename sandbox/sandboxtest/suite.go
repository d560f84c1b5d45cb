package sandboxtest

import (
	"context"
	"os"
	"testing"
	"time"

	"shoal/agent"
	"shoal/sandbox"
)

// Subject is a provider under test, and what a test must know of its engine.
type Subject struct {
	Provider sandbox.Provider
	// Image is given to specs; "" is the provider's default.
	Image string
	// MissingImage is a reference that nobody has, ForeignImage one without the
	// agent's label; "" leaves the case out.
	MissingImage, ForeignImage string
	// Real says that commands run isolated as the sandbox user. The fake's do
	// not, and cases that would hurt the test's own machine are left out.
	Real bool
	// PidsLimit says that the engine bounds the processes of a sandbox by a
	// cgroup (runc).
	PidsLimit bool
	// Heavy runs the cases about numbers with large ones. Each such promise is
	// the agent's and the same on every engine, so that one subject is enough.
	Heavy bool
	// Known are cases that the engine itself fails: the case's name → why. They
	// are skipped.
	Known map[string]string
}

// whole reports whether cases about long times and large numbers run in full
// length, as `make whole` asks for. The assertions are the same either way.
var whole = os.Getenv("SHOAL_WHOLE") != ""

// limit bounds each wait of a case; generous, as other tests may use the machine.
var limit = lasting(time.Minute, 10*time.Minute)

// lasting returns how long a case lasts: shortly, or its full length when the
// whole suite is asked for.
func lasting(shortly, full time.Duration) time.Duration {
	if whole {
		return full
	}
	return shortly
}

// Case is one promise.
type Case struct {
	// ID of the fault that the promise excludes, "" if it has none.
	ID string
	// Promise names the subtest.
	Promise string
	// Needs says what the subject must have.
	Needs func(s *Subject) bool
	run   func(t *testing.T, x *suite)
}

// Name is the subtest's name.
func (c Case) Name() string {
	if c.ID == "" {
		return c.Promise
	}
	return c.ID + " " + c.Promise
}

// Cases returns the whole suite.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{lifeCases, fenceCases, execCases, outputCases, killCases, fileCases, insideCases} {
		all = append(all, group...)
	}
	return all
}

// Run runs every case against the subject that setup makes. It must be called
// from a test whose name contains Conformance.
func Run(t *testing.T, setup func(t *testing.T) Subject) {
	x := &suite{Subject: setup(t)}
	for _, c := range Cases() {
		if c.Needs != nil && !c.Needs(&x.Subject) {
			continue
		}
		t.Run(c.Name(), func(t *testing.T) {
			if why := x.Known[c.Name()]; why != "" {
				t.Skipf("known of this engine: %s", why)
			}
			c.run(t, x)
		})
	}
	x.close(t)
}

func isReal(s *Subject) bool { return s.Real }

// suite runs cases. Those that need no sandbox of their own share two: one that
// runs all the time, and one that is suspended, woken and reset.
type suite struct {
	Subject
	shared, sleeper *attached
}

// attached is a sandbox with the session of its present owner.
type attached struct {
	x    *suite
	spec sandbox.Spec
	h    sandbox.Handle
	s    *agent.Session
}

func (x *suite) spec(name string) sandbox.Spec {
	return sandbox.Spec{
		Tenant: "conformance", Name: sandbox.Name(name), Generation: sandbox.NewID(), Bucket: "bucket-c", Image: x.Image,
		Limits: sandbox.Limits{CPU: 1, MemoryMB: 512, DiskMB: 64, Pids: 256},
		Egress: sandbox.Egress{Mode: sandbox.EgressNone},
	}
}

// create makes a sandbox that is destroyed at the end of the test.
func (x *suite) create(t *testing.T, spec sandbox.Spec) sandbox.Handle {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	h, err := x.Provider.Create(ctx, spec, nil)
	if err != nil {
		t.Fatalf("create: %v", explain(err))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*limit)
		defer cancel()
		if err := x.Provider.Destroy(ctx, h); err != nil {
			t.Errorf("destroy: %v", explain(err))
		}
	})
	return h
}

// fresh returns a new sandbox, attached.
func (x *suite) fresh(t *testing.T) *attached {
	t.Helper()
	b := x.made(t, x.spec("fresh"))
	b.attach(t)
	return b
}

// made returns a new sandbox that nobody has attached to.
func (x *suite) made(t *testing.T, spec sandbox.Spec) *attached {
	t.Helper()
	return &attached{x: x, spec: spec, h: x.create(t, spec)}
}

package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"shoal/messaging"
	"shoal/sandbox"
)

// Hosts that several kernels add at once, through several workers, are all in
// the list; and what became of the egress is explained.
func TestEgressAddLosesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, nil)
	box := r.create("x")
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			if _, err := r.kernel("main").AllowEgress(t.Context(), box, fmt.Sprintf("h%d.example", i), "all.example"); err != nil {
				t.Errorf("add %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	e, err := r.client.Egress(t.Context(), box)
	if err != nil || e.Mode != sandbox.EgressAllowlist || len(e.Hosts) != 13 {
		t.Fatalf("%d hosts: %v, %v", len(e.Hosts), e.Hosts, err)
	}
	for range 4 { // whoever is asked
		x, err := r.kernel("main").Explain(t.Context(), box)
		if err != nil || !slices.ContainsFunc(x.Lines, func(s string) bool { return strings.Contains(s, "0 connections out were allowed") }) {
			t.Fatalf("explain: %q, %v", x.Lines, err)
		}
	}
	_, err = r.client.SetEgress(t.Context(), box, sandbox.Egress{Mode: sandbox.EgressNone})
	if err != nil {
		t.Fatal(err)
	}
	req := messaging.EgressSetRequest{Target: box, Egress: sandbox.Egress{Mode: sandbox.EgressNone}, Add: true}
	code(t, req.Validate(), sandbox.Invalid)
}

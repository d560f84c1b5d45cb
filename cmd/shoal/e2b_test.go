package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"shoal/e2b"
)

// TestE2BTemplate prints the steps and both bodies, without a worker or NATS.
func TestE2BTemplate(t *testing.T) {
	run := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
		return a.main(t.Context(), args), out.String(), errs.String()
	}
	const image = "registry.example.com/box:1"
	code, out, errs := run("e2b", "template", "--image", image, "--cpu", "4", "--memory-mb", "4096")
	for _, want := range []string{"docker push " + image, "4 cores and 4096 MiB", "POST /v3/templates", `"fromImage": "` + image + `"`, `"startCmd"`} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("code %d, no %q in\n%s%s", code, want, out, errs)
		}
	}
	code, out, _ = run("--json", "e2b", "template", "--image", image)
	var plan e2b.TemplatePlan
	if err := json.Unmarshal([]byte(out), &plan); err != nil || code != 0 || len(plan.Steps) == 0 || len(plan.Build) == 0 {
		t.Errorf("code %d, %v\n%s", code, err, out)
	}
	if code, _, errs = run("e2b", "template", "--image", image, "--memory-mb", "1001"); code == 0 || !strings.Contains(errs, "memoryMb") {
		t.Errorf("code %d, %s", code, errs)
	}
}

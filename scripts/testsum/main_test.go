package main

import (
	"errors"
	"strings"
	"testing"
)

const events = `{"Action":"output","Package":"p","Test":"TestA","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:3: no such runtime\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
`

func TestSummary(t *testing.T) {
	tests := map[string]struct {
		in     string
		want   []string
		absent string
		fails  bool
	}{
		"passes and skips": {
			in:     events + `{"Action":"pass","Package":"p","Elapsed":1.5}` + "\n",
			want:   []string{"ok      p (1.5s)", "skipped p TestB: b_test.go:3: no such runtime", "1 passed, 0 failed, 1 skipped"},
			absent: "noise",
		},
		"shows what failed": {
			in: events + `{"Action":"output","Package":"p","Test":"TestC","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestC","Elapsed":0.2}
`,
			want:   []string{"FAIL    p TestC (0.2s)", "got 1, want 2", "1 passed, 1 failed, 1 skipped"},
			absent: "noise",
			fails:  true,
		},
		"shows a broken build": {
			in: events + `{"ImportPath":"q","Action":"build-output","Output":"undefined: x\n"}
{"Action":"fail","Package":"q","FailedBuild":"q"}
`,
			want:  []string{"undefined: x", "failed  q"},
			fails: true,
		},
		"nothing ran": {in: "", want: []string{"0 passed"}, fails: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(strings.NewReader(tt.in), &out)
			if errors.Is(err, errFailed) != tt.fails {
				t.Errorf("error %v, want a failure: %v", err, tt.fails)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output has no %q:\n%s", want, out.String())
				}
			}
			if tt.absent != "" && strings.Contains(out.String(), tt.absent) {
				t.Errorf("output shows %q of a test that passed", tt.absent)
			}
		})
	}
}

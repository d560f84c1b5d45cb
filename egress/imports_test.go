package egress_test

import (
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The package must stay fit for a process of its own, and no setting may reach its
// resolver or dialer: so it imports nothing of this module, and neither reads the
// environment nor flags.
func TestImports(t *testing.T) {
	t.Parallel()
	allowed := map[string]bool{"code.dny.dev/ssrf": true, "golang.org/x/net/publicsuffix": true}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			seen++
			foreign := strings.Contains(path, ".") || strings.HasPrefix(path, "shoal")
			if foreign && !allowed[path] || path == "os" || path == "flag" || path == "syscall" {
				t.Errorf("%s imports %s", file.Name(), path)
			}
		}
	}
	if seen == 0 {
		t.Error("no imports seen")
	}
}

package sandboxtest_test

import (
	"testing"

	"shoal/sandbox/sandboxtest"
)

func TestConformanceOfTheFake(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) sandboxtest.Subject {
		f := newFake(t)
		f.SetImage("foreign:1", false)
		return sandboxtest.Subject{Provider: f, MissingImage: "missing:1", ForeignImage: "foreign:1"}
	})
}

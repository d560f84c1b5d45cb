package e2btest_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"

	"shoal/image"
)

// needDocker lets quick runs leave out what needs containers.
func needDocker(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Docker; run without -short")
	}
}

func sandboxImage(t *testing.T) string {
	t.Helper()
	return image.Name()
}

func unzip(data []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	out, _ := io.ReadAll(z)
	return out
}

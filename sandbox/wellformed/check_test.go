package wellformed_test

import (
	"bytes"
	"errors"
	"testing"

	"shoal/sandbox/wellformed"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	const depth = 16
	nested := bytes.Repeat([]byte{0x91}, depth-1)
	good := [][]byte{
		{0xc0},
		{0x7f},
		{0xe0},
		{0x80},
		{0x90},
		{0xa1, 'a'},
		{0x81, 0xa1, 'a', 0x01},
		{0xc4, 1, 9},
		{0xd9, 1, 'a'},
		{0xdc, 0, 1, 0xc0},
		{0xde, 0, 1, 1, 2},
		{0xcb, 0, 0, 0, 0, 0, 0, 0, 0},
		{0xd4, 1, 2},
		{0xc7, 1, 5, 9},
		append(bytes.Clone(nested), 0xc0),
	}
	for _, b := range good {
		if err := wellformed.Check(b, depth); err != nil {
			t.Errorf("%x: %v", b, err)
		}
	}
	bad := [][]byte{
		{},
		{0xc1},
		{0x81},
		{0x91},
		{0xa1},
		{0xc0, 0xc0},
		{0xc4, 2, 9},
		{0xc6, 0xff, 0xff, 0xff, 0xff},
		{0xdd, 0xff, 0xff, 0xff, 0xff},
		{0xdf, 0xff, 0xff, 0xff, 0xff, 1},
		{0xdf, 0x7f, 0xff, 0xff, 0xff},
		{0xd8, 1},
		{0xcb, 0},
		append(bytes.Clone(nested), 0x91, 0xc0), bytes.Repeat([]byte{0x91}, 1<<20),
	}
	for _, b := range bad {
		if err := wellformed.Check(b, depth); !errors.Is(err, wellformed.ErrMalformed) {
			t.Errorf("%x: %v", b[:min(len(b), 20)], err)
		}
	}
}

package messaging

import (
	"strings"
	"testing"

	"shoal/sandbox"
)

// What came already is skipped, wherever a piece of it begins or ends.
func TestSegmentsThatOverlap(t *testing.T) {
	t.Parallel()
	s := &stream{opened: true, news: make(chan struct{}, 1)}
	for _, g := range []Segment{
		{Offset: 0, Stream: sandbox.Stdout, Data: []byte("abcd")},
		{Offset: 0, Stream: sandbox.Stdout, Data: []byte("abcd")},
		{Offset: 0, Stream: sandbox.Stdout, Data: []byte("ab")},
		{Offset: 2, Stream: sandbox.Stdout, Data: []byte("cdef")},
		{Offset: 4, Lost: 10},
		{Offset: 6, Lost: 8},
		{Offset: 12, Stream: sandbox.Stderr, Data: []byte("xxgh")},
	} {
		s.takeSegment(g)
	}
	var text strings.Builder
	var lost int64
	for _, g := range s.segs {
		text.WriteString(string(g.Data))
		lost += g.Lost
	}
	if text.String() != "abcdefgh" || lost != 8 || s.recv != 16 {
		t.Errorf("%q, %d lost, next %d", text.String(), lost, s.recv)
	}
}

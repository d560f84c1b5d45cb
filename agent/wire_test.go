package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"
	"testing/iotest"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"shoal/sandbox"
)

var testTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestFrames(t *testing.T) {
	t.Parallel()
	var b []byte
	b, err := appendFrame(b, kindOutput, output{Offset: 5, Stream: sandbox.Stderr, Data: []byte("hello")})
	if err != nil {
		t.Fatal(err)
	}
	b = appendBytes(b, []byte("raw"))
	if b, err = appendFrame(b, kindEOF, nil); err != nil {
		t.Fatal(err)
	}
	r := newFrameReader(iotest.OneByteReader(bytes.NewReader(b)), maxAnswer)
	k, body, err := r.next()
	var o output
	if err != nil || k != kindOutput || decode(body, &o) != nil || o.Offset != 5 || o.Stream != sandbox.Stderr || string(o.Data) != "hello" {
		t.Errorf("%v %+v %v", k, o, err)
	}
	if k, body, err := r.next(); err != nil || k != kindBytes || string(body) != "raw" {
		t.Errorf("%v %q %v", k, body, err)
	}
	if k, body, err := r.next(); err != nil || k != kindEOF || len(body) != 0 {
		t.Errorf("%v %q %v", k, body, err)
	}
	if _, _, err := r.next(); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the end: %v", err)
	}
}

func TestFrameBounds(t *testing.T) {
	t.Parallel()
	header := func(n uint32) []byte { return append(binary.BigEndian.AppendUint32(nil, n), byte(kindBytes)) }
	limit := newFrameReader(bytes.NewReader(append(header(10), make([]byte, 10)...)), 10)
	if _, _, err := limit.next(); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	if _, _, err := newFrameReader(bytes.NewReader(header(11)), 10).next(); !errors.Is(err, errFrame) {
		t.Errorf("above the limit: %v", err)
	}
	cut := newFrameReader(bytes.NewReader(header(maxAnswer)), maxAnswer)
	if _, _, err := cut.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
	if cap(cut.body) > trustedLength {
		t.Errorf("a length alone claimed %d bytes", cap(cut.body))
	}
}

// slowReader gives a byte, then a time-out, then the next byte.
type slowReader struct {
	r    io.Reader
	wait bool
}

var errSlow = errors.New("slow")

func (s *slowReader) Read(p []byte) (int, error) {
	if s.wait = !s.wait; s.wait {
		return 0, errSlow
	}
	return s.r.Read(p[:1])
}

// TestFrameReaderGoesOn checks that an interruption in a frame loses nothing.
func TestFrameReaderGoesOn(t *testing.T) {
	t.Parallel()
	b := appendBytes(nil, []byte("0123456789"))
	r := newFrameReader(&slowReader{r: bytes.NewReader(b)}, 100)
	for range 100 {
		_, body, err := r.next()
		if err == nil {
			if string(body) != "0123456789" {
				t.Errorf("%q", body)
			}
			return
		}
		if !errors.Is(err, errSlow) {
			t.Fatal(err)
		}
	}
	t.Error("no frame")
}

// TestUnknownFieldsAreIgnored is what lets two versions speak.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	t.Parallel()
	b, err := msgpack.Marshal(map[string]any{"protocol": 1, "boot": "b", "epoch": 3, "future": map[string]any{"x": []int{1, 2}}})
	if err != nil {
		t.Fatal(err)
	}
	var h Hello
	if err := decode(b, &h); err != nil || h.Protocol != 1 || h.Epoch != 3 {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestGuard(t *testing.T) {
	t.Parallel()
	frame := func(kind byte, flags uint16, id, length uint32) []byte {
		b := []byte{0, kind}
		b = binary.BigEndian.AppendUint16(b, flags)
		b = binary.BigEndian.AppendUint32(b, id)
		return binary.BigEndian.AppendUint32(b, length)
	}
	const ping = 2
	tests := map[string]struct {
		in []byte
		ok bool
	}{
		"data":                {append(frame(muxData, muxSYN, 2, 3), "abc"...), true},
		"empty data":          {frame(muxData, muxSYN, 2, 0), true},
		"window":              {frame(muxWindow, 0, 1, 1<<30), true},
		"go away":             {frame(muxGoAway, 0, 0, 0), true},
		"ping":                {frame(ping, 1, 0, 7), false},
		"unknown":             {frame(9, 0, 0, 0), false},
		"our own stream ids":  {frame(muxWindow, muxSYN, 3, 0), false},
		"stream 0":            {frame(muxWindow, muxSYN, 0, 0), false},
		"more than a window":  {frame(muxData, 0, 2, streamWindow+1), false},
		"as much as a window": {append(frame(muxData, 0, 2, streamWindow), make([]byte, streamWindow)...), true},
	}
	for name, tt := range tests {
		g := newGuard(nopCloser{Reader: iotest.HalfReader(bytes.NewReader(tt.in))}, 0)
		out, err := io.ReadAll(g)
		if (err == nil) != tt.ok || tt.ok && !bytes.Equal(out, tt.in) || !tt.ok && len(out) > 0 {
			t.Errorf("%s: %d of %d bytes, %v", name, len(out), len(tt.in), err)
		}
	}
}

type nopCloser struct {
	io.Reader
	io.Writer
}

func (nopCloser) Close() error { return nil }

// FuzzFrames feeds bytes to the frame reader and whatever it yields to every
// body: no panic, no growth beyond what was read.
func FuzzFrames(f *testing.F) {
	for _, v := range []any{
		request{Op: opStart, Body: []byte{0x80}},
		Hello{Protocol: 1, Boot: "b"},
		output{Data: []byte("x")},
		gap{Bytes: 1},
		ended{End: sandbox.End{Reason: sandbox.Exited, Code: new(0), Survivors: []int{1}}},
		input{Credit: 5},
		role{},
		ack{End: true},
		stdin{Data: []byte("x")},
		signal{Seq: 1},
		resize{Rows: 1},
		Claim{Locks: map[sandbox.Tag]string{"a": "b"}, Spec: &sandbox.Spec{}},
		StartRequest{Command: sandbox.Command{Env: map[string]string{"a": "b"}}},
		commands{Commands: []sandbox.CommandInfo{{Started: testTime}}},
		sandbox.FileList{Entries: []sandbox.FileInfo{{MTime: testTime}}},
		sandbox.Error{Code: sandbox.Busy},
		sandbox.Stats{},
	} {
		b, err := appendFrame(nil, kindAnswer, v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(binary.BigEndian.AppendUint32(nil, math.MaxUint32))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newFrameReader(bytes.NewReader(b), maxAnswer)
		for {
			_, body, err := r.next()
			if err != nil {
				return
			}
			if cap(r.body) > len(b)+2*trustedLength {
				t.Fatalf("%d bytes of room for %d", cap(r.body), len(b))
			}
			for _, v := range []any{
				&request{}, &Hello{}, &output{}, &gap{}, &ended{}, &input{}, &ack{}, &stdin{}, &Claim{}, &Claimed{}, &StartRequest{},
				&commands{}, &sandbox.FileList{}, &sandbox.Error{}, &sandbox.Stats{}, &sandbox.KillResult{},
			} {
				_ = decode(body, v)
			}
		}
	})
}

package docker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"

	"shoal/sandbox"
)

func piece(channel byte, text string) string {
	header := []byte{channel, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(header[4:], uint32(len(text)))
	return string(header) + text
}

func streamOf(r io.Reader) *stream { return newStream(nil, bufio.NewReaderSize(r, streamBuffer)) }

func TestStreamTakesTheHeadersOut(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	raw := piece(1, "one ") + piece(1, "") + piece(2, "noise") + piece(1, long) + piece(1, " two")
	for what, r := range map[string]io.Reader{
		"whole":        strings.NewReader(raw),
		"byte by byte": iotest.OneByteReader(strings.NewReader(raw)),
		"in halves":    iotest.HalfReader(strings.NewReader(raw)),
	} {
		got, err := io.ReadAll(streamOf(r))
		if err != nil || string(got) != "one "+long+" two" {
			t.Errorf("%s: %d bytes, %v", what, len(got), err)
		}
	}
}

func TestStreamEnds(t *testing.T) {
	for what, c := range map[string]struct {
		raw  string
		want error
	}{
		"between pieces": {piece(1, "ab"), nil},
		"in a piece":     {piece(1, "abcd")[:10], io.ErrUnexpectedEOF},
		"in a header":    {piece(1, "ab") + piece(1, "cd")[:3], io.ErrUnexpectedEOF},
		"at once":        {"", nil},
	} {
		if _, err := io.ReadAll(streamOf(strings.NewReader(c.raw))); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

func TestStreamThatIsMalformed(t *testing.T) {
	for what, raw := range map[string]string{
		"stdin's channel":   piece(0, "x"),
		"an unknown one":    piece(3, "x"),
		"padding":           "\x01\x00\x01\x00\x00\x00\x00\x01x",
		"a terminal's text": "HTTP/1.1 200 OK\r\n\r\n",
	} {
		if _, err := io.ReadAll(streamOf(strings.NewReader(raw))); sandbox.CodeOf(err) != sandbox.Engine {
			t.Errorf("%s: %v, want engine", what, err)
		}
	}
}

// EX-07: the engine's own words on a failed start are not output.
func TestStreamOfAProgramThatCannotStart(t *testing.T) {
	for _, words := range []string{
		"OCI runtime exec failed: exec failed: unable to start container process: exec: \"/opt/shoal/bin/attach\": no such file: unknown\r\n",
		"cannot exec in a stopped state: unknown\r\n",
	} {
		for what, r := range map[string]io.Reader{
			"whole":        strings.NewReader(piece(1, words)),
			"byte by byte": iotest.OneByteReader(strings.NewReader(piece(1, words))),
		} {
			got, err := io.ReadAll(streamOf(r))
			if e := sandbox.AsError(err); len(got) > 0 || e == nil || e.Code != sandbox.Engine || e.Reason != "attach" {
				t.Errorf("%s: %q, %v; want engine, reason attach, and no output", what, got, err)
			}
		}
		later := piece(1, "x") + piece(1, words) // a program may say so itself
		if got, err := io.ReadAll(streamOf(strings.NewReader(later))); err != nil || string(got) != "x"+words {
			t.Errorf("later: %q, %v", got, err)
		}
	}
}

// The engine's words on an exec that it lost are not output either: they would
// fill up a frame of the agent's that was cut in the middle.
func TestStreamThatTheEngineLost(t *testing.T) {
	for what, before := range map[string]string{"at the beginning": "", "later": "agent's"} {
		raw := piece(1, before) + piece(1, "exec attach failed: unexpected EOF\r\n")
		got, err := io.ReadAll(streamOf(strings.NewReader(raw)))
		if e := sandbox.AsError(err); string(got) != before || e == nil || e.Code != sandbox.OutcomeUnknown || e.Reason != "detached" {
			t.Errorf("%s: %q, %v; want outcome_unknown, reason detached, after %q", what, got, err, before)
		}
	}
}

func TestStreamWithoutAnAgent(t *testing.T) {
	raw := piece(2, "attach: the agent does not answer on its socket\n") + piece(2, strings.Repeat("y", 1<<20))
	s := streamOf(strings.NewReader(raw))
	_, err := io.ReadAll(s)
	if e := sandbox.AsError(err); e == nil || e.Reason != "agent" || !strings.Contains(e.Unwrap().Error(), "socket") {
		t.Errorf("%v, want the attach program's word as the cause", err)
	}
	if len(s.words) > maxWords {
		t.Errorf("%d bytes of stderr are kept, at most %d are allowed", len(s.words), maxWords)
	}
}

func TestStreamWritesAsItIsAndCloses(t *testing.T) {
	ours, theirs := net.Pipe()
	s := newStream(ours, bufio.NewReader(ours))
	go func() {
		_, _ = s.Write([]byte("in"))
		_ = s.Close()
	}()
	got, err := io.ReadAll(theirs)
	if err != nil || string(got) != "in" {
		t.Errorf("%q, %v", got, err)
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(piece(1, "abc") + piece(2, "d") + piece(1, "")))
	f.Add([]byte(piece(1, "OCI runtime exec failed: x\r\n")))
	f.Add([]byte(piece(1, "x") + piece(1, "exec attach failed: x\r\n")))
	f.Add([]byte("\x01\x00\x00\x00\xff\xff\xff\xffabc"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := streamOf(bytes.NewReader(raw))
		got, err := io.ReadAll(io.LimitReader(s, 1<<20))
		if len(got) > len(raw) || len(s.words) > maxWords {
			t.Errorf("%d bytes out of %d, %d words", len(got), len(raw), len(s.words))
		}
		again, err2 := io.ReadAll(io.LimitReader(streamOf(iotest.OneByteReader(bytes.NewReader(raw))), 1<<20))
		if !bytes.Equal(got, again) || (err == nil) != (err2 == nil) {
			t.Errorf("the division into reads matters: %q, %v against %q, %v", got, err, again, err2)
		}
	})
}

package messaging

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"shoal/sandbox"
)

// exchange is one run of a command as it goes over the wire, without the parts
// that differ each time.
func exchange(t *testing.T) []string {
	t.Helper()
	var lines []string
	add := func(what string, body []byte) {
		lines = append(lines, fmt.Sprintf("%s %s", what, hex.EncodeToString(body)))
	}
	body := func(v any) []byte {
		data, err := encode(v, false)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	frame := func(f Frame) []byte {
		var buf bytes.Buffer
		f.Command, f.Epoch = "c1", 3
		if err := f.encode(&buf); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	meta := Meta{Worker: "w1", Boot: "b1", Epoch: 3}
	code := 0
	add("request", body(&ExecRequest{Target: Target{Sandbox: "demo"}, Boot: "b1", Command: sandbox.Command{ID: "c1", Argv: []string{"echo", "hi"}}}))
	add("started", frame(Frame{Kind: FrameStarted, Answer: body(Answer{Meta: meta, Result: Started{ID: "c1", Pid: 7}})}))
	add("data", frame(Frame{Kind: FrameData, Stream: sandbox.Stdout, Data: []byte("hi\n")}))
	add("end", frame(Frame{Kind: FrameEnd, Offset: 3, Answer: body(Answer{Meta: meta, Result: sandbox.End{Reason: sandbox.Exited, Code: &code, Bytes: 3}})}))
	add("ack", body(StreamRequest{Stream: "r1", Offset: 3, Ended: true}))
	return lines
}

// The page about the protocol names everything that there is, and its example
// is what really goes over the wire.
func TestProtocolPage(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("..", "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	for op := range operations {
		if name := strings.TrimPrefix(string(op), "command."); !strings.Contains(page, "`"+name+"`") {
			t.Errorf("the operation %s is not on the page", name)
		}
	}
	for _, code := range sandbox.Codes() {
		if !strings.Contains(page, "`"+string(code)+"`") {
			t.Errorf("the code %s is not on the page", code)
		}
	}
	for _, name := range []string{
		HeaderRequest, HeaderTimeout, HeaderDeadline, HeaderProtocol, HeaderAccept, HeaderWord, HeaderWorker, HeaderContent,
		HeaderError, HeaderErrorText, HeaderTenant, HeaderReply, HeaderFrom, HeaderTraceParent, HeaderTraceState,
		string(VerbAck), string(VerbCancel), string(VerbData), string(AreaCommand), string(AreaFile), string(AreaPort),
	} {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("%s is not on the page", name)
		}
	}
	for kind := FrameStarted; kind <= FrameMoved; kind++ {
		if !strings.Contains(page, fmt.Sprintf("| %d | `%s` |", kind, kind)) {
			t.Errorf("the frame %d %s is not on the page", kind, kind)
		}
	}
	for _, line := range exchange(t) {
		what, bytes, _ := strings.Cut(line, " ")
		if !strings.Contains(squeezed(page), bytes) {
			t.Errorf("the example's %s is not what goes over the wire: %s", what, bytes)
		}
	}
}

// squeezed returns the bytes of the page's listings: what stands on a line
// before the two spaces that begin the remark.
func squeezed(page string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		listing, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		if !ok {
			continue
		}
		for word := range strings.FieldsSeq(listing) {
			if strings.Trim(word, "0123456789abcdef") != "" || len(word)%2 != 0 {
				break
			}
			b.WriteString(word)
		}
	}
	return b.String()
}

// Every field of every request is named on the page.
func TestProtocolPageNamesEveryField(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("..", "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	for op, o := range operations {
		for _, name := range slices.Sorted(maps.Keys(fieldNames(o.request()))) {
			if !strings.Contains(string(data), "`"+name+"`") {
				t.Errorf("the field %s of %s is not on the page", name, op)
			}
		}
	}
}

package messaging

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"shoal/sandbox"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The wire form is pinned: a change shows as a diff of testdata.
func TestGoldenFrames(t *testing.T) {
	t.Parallel()
	answer, err := encode(Answer{Meta: Meta{Worker: "w1", Boot: "b1", Epoch: 3}, Result: Started{ID: "c1", Pid: 7}}, false)
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := encode(Answer{Meta: Meta{Worker: "w1", Boot: "b1", Epoch: 3}, Result: Started{ID: "c1", Pid: 7}}, true)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range []Frame{
		{Kind: FrameStarted, Command: "c1", Epoch: 3, Answer: answer},
		{Kind: FrameData, Command: "c1", Epoch: 3, Offset: 70000, Stream: sandbox.Stderr, Data: []byte("hi\n")},
		{Kind: FrameGap, Command: "c1", Epoch: 3, Offset: 70003, Lost: 4096},
		{Kind: FrameBeat, Command: "c1", Epoch: 3, Offset: 74099},
		{Kind: FrameMoved, Command: "c1", Epoch: 3, Offset: 74099},
	} {
		var buf bytes.Buffer
		if err := f.encode(&buf); err != nil {
			t.Fatal(err)
		}
		got.WriteString(f.Kind.String() + " " + hex.EncodeToString(buf.Bytes()) + "\n")
		back, err := decodeFrame(buf.Bytes(), false)
		if err != nil || !reflect.DeepEqual(back, f) {
			t.Errorf("%+v came back as %+v, %v", f, back, err)
		}
		if f.Answer != nil {
			f.Answer = asJSON
		}
		f.json = true
		buf.Reset()
		if err := f.encode(&buf); err != nil {
			t.Fatal(err)
		}
		got.Write(buf.Bytes())
		if back, err := decodeFrame(buf.Bytes(), true); err != nil || !reflect.DeepEqual(back, f) {
			t.Errorf("%+v came back as %+v, %v", f, back, err)
		}
	}
	name := filepath.Join("testdata", "frames.golden")
	if *update {
		if err := os.WriteFile(name, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the wire form has changed:\n%s\nwant\n%s", got.String(), want)
	}
}

func TestSubjectsAndTheirParsing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		subject string
		want    address
	}{
		{Subject("main", OpList), address{tenant: "main", op: OpList}},
		{Subject("main", OpEgressSet), address{tenant: "main", op: OpEgressSet}},
		{WorkerSubject("main", "w1", OpLockAcquire), address{tenant: "main", op: OpLockAcquire, direct: true}},
		{FleetSubject("w1", OpExec), address{op: OpExec, direct: true, fleet: true}},
		{FleetSubject("w1", OpPing), address{op: OpPing, direct: true, fleet: true}},
		{StreamSubject("main", "w1", AreaCommand, "a.b", "c1", VerbAck), address{tenant: "main", direct: true, area: AreaCommand, name: "a.b", id: "c1", verb: VerbAck}},
		{StreamSubject("main", "w1", AreaCommand, "a", "c1", VerbStdin), address{tenant: "main", direct: true, op: OpStdin, area: AreaCommand, name: "a", id: "c1", verb: VerbStdin}},
		{StreamSubject("main", "w1", AreaFile, "a", "r1", VerbData), address{tenant: "main", direct: true, area: AreaFile, name: "a", id: "r1", verb: VerbData}},
	} {
		got, err := parseSubject(c.subject, "w1")
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", c.subject, got, err)
		}
	}
	for _, subject := range []string{
		"", "shoal.v1", "shoal.v1.main", "shoal.v2.main.list", "shoal.v1.Main.list", "shoal.v1.main.nothing",
		"shoal.v1._fleet.w2.list", "shoal.v1._fleet.list", "shoal.v1.main.ping", "shoal.v1.main.at.w1.ping",
		"shoal.v1.main.command.stdin", "shoal.v1.main.at.w2.list", "shoal.v1.main.at.w1.command.a.c1.data",
		"shoal.v1.main.at.w1.odd.a.c1.ack", "shoal.v1.main.at.w1.command.a=2E=2E.c.1.ack", "shoal.v1.main.at.w1.command.=2Ea.c1.ack",
	} {
		if got, err := parseSubject(subject, "w1"); err == nil {
			t.Errorf("%s was taken as %+v", subject, got)
		}
	}
}

func FuzzParseSubject(f *testing.F) {
	f.Add("shoal.v1.main.at.w1.command.a=2Eb.c1.ack")
	f.Add("shoal.v1._fleet.w1.ping")
	f.Fuzz(func(t *testing.T, subject string) {
		a, err := parseSubject(subject, "w1")
		if err != nil {
			return
		}
		if !a.fleet && a.tenant.Validate() != nil {
			t.Errorf("%q gave the tenant %q", subject, a.tenant)
		}
		if a.area != "" && a.name.Validate() != nil {
			t.Errorf("%q gave the name %q", subject, a.name)
		}
	})
}

// Whatever the bytes are, decoding neither panics nor accepts what Validate
// was not asked about.
// A length that lies costs nothing: not in the request, and not in what the
// decoder keeps for the next.
func TestLyingLengths(t *testing.T) { //nolint:paralleltest // it counts the process's memory
	lies := [][]byte{
		{0x81, 0xc6, 0xc6, 0xc6, 0xc6, 0xc6},
		{0x81, 0xdb, 0x7f, 0xff, 0xff, 0xff, 'a'},
		{0xdf, 0x7f, 0xff, 0xff, 0xff, 0xa1, 'a'},
		{0x81, 0xa7, 's', 'a', 'n', 'd', 'b', 'o', 'x', 0xdb, 0x7f, 0xff, 0xff, 0xff, 'a'},
		bytes.Repeat([]byte{0x91}, 1<<16),
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		for _, lie := range lies {
			if err := decodeRequest(lie, false, &ExecRequest{}); sandbox.CodeOf(err) != sandbox.Invalid || sandbox.AsError(err).Field == "" {
				t.Errorf("%x: %v, want invalid with the field", lie[:min(len(lie), 20)], err)
			}
			if _, err := decodeFrame(lie, false); err == nil {
				t.Errorf("%x is a frame", lie[:min(len(lie), 20)])
			}
			if err := decodeAnswer(lie, false, &answer[Done]{}); err == nil {
				t.Errorf("%x is an answer", lie[:min(len(lie), 20)])
			}
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("%d bytes were allocated for lies", n)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"sandbox":"a","command":{"id":"c","shell":"x"}}`), true)
	f.Add([]byte{0x81, 0xa7, 's', 'a', 'n', 'd', 'b', 'o', 'x', 0xa1, 'a'}, false)
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff}, false)
	f.Fuzz(func(_ *testing.T, data []byte, asJSON bool) {
		for _, o := range operations {
			body := o.request()
			if decodeRequest(data, asJSON, body) == nil {
				_ = body.Validate()
			}
		}
	})
}

func FuzzDecodeFrame(f *testing.F) {
	f.Add([]byte{0x96, 2, 0xa1, 'c', 1, 0, 1, 0xc4, 2, 'h', 'i'}, false)
	f.Add([]byte(`{"kind":"data","command":"c","offset":0,"data":"aGk="}`), true)
	f.Fuzz(func(t *testing.T, data []byte, asJSON bool) {
		frame, err := decodeFrame(data, asJSON)
		if err == nil && (frame.Offset < 0 || frame.Lost < 0 || len(frame.Data) > MaxChunk) {
			t.Errorf("accepted %+v", frame)
		}
	})
}

// Requests survive both encodings.
func TestRequestRoundTrip(t *testing.T) {
	t.Parallel()
	code := ExecRequest{
		Target: Target{Sandbox: "a.b", Generation: "g"}, Boot: "b", Window: MinWindow,
		Command: sandbox.Command{ID: "c", Argv: []string{"x", "é"}, Env: map[string]string{"A": "b"}, Input: []byte{0, 1}, TTY: nil, Timeout: 5},
	}
	write := WriteRequest{PathTarget: PathTarget{Target{Sandbox: "a"}, "/x"}, WriteOptions: sandbox.WriteOptions{Size: 2, Mode: 0o600}, Data: []byte{1, 2}}
	for _, asJSON := range []bool{true, false} {
		for _, want := range []request{&code, &write} {
			data, err := encode(want, asJSON)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := reflect.TypeAssert[request](reflect.New(reflect.TypeOf(want).Elem()))
			if !ok {
				t.Fatal("not a request")
			}
			if err := decodeRequest(data, asJSON, got); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("json %v: %+v, %v", asJSON, got, err)
			}
		}
	}
}

func fieldNames(r request) map[string][]int { return fieldsOf(reflect.TypeOf(r).Elem()) }

func BenchmarkEncodeChunk(b *testing.B) {
	f := Frame{Kind: FrameData, Command: "01234567890123456789012345", Epoch: 3, Offset: 1 << 30, Stream: sandbox.Stdout, Data: make([]byte, MaxChunk)}
	var buf bytes.Buffer
	b.SetBytes(MaxChunk)
	b.ReportAllocs()
	for b.Loop() {
		buf.Reset()
		if err := f.encode(&buf); err != nil {
			b.Fatal(err)
		}
	}
}

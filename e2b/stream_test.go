package e2b

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"shoal/e2b/e2btest"
)

// opened is a stream to a process in a fresh fake sandbox.
func opened(t *testing.T, p process) (*e2btest.Server, string, *stream) {
	t.Helper()
	fake := e2btest.New(t, e2btest.Config{})
	provider := newProvider(t, fake)
	provider.attach = p
	h := create(t, provider, "a")
	s, err := provider.Attach(t.Context(), h, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	fake.Forget()
	return fake, h.Ref, s.(*held).stream
}

var cat = process{Cmd: "/bin/cat", Cwd: "/"}

func shell(script string) process {
	return process{Cmd: "/bin/sh", Args: []string{"-c", script}, Cwd: "/"}
}

func expect(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("%.80q, %v; want %.80q", got, err, want)
	}
}

func TestWritesTravelTogether(t *testing.T) {
	fake, _, s := opened(t, cat)
	for range 4 {
		if _, err := s.Write([]byte("header" + "body")); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, s, strings.Repeat("headerbody", 4))
	if n := count(fake, "POST", "/process.Process/SendInput"); n != 1 {
		t.Errorf("%d requests for writes made together", n)
	}
}

func TestAShortPauseDoesNotSplitAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		r, w := io.Pipe()
		s := newStream(&envd{http: &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			sent.Add(1)
			return reply(200, "{}"), nil
		})}, base: "http://envd.test", id: "iabc", token: NewSecret("t")}, r, 1)
		defer w.Close()
		for range 3 { // a header, its body, an acknowledgement right behind
			if _, err := s.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Microsecond)
		}
		time.Sleep(time.Second)
		if sent.Load() != 1 {
			t.Errorf("%d requests", sent.Load())
		}
		_ = s.Close()
	})
}

func TestInputsKeepTheirOrder(t *testing.T) {
	fake, _, s := opened(t, cat)
	fake.Inject(e2btest.Fault{Match: "POST /process.Process/SendInput", Delay: 200 * time.Millisecond})
	var want strings.Builder
	for i := range 20 {
		line := fmt.Sprintf("%d\n", i)
		want.WriteString(line)
		if _, err := s.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Millisecond)
	}
	expect(t, s, want.String())
	if n := count(fake, "POST", "/process.Process/SendInput"); n > 3 {
		t.Errorf("%d requests; what waited behind the first should have gone together", n)
	}
}

func TestWriteIsHeldBackWhileNobodyReads(t *testing.T) {
	_, _, s := opened(t, shell("sleep 30"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	wrote := make(chan int)
	go func() {
		n := 0
		for {
			k, err := s.Write(make([]byte, 64<<10))
			n += k
			if err != nil {
				wrote <- n
				return
			}
		}
	}()
	time.Sleep(500 * time.Millisecond)
	runtime.ReadMemStats(&after)
	_ = s.Close()
	if n := <-wrote; n > 4*maxPending {
		t.Errorf("%d bytes were taken", n)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("memory grew by %d", grown)
	}
}

func TestBrokenStreamIsOver(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(*e2btest.Server, string)
	}{
		"cut": {func(f *e2btest.Server, id string) { f.CutStreams(id) }},
		"input's answer lost": {func(f *e2btest.Server, _ string) {
			f.Inject(e2btest.Fault{Match: "POST /process.Process/SendInput", Drop: true, AfterWork: true})
		}},
		"input refused": {func(f *e2btest.Server, _ string) {
			f.Inject(e2btest.Fault{Match: "POST /process.Process/SendInput", Status: 503, Body: "later"})
		}},
		"paused at its end": {func(f *e2btest.Server, id string) { f.Expire(id) }},
	} {
		t.Run(name, func(t *testing.T) {
			fake, id, s := opened(t, cat)
			if _, err := s.Write([]byte("before")); err != nil {
				t.Fatal(err)
			}
			expect(t, s, "before")
			fake.Forget()
			c.breaks(fake, id)
			_, _ = s.Write([]byte("after"))
			rest, err := io.ReadAll(s)
			if err == nil {
				t.Error("the end looks like one of the process itself")
			}
			if len(rest) != 0 && string(rest) != "after" {
				t.Errorf("%q", rest)
			}
			for err = nil; err == nil; _, err = s.Write([]byte("x")) {
				time.Sleep(time.Millisecond)
			}
			_ = s.Close()
			for _, r := range fake.Requests() {
				if strings.HasSuffix(r.Path, "/Start") || strings.HasSuffix(r.Path, "/Connect") {
					t.Errorf("%s after the break", r.Path)
				}
			}
			if n := count(fake, "POST", "/process.Process/SendInput"); n > 1 {
				t.Errorf("%d inputs after the break", n)
			}
		})
	}
}

func testEndsAreToldApart(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0":               "",
		"exit 3":               "exit status 3",
		"echo why >&2; exit 4": "exit status 4: why",
		"kill -9 $$":           "signal: killed",
		"kill -SEGV $$":        "signal: segmentation fault",
		"exec /no/such/thing":  "exit status 127",
		"yes complaint | head -c 200000 >&2; exit 5": "exit status 5",
	} {
		_, _, s := opened(t, shell(script))
		_, err := io.ReadAll(s)
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", script, err)
			}
			continue
		}
		var e *exitError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) || len(e.Stderr) > maxStderr {
			t.Errorf("%s: %v, want %s", script, err, want)
		}
	}
}

func TestCloseDeliversAndDismisses(t *testing.T) {
	fake, _, s := opened(t, shell("cat > "+t.TempDir()+"/out"))
	data := bytes.Repeat([]byte("x"), 100<<10)
	if _, err := s.Write(data); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_ = s.Close()
	_ = s.Close()
	if took := time.Since(began); took > time.Second {
		t.Errorf("close took %s", took)
	}
	if n := count(fake, "POST", "/process.Process/CloseStdin"); n != 1 {
		t.Errorf("%d times CloseStdin", n)
	}
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("a closed stream takes more")
	}
	if _, err := s.Read(make([]byte, 1)); err == nil {
		t.Error("a closed stream gives more")
	}
}

func TestCloseIsBounded(t *testing.T) {
	t.Parallel()
	fake, _, s := opened(t, cat)
	fake.Inject(e2btest.Fault{Match: "POST /process.Process/SendInput", Delay: time.Minute})
	fake.Inject(e2btest.Fault{Match: "POST /process.Process/CloseStdin", Delay: time.Minute})
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	began := time.Now()
	_ = s.Close()
	if took := time.Since(began); took > closeWait+time.Second {
		t.Errorf("close took %s", took)
	}
}

// piped is a stream whose daemon is the test.
func piped(t *testing.T) (*stream, *io.PipeWriter) {
	t.Helper()
	r, w := io.Pipe()
	s := newStream(&envd{http: &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		return nil, io.ErrUnexpectedEOF
	})}, base: "http://envd.test", id: "iabc", token: NewSecret("hidden-token")}, r, 1)
	t.Cleanup(func() {
		_ = w.Close()
		_ = s.Close()
	})
	return s, w
}

func message(flags byte, payload string) []byte {
	return append(append([]byte{flags}, binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...), payload...)
}

func TestSilenceEndsAStreamThatIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := piped(t)
		go func() {
			for range 5 { // keepalives keep it
				time.Sleep(maxSilence - time.Second)
				_, _ = w.Write(message(0, `{"event":{"keepalive":{}}}`))
			}
		}()
		began := time.Now()
		_, err := s.Read(make([]byte, 1))
		if !errors.Is(err, errSilent) || time.Since(began) != 5*(maxSilence-time.Second)+maxSilence {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestReaderMayTakeItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := piped(t)
		go func() { _, _ = w.Write(message(0, `{"event":{"data":{"stdout":"YWI="}}}`)) }()
		expect(t, s, "a")
		time.Sleep(10 * maxSilence)
		go func() { _, _ = w.Write(message(0, `{"event":{"data":{"stdout":"Yw=="}}}`)) }()
		expect(t, s, "bc")
	})
}

func TestHostileDaemon(t *testing.T) {
	huge := append([]byte{0}, 0xff, 0xff, 0xff, 0xff)
	for name, c := range map[string]struct{ bytes, want string }{
		"message without end":   {string(huge), "bytes"},
		"one byte too many":     {string(append([]byte{0}, binary.BigEndian.AppendUint32(nil, maxEnvelope+1)...)), "bytes"},
		"unknown flag":          {string(message(4, "{}")), "flags"},
		"compressed end":        {string(message(3, "{}")), "compressed"},
		"token in a status":     {string(message(0, `{"event":{"end":{"exitCode":1,"exited":true,"status":"hidden-token"}}}`)), redacted},
		"token in the stderr":   {string(append(message(0, `{"event":{"data":{"stderr":"aGlkZGVuLXRva2Vu"}}}`), message(0, `{"event":{"end":{"exitCode":1,"exited":true}}}`)...)), redacted},
		"compressed":            {string(message(1, "x")), "compressed"},
		"no JSON":               {string(message(0, "x")), "JSON"},
		"no JSON at its end":    {string(message(2, "x")), "JSON"},
		"end before its end":    {string(message(2, "{}")), "before the process"},
		"head cut off":          {"\x00\x00", "broke off"},
		"payload cut off":       {string(message(0, "{}")[:6]), "broke off"},
		"error with the token":  {string(message(2, `{"error":{"code":"internal","message":"hidden-token \u001b[31m"}}`)), redacted},
		"bytes that are none":   {string(message(0, `{"event":{"data":{"stdout":"!"}}}`)), "JSON"},
		"a status with escapes": {string(message(0, `{"event":{"end":{"exitCode":1,"exited":true,"status":"\u001b[2J"}}}`)), "ended"},
	} {
		s, w := piped(t)
		go func() {
			_, _ = w.Write([]byte(c.bytes))
			_ = w.Close()
		}()
		_, err := io.ReadAll(s)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.ContainsAny(err.Error(), "\x1b") || strings.Contains(err.Error(), "hidden-token") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzEnvelopes(f *testing.F) {
	f.Add(message(0, `{"event":{"data":{"stdout":"YWI="}}}`))
	f.Add(message(2, `{"error":{"code":"x","message":"y"}}`))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		var buf []byte
		for {
			_, payload, err := readEnvelope(r, buf)
			if err != nil {
				return
			}
			if cap(payload) > maxEnvelope {
				t.Fatal("a message beyond the bound")
			}
			buf = payload
		}
	})
}

package e2b

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"shoal/e2b/e2btest"
	"shoal/sandbox"
)

func TestNoTokenNoRequest(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	fake.RemoveToken(h.Ref)
	fake.Forget()
	for _, wake := range []bool{true, false} {
		_, err := p.Attach(t.Context(), h, wake)
		wantCode(t, err, sandbox.Gone, "no_token")
	}
	for _, r := range fake.Requests() {
		if r.Plane == "envd" {
			t.Errorf("%s %s without a token", r.Method, r.Path)
		}
	}
}

func TestAttachEchoes(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	if err := p.Suspend(t.Context(), h, sandbox.SuspendMemory); err != nil {
		t.Fatal(err)
	}
	s, err := p.Attach(t.Context(), h, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
	go func() { _, _ = s.Write(data) }()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%v, equal %t", err, bytes.Equal(got, data))
	}
	for _, r := range fake.Requests() {
		if r.Plane == "envd" && (r.Header.Get("Connect-Timeout-Ms") != "" || r.Header.Get("Keepalive-Ping-Interval") == "0") {
			t.Errorf("%s %v", r.Path, r.Header)
		}
	}
}

func TestAttachHasABoundedStart(t *testing.T) {
	fake := e2btest.New(t, e2btest.Config{})
	p := newProvider(t, fake)
	h := create(t, p, "a")
	fake.Inject(e2btest.Fault{Match: "POST /process.Process/Start", Delay: 5 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := p.Attach(ctx, h, true)
	if sandbox.CodeOf(err) != sandbox.Timeout || time.Since(began) > 2*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

func TestAttachFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault e2btest.Fault
		code  sandbox.Code
	}{
		"plain text 404": {e2btest.Fault{Status: 404, Body: "404 page not found\n"}, sandbox.Engine},
		"port not open":  {e2btest.Fault{Status: 502, Body: `{"sandboxId":"x","message":"The sandbox is running but port is not open","code":502}`}, sandbox.Engine},
		"not running":    {e2btest.Fault{Status: 502, Body: `{"sandboxId":"x","message":"The sandbox was not found","code":502}`, Times: 9}, sandbox.Unavailable},
		"once paused":    {e2btest.Fault{Status: 502, Body: `{"sandboxId":"x","message":"The sandbox was not found","code":502}`}, ""},
		"wrong token":    {e2btest.Fault{Status: 401, Body: `{"code":401,"message":"unauthorized access"}`}, sandbox.Gone},
		"dropped":        {e2btest.Fault{Drop: true}, sandbox.Engine},
		"rate":           {e2btest.Fault{Status: 429, Body: `{"sandboxId":"x","message":"too many connections","code":429}`}, sandbox.Engine},
	} {
		t.Run(name, func(t *testing.T) {
			fake := e2btest.New(t, e2btest.Config{})
			p := newProvider(t, fake)
			h := create(t, p, "a")
			c.fault.Match = "POST /process.Process/Start"
			fake.Inject(c.fault)
			s, err := p.Attach(t.Context(), h, true)
			if sandbox.CodeOf(err) != c.code {
				t.Errorf("%v, want %q", err, c.code)
			}
			if s != nil {
				s.Close()
			}
		})
	}
}

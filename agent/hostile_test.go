package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"shoal/sandbox"
)

// liar is an agent that answers requests as a script says.
type liar struct {
	hello Hello
	// answer writes what it likes to the stream of any other request.
	answer func(w io.Writer, q request)
}

func frames(parts ...any) []byte {
	var b []byte
	for i := 0; i < len(parts); i += 2 {
		var err error
		if b, err = appendFrame(b, parts[i].(kind), parts[i+1]); err != nil {
			panic(err)
		}
	}
	return b
}

func (l liar) serve(t *testing.T, conn net.Conn) {
	mux, err := yamux.Server(conn, muxConfig())
	if err != nil {
		t.Error(err)
		return
	}
	defer mux.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		stream, err := mux.AcceptStream()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer stream.Close()
			_, body, err := newFrameReader(stream, maxRequest).next()
			var q request
			if err != nil || decode(body, &q) != nil {
				return
			}
			if q.Op == opHello {
				_, _ = stream.Write(frames(kindAnswer, l.hello))
				return
			}
			l.answer(stream, q)
			_ = stream.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, _ = io.Copy(io.Discard, stream)
		})
	}
}

func connectTo(t *testing.T, serve func(net.Conn), cfg ClientConfig) (*Session, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(theirs)
	}()
	s, err := Connect(t.Context(), ours, cfg)
	t.Cleanup(func() {
		if err == nil {
			_ = s.Close()
		}
		_ = theirs.Close()
		<-done
	})
	return s, err
}

var honest = Hello{Protocol: 1, Boot: "boot"}

func started(change func(*Started)) Started {
	s := Started{Boot: "boot", Info: sandbox.CommandInfo{ID: "c", State: sandbox.CommandRunning, Shell: "true", Next: 10}}
	if change != nil {
		change(&s)
	}
	return s
}

// TestLiesInAStream lets an agent lie about a command: the session must end with
// a protocol error, without a panic and without believing it.
func TestLiesInAStream(t *testing.T) {
	t.Parallel()
	good := started(nil)
	code := 0
	end := func(bytes int64) ended {
		return ended{End: sandbox.End{Reason: sandbox.Exited, Code: &code, Bytes: bytes}}
	}
	big := make([]byte, maxBytes)
	var flood []byte
	for at := int64(0); at <= MaxWindow; at += maxBytes {
		flood = append(flood, frames(kindOutput, output{Offset: at, Stream: 1, Data: big})...)
	}
	tests := map[string][]byte{
		"another command":       frames(kindAnswer, started(func(s *Started) { s.Info.ID = "d" })),
		"a malformed id":        frames(kindAnswer, started(func(s *Started) { s.Info.ID = "c d" })),
		"another boot":          frames(kindAnswer, started(func(s *Started) { s.Boot = "x" })),
		"a negative offset":     frames(kindAnswer, started(func(s *Started) { s.Offset = -5 })),
		"offsets in disorder":   frames(kindAnswer, started(func(s *Started) { s.Info.Oldest = 11 })),
		"no state":              frames(kindAnswer, started(func(s *Started) { s.Info.State = "" })),
		"a long preview":        frames(kindAnswer, started(func(s *Started) { s.Info.Shell = strings.Repeat("x", maxPreview+1) })),
		"no answer first":       frames(kindOutput, output{Stream: 1, Data: []byte("x")}),
		"output ahead":          frames(kindAnswer, good, kindOutput, output{Offset: 1, Stream: 1, Data: []byte("x")}),
		"output again":          frames(kindAnswer, good, kindOutput, output{Stream: 1, Data: []byte("x")}, kindOutput, output{Stream: 1, Data: []byte("x")}),
		"output of no stream":   frames(kindAnswer, good, kindOutput, output{Stream: 3, Data: []byte("x")}),
		"empty output":          frames(kindAnswer, good, kindOutput, output{Stream: 1}),
		"too large a piece":     frames(kindAnswer, good, kindOutput, output{Stream: 1, Data: make([]byte, maxBytes+1)}),
		"more than its credit":  append(frames(kindAnswer, good), flood...),
		"a gap backwards":       frames(kindAnswer, good, kindGap, gap{Offset: 0, Bytes: -1}),
		"a gap of all there is": frames(kindAnswer, good, kindGap, gap{Offset: 0, Bytes: 1 << 62}),
		"a gap elsewhere":       frames(kindAnswer, good, kindGap, gap{Offset: 5, Bytes: 1}),
		"an end too early":      frames(kindAnswer, good, kindEnd, end(5)),
		"an end of nothing":     frames(kindAnswer, good, kindEnd, end(-1)),
		"a code with a kill":    frames(kindAnswer, good, kindEnd, ended{End: sandbox.End{Reason: sandbox.Killed, Code: &code}}),
		"an exit without code":  frames(kindAnswer, good, kindEnd, ended{End: sandbox.End{Reason: sandbox.Exited}}),
		"an unknown reason":     frames(kindAnswer, good, kindEnd, ended{End: sandbox.End{Reason: "x"}}),
		"survivors without end": frames(kindAnswer, good, kindEnd, ended{End: sandbox.End{Reason: sandbox.Killed, Survivors: make([]int, maxSurvivors+1)}}),
		"credit without bound":  frames(kindAnswer, good, kindInput, input{Credit: 1 << 40}),
		"a frame too large":     append(binary.BigEndian.AppendUint32(frames(kindAnswer, good), 1<<31), byte(kindOutput)),
		"garbage":               append(frames(kindAnswer, good), 0, 0, 0, 3, byte(kindOutput), 0xdf, 0xff, 0xff),
		"nested":                append(append(frames(kindAnswer, good), 0, 1, 0, 0, byte(kindOutput)), bytes.Repeat([]byte{0x91}, 1<<16)...),
		"an unknown code":       frames(kindError, sandbox.Error{Code: "boo"}),
		"a long message":        frames(kindError, sandbox.Error{Code: sandbox.Busy, Message: strings.Repeat("x", maxMessage+1)}),
		"come back in a year":   frames(kindError, sandbox.Error{Code: sandbox.Busy, RetryAfter: 1 << 40}),
	}
	for name, script := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := connectTo(t, func(conn net.Conn) {
				liar{hello: honest, answer: func(w io.Writer, _ request) { _, _ = w.Write(script) }}.serve(t, conn)
			}, ClientConfig{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			st, err := s.Start(ctx, StartRequest{Boot: "boot", Command: sandbox.Command{ID: "c", Shell: "true"}})
			for err == nil {
				_, err = st.Recv(ctx)
			}
			wantLie(t, s, err)
		})
	}
}

// TestForeignWords lets an engine write words of its own into a healthy stream,
// as Docker does when an exec fails, and end it or not: the session must end, and
// say that the outcome is unknown and the sandbox may be attached again.
func TestForeignWords(t *testing.T) {
	t.Parallel()
	good := frames(kindAnswer, started(nil), kindOutput, output{Stream: 1, Data: []byte("x")})
	words := []byte("exec attach failed: unexpected EOF\r\n")
	half := binary.BigEndian.AppendUint32([]byte{0, muxData, 0, 0, 0, 0, 0, 1}, 1000) // announces more than comes
	for name, tt := range map[string]struct {
		tail []byte
		open bool // the stream stays open behind the words
	}{
		"between frames":                 {words, false},
		"between frames, without an end": {words, true},
		"within a frame":                 {append(half, words...), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := connectTo(t, func(conn net.Conn) {
				said := make(chan struct{})
				go func() {
					<-said
					time.Sleep(50 * time.Millisecond) // the good frames are on their way
					_, _ = conn.Write(tt.tail)
					if !tt.open {
						_ = conn.Close()
					}
				}()
				liar{hello: honest, answer: func(w io.Writer, _ request) {
					_, _ = w.Write(good)
					close(said)
				}}.serve(t, conn)
			}, ClientConfig{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			st, err := s.Start(ctx, StartRequest{Boot: "boot", Command: sandbox.Command{ID: "c", Shell: "true"}})
			var got []byte
			for err == nil {
				var m Event
				m, err = st.Recv(ctx)
				got = append(got, m.Data...)
			}
			if e := sandbox.AsError(err); e.Code != sandbox.OutcomeUnknown || e.Reason != "detached" || string(got) != "x" {
				t.Errorf("%q, %v; want x, and an unknown outcome", got, err)
			}
			select {
			case <-s.Done():
			case <-time.After(5 * time.Second):
				t.Error("the session goes on")
			}
		})
	}
}

func wantLie(t *testing.T, s *Session, err error) {
	t.Helper()
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok || e.Code != sandbox.Engine || e.Reason != "protocol" || e.Origin != sandbox.FromWorker {
		t.Errorf("%v", err)
	}
	select {
	case <-s.Done():
	case <-time.After(5 * time.Second):
		t.Error("the session goes on")
	}
	if s.Err() == nil {
		t.Error("the session does not say why it ended")
	}
}

// TestLiesInAnAnswer is the same for requests with one answer.
func TestLiesInAnAnswer(t *testing.T) {
	t.Parallel()
	info := started(nil).Info
	tests := map[string]struct {
		answer any
		ask    func(context.Context, *Session) error
	}{
		"a list without end": {commands{Commands: make([]sandbox.CommandInfo, maxListed+1)}, func(ctx context.Context, s *Session) error {
			_, err := s.List(ctx)
			return err
		}},
		"an ended command without end": {commands{Commands: []sandbox.CommandInfo{{ID: "a", State: sandbox.CommandEnded}}}, func(ctx context.Context, s *Session) error {
			_, err := s.List(ctx)
			return err
		}},
		"a kill that reset": {sandbox.KillResult{Reset: true}, func(ctx context.Context, s *Session) error {
			_, err := s.Kill(ctx, sandbox.KillRequest{All: true})
			return err
		}},
		"a kill of nobody": {sandbox.KillResult{Commands: []sandbox.CommandID{"a b"}}, func(ctx context.Context, s *Session) error {
			_, err := s.Kill(ctx, sandbox.KillRequest{All: true})
			return err
		}},
		"an invalid spec": {Claimed{Spec: &sandbox.Spec{}}, func(ctx context.Context, s *Session) error {
			_, err := s.Claim(ctx, Claim{Boot: "boot", Epoch: 1})
			return err
		}},
		"a page without end": {sandbox.FileList{Entries: make([]sandbox.FileInfo, sandbox.MaxListPage+1)}, func(ctx context.Context, s *Session) error {
			_, err := s.ListDir(ctx, "/", sandbox.ListOptions{})
			return err
		}},
		"a negative size": {sandbox.FileInfo{Size: -1}, func(ctx context.Context, s *Session) error {
			_, err := s.Stat(ctx, "/x", false)
			return err
		}},
		"another type": {[]string{"a"}, func(ctx context.Context, s *Session) error {
			_, err := s.List(ctx)
			return err
		}},
		"an end without sense": {ended{End: sandbox.End{Reason: sandbox.Exited}}, func(ctx context.Context, s *Session) error {
			_, err := s.Wait(ctx, info.ID)
			return err
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := connectTo(t, func(conn net.Conn) {
				liar{hello: honest, answer: func(w io.Writer, _ request) { _, _ = w.Write(frames(kindAnswer, tt.answer)) }}.serve(t, conn)
			}, ClientConfig{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			wantLie(t, s, tt.ask(ctx, s))
		})
	}
}

func TestHostileHello(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]Hello{
		"protocol 0":       {Boot: "b"},
		"a newer protocol": {Protocol: Protocol + 1, Boot: "b"},
		"no boot":          {Protocol: 1},
		"a boot with dots": {Protocol: 1, Boot: "a.b"},
		"the last epoch":   {Protocol: 1, Boot: "b", Epoch: MaxEpoch + 1},
		"a long version":   {Protocol: 1, Boot: "b", Version: strings.Repeat("x", 65)},
	} {
		_, err := connectTo(t, func(conn net.Conn) { liar{hello: h}.serve(t, conn) }, ClientConfig{})
		if code := sandbox.CodeOf(err); code != sandbox.Engine && code != sandbox.Unsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := connectTo(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }, ClientConfig{HelloTimeout: 100 * time.Millisecond})
	if !errors.Is(err, &sandbox.Error{Code: sandbox.Timeout}) {
		t.Errorf("silence: %v", err)
	}
	for _, garbage := range []string{"", "\x00", "HTTP/1.1 400 Bad Request\r\n\r\n", strings.Repeat("\xff", 100)} {
		if _, err := connectTo(t, func(conn net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			_, _ = io.WriteString(conn, garbage)
			_ = conn.Close()
		}, ClientConfig{}); err == nil {
			t.Errorf("%q is taken for an agent", garbage)
		}
	}
}

// TestFloods lets an agent send what nobody asked for: the worker must stay
// small and end the session.
func TestFloods(t *testing.T) {
	t.Parallel()
	mux := func(kind byte, flags uint16, id, length uint32) []byte {
		b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
		b = binary.BigEndian.AppendUint32(b, id)
		return binary.BigEndian.AppendUint32(b, length)
	}
	tests := map[string]func(i uint32) []byte{
		"pings":   func(i uint32) []byte { return mux(2, 1, 0, i) },
		"streams": func(i uint32) []byte { return mux(muxWindow, muxSYN, 2+2*i, 0) },
		"data of streams nobody reads": func(i uint32) []byte {
			return append(mux(muxData, muxSYN, 2+2*i, streamWindow), make([]byte, streamWindow)...)
		},
	}
	for name, next := range tests {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			go func() { // answers the hello as a real one, then floods
				m, err := yamux.Server(theirs, muxConfig())
				if err != nil {
					return
				}
				stream, err := m.AcceptStream()
				if err != nil {
					return
				}
				_, _, _ = newFrameReader(stream, maxRequest).next()
				_, _ = stream.Write(frames(kindAnswer, honest))
				for i := range uint32(20_000) {
					if _, err := theirs.Write(next(i)); err != nil {
						return
					}
				}
			}()
			s, err := Connect(t.Context(), ours, ClientConfig{Egress: func(c net.Conn) { _, _ = io.Copy(io.Discard, c); _ = c.Close() }})
			if err != nil {
				return // it was quick
			}
			defer s.Close()
			before := runtime.NumGoroutine()
			select {
			case <-s.Done():
			case <-time.After(30 * time.Second):
				t.Error("the session goes on")
			}
			if n := runtime.NumGoroutine(); n > before+2*maxStreams {
				t.Errorf("%d goroutines after %d", n, before)
			}
		})
	}
}

// TestSaysWhatTheAgentSaid passes errors on, without what a terminal misreads.
func TestSaysWhatTheAgentSaid(t *testing.T) {
	t.Parallel()
	said := sandbox.Error{Code: sandbox.NotFound, Message: "no \x1b[31mfile\n", Origin: sandbox.FromClient, Reason: "x"}
	s, err := connectTo(t, func(conn net.Conn) {
		liar{hello: honest, answer: func(w io.Writer, _ request) { _, _ = w.Write(frames(kindError, said)) }}.serve(t, conn)
	}, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Stat(t.Context(), "/x", false)
	e, _ := errors.AsType[*sandbox.Error](err)
	if e == nil || e.Code != sandbox.NotFound || e.Message != "no  [31mfile " || e.Origin != sandbox.FromSandbox || e.Reason != "x" {
		t.Errorf("%+v", e)
	}
	if s.Err() != nil {
		t.Errorf("an error ended the session: %v", s.Err())
	}
}

// brokenStream cannot be read, and says why.
type brokenStream struct {
	net.Conn
	why error
}

func (s brokenStream) Read([]byte) (int, error)    { return 0, s.why }
func (s brokenStream) Write(p []byte) (int, error) { return len(p), nil }

// TestStreamThatNeverWorked: what carries the stream knows best why no agent
// answers, and whether to try again.
func TestStreamThatNeverWorked(t *testing.T) {
	t.Parallel()
	why := sandbox.Errorf(sandbox.Engine, "no process is left").Because("attach").From(sandbox.FromEngine)
	for range 20 { // two goroutines see it, in either order
		ours, theirs := net.Pipe()
		_, err := Connect(t.Context(), brokenStream{ours, why}, ClientConfig{})
		if e := sandbox.AsError(err); e == nil || e.Code != sandbox.Engine || e.Reason != "attach" {
			t.Errorf("%v, want what the stream said", err)
		}
		_ = theirs.Close()
	}
}

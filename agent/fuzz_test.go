package agent

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"shoal/sandbox"
)

// refusing is a host on which nothing can be started or touched.
type refusing struct{}

var errRefused = sandbox.Errorf(sandbox.StartFailed, "nothing starts here").Because("program")

func (refusing) Start(context.Context, Program) (Process, error) { return nil, errRefused }
func (refusing) Kill(context.Context, []Process, bool) (Killed, error) {
	return Killed{}, nil
}
func (refusing) Limit(int)                                    {}
func (refusing) Stats(context.Context) (sandbox.Stats, error) { return sandbox.Stats{}, nil }
func (refusing) OOMKills() int64                              { return 0 }
func (refusing) Sync()                                        {}
func (refusing) Files() Files                                 { return noFiles{} }

// noFiles reads what is uploaded and refuses everything else.
type noFiles struct{}

var errNoFile = sandbox.Errorf(sandbox.NotFound, "there is no file")

func (noFiles) Stat(context.Context, string, bool) (sandbox.FileInfo, error) {
	return sandbox.FileInfo{}, errNoFile
}

func (noFiles) List(context.Context, string, sandbox.ListOptions) (sandbox.FileList, error) {
	return sandbox.FileList{}, errNoFile
}
func (noFiles) Mkdir(context.Context, string, uint32) error        { return errNoFile }
func (noFiles) Remove(context.Context, string, bool) error         { return errNoFile }
func (noFiles) Rename(context.Context, string, string, bool) error { return errNoFile }
func (noFiles) Read(context.Context, string, sandbox.ReadOptions, io.Writer) (ReadResult, error) {
	return ReadResult{}, errNoFile
}

func (noFiles) Write(_ context.Context, _ string, _ sandbox.WriteOptions, r io.Reader, _ Commit) (sandbox.FileInfo, error) {
	_, err := io.Copy(io.Discard, r)
	return sandbox.FileInfo{}, err
}
func (noFiles) Pack(context.Context, string, io.Writer) error { return errNoFile }
func (noFiles) Unpack(_ context.Context, _ string, r io.Reader, _ Commit) (int, error) {
	_, err := io.Copy(io.Discard, r)
	return 0, err
}

// FuzzAgent sends a claimed agent a stream of any content: it must neither
// panic nor stop answering on others.
func FuzzAgent(f *testing.F) {
	add := func(op string, body any, more ...byte) {
		b, err := requestFrame(op, body)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(b, more...))
	}
	bytes := appendBytes(nil, []byte("content"))
	add(opStart, StartRequest{Command: sandbox.Command{ID: "a", Shell: "true"}})
	add(opFollow, FollowRequest{ID: "a", Offset: -1})
	add(opWrite, writeRequest{Path: "/x"}, append(bytes, frames(kindEOF, nil)...)...)
	add(opUnpack, pathRequest{Path: "/x"}, bytes...)
	add(opRead, readRequest{Path: "/x"})
	add(opKill, sandbox.KillRequest{All: true})
	add(opTag, TagRequest{Tag: "*", Token: "t", Kill: true})
	add(opExpire, expireRequest{Tag: "a", Token: "t"})
	add(opCommands, nothing{})
	add(opHello, helloRequest{Newest: 1})
	add(opClaim, Claim{Boot: "x", Epoch: 9})
	add(opTunnel, tunnelRequest{On: true})
	add(opKeep, Kept{Egress: sandbox.Egress{Mode: "none"}, Pin: true})
	add(opRename, renameRequest{From: "/a", To: "/b"})
	f.Add([]byte{})

	server, err := NewServer(ServerConfig{Host: refusing{}})
	if err != nil {
		f.Fatal(err)
	}
	ours, theirs := net.Pipe()
	go server.ServeConn(theirs)
	s, err := Connect(f.Context(), ours, ClientConfig{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = s.Close()
		server.Close()
	})
	if _, err := s.Claim(f.Context(), Claim{Boot: server.Boot(), Epoch: 1}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		throw(t, s.mux, b)
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		// A request may have claimed, suspended or locked: only silence is wrong.
		if err := s.call(ctx, opHello, helloRequest{Newest: Protocol, Oldest: oldestProtocol}, nil); err != nil {
			t.Fatalf("it does not answer any more: %v", err)
		}
	})
}

// throw sends b on a stream of its own and reads what comes back for a moment.
func throw(t *testing.T, mux *yamux.Session, b []byte) {
	t.Helper()
	stream, err := mux.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.SetDeadline(time.Now().Add(3 * time.Millisecond))
	_, _ = stream.Write(b)
	_, _ = stream.Read(make([]byte, 4096))
	_ = stream.Close()
}

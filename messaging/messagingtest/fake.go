package messagingtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/messaging"
	"shoal/sandbox"
)

// Program is what a command of the fake does. Its result is the exit code.
type Program func(ctx context.Context, p *Proc) int

// Fake is a fleet without sandboxes: files are kept in memory and commands are
// Go functions. What it knows is shared by all of its workers, as real workers
// share the agents, so that one can carry on where another died.
type Fake struct {
	// Programs by the command's shell text or joined arguments; set before the first worker starts.
	Programs map[string]Program

	mu      sync.Mutex // guards the rest
	boot    string
	owner   messaging.WorkerID
	boxes   map[sandbox.Name]*box
	locks   map[string]messaging.Lock
	starts  int
	dropped map[messaging.Op]int
}

type box struct {
	info  messaging.SandboxInfo
	files map[string][]byte
	procs map[sandbox.CommandID]*Proc
}

// NewFake returns a fleet with these programs.
func NewFake(programs map[string]Program) *Fake {
	return &Fake{
		Programs: programs, boot: "boot1",
		boxes: map[sandbox.Name]*box{}, locks: map[string]messaging.Lock{}, dropped: map[messaging.Op]int{},
	}
}

// StartWorker starts a worker of the fleet on nc; it ends with the test.
func (f *Fake) StartWorker(t testing.TB, nc *nats.Conn, id messaging.WorkerID) *messaging.Server {
	t.Helper()
	s, stop, err := f.startWorker(nc, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return s
}

// Serve is StartWorker outside of a test.
func (f *Fake) Serve(nc *nats.Conn, id messaging.WorkerID) (stop func(), err error) {
	_, stop, err = f.startWorker(nc, id)
	return stop, err
}

func (f *Fake) startWorker(nc *nats.Conn, id messaging.WorkerID) (s *messaging.Server, stop func(), err error) {
	s, err = messaging.NewServer(messaging.Config{
		Conn: nc, Worker: id, Version: "0.1.0",
		Handler: func(ctx context.Context, r *messaging.Request) (any, error) { return f.handle(ctx, s, r) },
	})
	if err != nil {
		return nil, nil, err
	}
	return s, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Shutdown(ctx) // a test may have closed the connection
		f.killAll()
	}, s.Start()
}

// killAll ends the programs that still run.
func (f *Fake) killAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.boxes {
		for _, p := range b.procs {
			p.cancel()
		}
	}
}

// SetOwner makes the other workers forward to this one; "" = everybody serves.
func (f *Fake) SetOwner(id messaging.WorkerID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owner = id
}

// Restart gives the sandboxes another boot that knows no commands.
func (f *Fake) Restart(boot string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boot = boot
	for _, b := range f.boxes {
		for _, p := range b.procs {
			p.cancel()
		}
		b.procs = map[sandbox.CommandID]*Proc{}
	}
}

// DropAnswers makes the next n answers of an operation get lost after the work
// was done.
func (f *Fake) DropAnswers(op messaging.Op, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropped[op] = n
}

// Starts returns how many commands were started.
func (f *Fake) Starts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.starts
}

func (f *Fake) handle(ctx context.Context, s *messaging.Server, r *messaging.Request) (any, error) {
	f.mu.Lock()
	owner := f.owner
	f.mu.Unlock()
	if owner != "" && owner != s.Worker() && r.From == "" {
		if err := s.Forward(ctx, r, owner, messaging.ForwardWait); err == nil {
			return nil, messaging.ErrForwarded
		}
		f.SetOwner(s.Worker()) // adopt
	}
	result, err := f.serve(ctx, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dropped[r.Op] > 0 {
		f.dropped[r.Op]--
		return nil, messaging.ErrForwarded
	}
	return result, err
}

func (f *Fake) serve(ctx context.Context, r *messaging.Request) (any, error) {
	switch body := r.Body.(type) {
	case *messaging.CreateRequest:
		return f.create(r, body)
	case *messaging.ListRequest:
		return f.list(), nil
	case *messaging.DestroyRequest:
		f.mu.Lock()
		defer f.mu.Unlock()
		_, ok := f.boxes[body.Sandbox]
		delete(f.boxes, body.Sandbox)
		return messaging.DestroyAnswer{Existed: ok}, nil
	case *messaging.WorkersRequest:
		return messaging.WorkersAnswer{Workers: []messaging.WorkerInfo{{ID: "fake", Provider: "fake", State: "serving"}}}, nil
	case *messaging.SweepRequest:
		return messaging.SweepAnswer{}, nil
	case *messaging.LockListRequest:
		return messaging.LockListAnswer{}, nil
	}
	b, err := f.find(r)
	if err != nil {
		return nil, err
	}
	switch body := r.Body.(type) {
	case *messaging.ExecRequest:
		return f.exec(ctx, r, b, body)
	case *messaging.FollowRequest:
		return f.follow(ctx, r, b, body)
	case *messaging.StdinRequest, *messaging.SignalRequest, *messaging.ResizeRequest, *messaging.WaitRequest:
		return f.toProc(ctx, r, b)
	case *messaging.KillRequest:
		return f.kill(b, body), nil
	case *messaging.CommandsRequest:
		return f.commands(b), nil
	case *messaging.LockAcquireRequest, *messaging.LockRenewRequest, *messaging.LockReleaseRequest:
		return f.lock(r)
	case *messaging.ForwardRequest:
		return echo(ctx, r)
	case *messaging.StatsRequest:
		return sandbox.Stats{Pids: 1, PidsLimit: 512}, nil
	case *messaging.EgressSetRequest:
		f.mu.Lock()
		defer f.mu.Unlock()
		b.info.Egress = body.Egress
		return body.Egress, nil
	}
	return f.file(ctx, r, b)
}

// find returns the sandbox that r names, and says in the answer where it is.
func (f *Fake) find(r *messaging.Request) (*box, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := r.Target()
	b := f.boxes[t.Sandbox]
	switch {
	case b == nil:
		return nil, sandbox.Errorf(sandbox.NotFound, "there is no sandbox %s", t.Sandbox)
	case t.Generation != "" && t.Generation != b.info.Generation:
		return nil, sandbox.Errorf(sandbox.Stale, "the sandbox has been made anew")
	}
	r.Boot, r.Generation, r.Epoch = f.boot, b.info.Generation, 1
	return b, nil
}

func (f *Fake) create(r *messaging.Request, body *messaging.CreateRequest) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b, ok := f.boxes[body.Name]; ok && !body.Replace {
		if b.info.Generation == r.ID {
			return b.info, nil
		}
		return nil, sandbox.Errorf(sandbox.Exists, "the sandbox %s exists", body.Name)
	}
	b := &box{
		info: messaging.SandboxInfo{
			Tenant: r.Tenant, Name: body.Name, Generation: r.ID, State: messaging.Running, Provider: "fake",
			Boot: f.boot, Limits: body.Limits, Egress: body.Egress, Metadata: body.Metadata, Created: time.Now(), LastUse: time.Now(),
		},
		files: map[string][]byte{}, procs: map[sandbox.CommandID]*Proc{},
	}
	f.boxes[body.Name] = b
	r.Boot, r.Generation, r.Epoch = f.boot, r.ID, 1
	return b.info, nil
}

func (f *Fake) list() messaging.ListAnswer {
	f.mu.Lock()
	defer f.mu.Unlock()
	var a messaging.ListAnswer
	for _, b := range f.boxes {
		a.Sandboxes = append(a.Sandboxes, b.info)
	}
	slices.SortFunc(a.Sandboxes, func(x, y messaging.SandboxInfo) int { return strings.Compare(string(x.Name), string(y.Name)) })
	return a
}

// echo sends back what comes from the client of a forwarded port.
func echo(ctx context.Context, r *messaging.Request) (any, error) {
	if err := r.Output().Started(0, messaging.Done{}); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, r.Input().Close)
	defer stop()
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Input().Read(buf)
		if errors.Is(err, io.EOF) {
			return messaging.Done{}, nil
		}
		if err != nil {
			return nil, err
		}
		if err := r.Output().Data(ctx, sandbox.Stdout, buf[:n]); err != nil {
			return nil, err
		}
	}
}

func (f *Fake) lock(r *messaging.Request) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch body := r.Body.(type) {
	case *messaging.LockAcquireRequest:
		key := string(body.Sandbox) + "." + string(body.Tag)
		if l, ok := f.locks[key]; ok && time.Since(l.Since) < l.TTL.Duration() {
			return nil, sandbox.Errorf(sandbox.Locked, "held by %s", l.Holder)
		}
		l := messaging.Lock{Sandbox: body.Sandbox, Tag: body.Tag, Token: sandbox.NewID(), Holder: body.Holder, State: "granted", TTL: body.TTL, Since: time.Now()}
		f.locks[key] = l
		return l, nil
	case *messaging.LockRenewRequest:
		key := string(body.Sandbox) + "." + string(body.Tag)
		l := f.locks[key]
		if l.Token != body.Token {
			return nil, sandbox.Errorf(sandbox.Fenced, "another holds the lock")
		}
		l.Since = time.Now()
		f.locks[key] = l
		return l, nil
	case *messaging.LockReleaseRequest:
		delete(f.locks, string(body.Sandbox)+"."+string(body.Tag))
	}
	return messaging.Done{}, nil
}

// TakeLock gives a tag's lock to somebody else.
func (f *Fake) TakeLock(name sandbox.Name, tag sandbox.Tag) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.locks[string(name)+"."+string(tag)] = messaging.Lock{Token: "other", Since: time.Now(), TTL: 60_000}
}

func (f *Fake) file(ctx context.Context, r *messaging.Request, b *box) (any, error) {
	switch body := r.Body.(type) {
	case *messaging.GetRequest:
		f.mu.Lock()
		defer f.mu.Unlock()
		info := b.info
		info.Boot = f.boot
		return info, nil
	case *messaging.WriteRequest:
		data := body.Data
		if body.Upload {
			var err error
			if data, err = io.ReadAll(r.Input()); err != nil {
				return nil, err
			}
			if body.Size >= 0 && int64(len(data)) != body.Size {
				return nil, sandbox.InvalidField("size", "%d announced, %d came", body.Size, len(data))
			}
		}
		return f.put(b, body.Path, data, body.IfAbsent)
	case *messaging.TarPutRequest:
		data, err := io.ReadAll(r.Input())
		if err != nil {
			return nil, err
		}
		if _, err := f.put(b, body.Path, data, false); err != nil {
			return nil, err
		}
		return messaging.TarPutAnswer{Entries: 1, Bytes: int64(len(data))}, nil
	case *messaging.ReadRequest:
		return f.read(ctx, r, b, body.Path, body.ReadOptions)
	case *messaging.TarGetRequest:
		return f.read(ctx, r, b, body.Path, sandbox.ReadOptions{})
	}
	return f.names(r, b)
}

func (f *Fake) put(b *box, name string, data []byte, ifAbsent bool) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := b.files[name]; ok && ifAbsent {
		return nil, sandbox.Errorf(sandbox.Exists, "%s exists", name)
	}
	b.files[name] = bytes.Clone(data)
	return info(name, data), nil
}

func info(name string, data []byte) sandbox.FileInfo {
	sum := sha256.Sum256(data)
	return sandbox.FileInfo{Path: name, Kind: sandbox.FileRegular, Size: int64(len(data)), Mode: 0o644, SHA256: hex.EncodeToString(sum[:])}
}

func (f *Fake) read(ctx context.Context, r *messaging.Request, b *box, name string, o sandbox.ReadOptions) (any, error) {
	f.mu.Lock()
	data, ok := b.files[name]
	f.mu.Unlock()
	if !ok {
		return nil, sandbox.Errorf(sandbox.NotFound, "there is no file %s", name)
	}
	whole := info(name, data)
	data = data[min(o.Offset, int64(len(data))):]
	cut := o.Limit > 0 && int64(len(data)) > o.Limit
	if cut {
		data = data[:o.Limit]
	}
	if err := r.Output().Started(0, messaging.Done{}); err != nil {
		return nil, err
	}
	if err := r.Output().Data(ctx, sandbox.Stdout, data); err != nil {
		return nil, err
	}
	return messaging.ReadEnd{Info: whole, Bytes: int64(len(data)), Truncated: cut}, nil
}

func (f *Fake) names(r *messaging.Request, b *box) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch body := r.Body.(type) {
	case *messaging.StatRequest:
		data, ok := b.files[body.Path]
		if !ok {
			return nil, sandbox.Errorf(sandbox.NotFound, "there is no file %s", body.Path)
		}
		return info(body.Path, data), nil
	case *messaging.FilesRequest:
		var l sandbox.FileList
		for name, data := range b.files {
			if path.Dir(name) == body.Path {
				l.Entries = append(l.Entries, info(name, data))
			}
		}
		return l, nil
	case *messaging.RemoveRequest:
		if _, ok := b.files[body.Path]; !ok {
			return nil, sandbox.Errorf(sandbox.NotFound, "there is no file %s", body.Path)
		}
		delete(b.files, body.Path)
	case *messaging.RenameRequest:
		data, ok := b.files[body.Path]
		if !ok {
			return nil, sandbox.Errorf(sandbox.NotFound, "there is no file %s", body.Path)
		}
		delete(b.files, body.Path)
		b.files[body.To] = data
	case *messaging.MkdirRequest:
	default:
		return nil, sandbox.Errorf(sandbox.Unsupported, "the fake does not serve %s", r.Op)
	}
	return messaging.Done{}, nil
}

package envd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// selector names a process.
type selector struct {
	PID *pid    `json:"pid"`
	Tag *string `json:"tag"`
}

// find returns the process that sel names, also one whose end is retained when
// late is set. Of several with one tag it takes the newest; which one the real
// daemon takes is left to chance.
func (s *Server) find(sel *selector, late bool) (*proc, *rpcError) {
	if sel == nil || (sel.PID == nil && sel.Tag == nil) {
		return nil, rpcErrorf("unimplemented", "invalid input type *process.ProcessSelector")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sel.PID != nil {
		if p := s.procs[int(*sel.PID)]; p != nil && (late || !p.over()) {
			return p, nil
		}
		return nil, rpcErrorf("not_found", "process with pid %d not found", *sel.PID)
	}
	var found *proc
	for _, p := range s.procs {
		if p.tag != nil && *p.tag == *sel.Tag && (late || !p.over()) && (found == nil || p.number > found.number) {
			found = p
		}
	}
	if found != nil {
		return found, nil
	}
	return nil, rpcErrorf("not_found", "process with tag %s not found", *sel.Tag)
}

func (p *proc) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (s *Server) list(*http.Request, []byte) (any, *rpcError) {
	type item struct {
		Config processConfig `json:"config"`
		PID    int           `json:"pid"`
		Tag    *string       `json:"tag,omitempty"`
	}
	var out struct {
		Processes []item `json:"processes,omitempty"`
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, p := range s.procs {
		if !p.over() {
			out.Processes = append(out.Processes, item{Config: p.config, PID: n, Tag: p.tag})
		}
	}
	slices.SortFunc(out.Processes, func(a, b item) int { return a.PID - b.PID })
	return out, nil
}

// input is what SendInput and StreamInput carry.
type input struct {
	Stdin *[]byte `json:"stdin"`
	Pty   *[]byte `json:"pty"`
}

func (p *proc) write(in *input) *rpcError {
	switch {
	case in == nil || (in.Stdin == nil && in.Pty == nil):
		return rpcErrorf("unimplemented", "invalid input type <nil>")
	case in.Pty != nil:
		return rpcErrorf("internal", "error writing to tty: tty not assigned to process — input should be written to the stdin, not the tty")
	}
	p.mu.Lock()
	stdin := p.stdin
	p.mu.Unlock()
	if stdin == nil {
		return rpcErrorf("internal", "error writing to stdin: stdin not enabled or closed")
	}
	if _, err := stdin.Write(*in.Stdin); err != nil {
		return rpcErrorf("internal", "error writing to stdin: %v", err)
	}
	return nil
}

func (s *Server) sendInput(_ *http.Request, body []byte) (any, *rpcError) {
	var req struct {
		Process *selector `json:"process"`
		Input   *input    `json:"input"`
	}
	if err := unmarshal("SendInputRequest", body, &req); err != nil {
		return nil, err
	}
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	return struct{}{}, p.write(req.Input)
}

func (s *Server) closeStdin(_ *http.Request, body []byte) (any, *rpcError) {
	var req struct {
		Process *selector `json:"process"`
	}
	if err := unmarshal("CloseStdinRequest", body, &req); err != nil {
		return nil, err
	}
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stdin != nil {
		_ = p.stdin.Close()
		p.stdin = nil
	}
	return struct{}{}, nil
}

// signalName reads an enum as protobuf's JSON does: a name or a number, and an
// unknown name counts as 0.
func signalName(raw json.RawMessage) string {
	text := strings.Trim(string(raw), `"`)
	switch text {
	case "SIGNAL_SIGTERM", "15":
		return "SIGNAL_SIGTERM"
	case "SIGNAL_SIGKILL", "9":
		return "SIGNAL_SIGKILL"
	}
	if n, err := strconv.Atoi(text); err == nil && n != 0 {
		return text
	}
	return "SIGNAL_UNSPECIFIED"
}

func (s *Server) sendSignal(_ *http.Request, body []byte) (any, *rpcError) {
	var req struct {
		Process *selector       `json:"process"`
		Signal  json.RawMessage `json:"signal"`
	}
	if err := unmarshal("SendSignalRequest", body, &req); err != nil {
		return nil, err
	}
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	switch name := signalName(req.Signal); name {
	case "SIGNAL_SIGTERM":
		p.signal(syscall.SIGTERM)
	case "SIGNAL_SIGKILL":
		p.signal(syscall.SIGKILL)
	default:
		return nil, rpcErrorf("unimplemented", "invalid signal: %s", name)
	}
	return struct{}{}, nil
}

// update resizes a terminal; this fake has none, so that it only refuses.
func (s *Server) update(_ *http.Request, body []byte) (any, *rpcError) {
	var req struct {
		Process *selector `json:"process"`
	}
	if err := unmarshal("UpdateRequest", body, &req); err != nil {
		return nil, err
	}
	if _, err := s.find(req.Process, false); err != nil {
		return nil, err
	}
	return nil, rpcErrorf("internal", "error resizing tty: tty not assigned to process")
}

type startRequest struct {
	Process processConfig   `json:"process"`
	Pty     json.RawMessage `json:"pty"`
	Tag     *string         `json:"tag"`
	Stdin   *bool           `json:"stdin"`
}

func (s *Server) start(ctx context.Context, r *http.Request, messages [][]byte, out *sender) *rpcError {
	body, err := single(messages)
	if err != nil {
		return err
	}
	var req startRequest
	if err := unmarshal("StartRequest", body, &req); err != nil {
		return err
	}
	if req.Pty != nil {
		return rpcErrorf("unimplemented", "this fake has no terminals")
	}
	p, err := s.launch(r, req)
	if err != nil {
		return err
	}
	return s.follow(ctx, r, p, p.first, out)
}

func (s *Server) launch(r *http.Request, req startRequest) (*proc, *rpcError) {
	a, rpcErr := s.userOf(r)
	if rpcErr != nil {
		return nil, rpcErr
	}
	dir, err := s.resolve(req.Process.Cwd, a)
	if err != nil {
		return nil, rpcErrorf("invalid_argument", "%v", err)
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, rpcErrorf("invalid_argument", "cwd '%s' does not exist", req.Process.Cwd)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, rpcErrorf("unknown", "the daemon is shutting down")
	}
	p, err := launch(req.Process, s.environment(a, req.Process.Envs), dir, s.credential(a), req.Stdin == nil || *req.Stdin)
	if err != nil {
		return nil, rpcErrorf("invalid_argument", "error starting process '%s': %v", req.Process.Cmd, plainCause(err, dir))
	}
	s.launched++
	p.config, p.tag, p.number = req.Process, req.Tag, s.launched
	n := p.cmd.Process.Pid
	s.procs[n] = p
	go s.forget(n, p)
	return p, nil
}

// plainCause writes a start failure with the program's path, as Go's own error
// names the directory instead when that is what is wrong.
func plainCause(err error, dir string) string {
	if errors.Is(err, syscall.ENOTDIR) {
		return "fork/exec /bin/sh: not a directory"
	}
	return strings.ReplaceAll(err.Error(), "chdir "+dir+": ", "")
}

// forget drops a process when its end is no longer kept.
func (s *Server) forget(n int, p *proc) {
	<-p.done
	select {
	case <-time.After(retention):
	case <-s.ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.procs[n] == p {
		delete(s.procs, n)
	}
}

// environment is all that a process gets.
func (s *Server) environment(a account, extra map[string]string) []string {
	env := map[string]string{"PATH": os.Getenv("PATH"), "HOME": a.home, "USER": a.name, "LOGNAME": a.name}
	maps.Copy(env, s.globalEnv())
	maps.Copy(env, extra)
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	return list
}

// connect joins a process: a start event, then what comes from now on.
func (s *Server) connect(ctx context.Context, r *http.Request, messages [][]byte, out *sender) *rpcError {
	body, err := single(messages)
	if err != nil {
		return err
	}
	var req struct {
		Process *selector `json:"process"`
	}
	if err := unmarshal("ConnectRequest", body, &req); err != nil {
		return err
	}
	p, err := s.find(req.Process, true)
	if err != nil {
		return err
	}
	return s.follow(ctx, r, p, p.subscribe(), out)
}

// follow streams p's events until its end, the client's, or the deadline.
func (s *Server) follow(ctx context.Context, r *http.Request, p *proc, events chan any, out *sender) *rpcError {
	defer p.unsubscribe(events)
	var started startEvent
	started.Start.PID = p.cmd.Process.Pid
	if out.message(message{started}) != nil {
		return nil
	}
	every, err := s.keepalive(r)
	if err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case ev := <-events:
			tick.Reset(every)
			if out.message(message{ev}) != nil {
				return nil
			}
		case <-tick.C:
			if out.message(message{keepaliveEvent{}}) != nil {
				return nil
			}
		case <-p.done:
			return p.flush(events, out)
		case <-ctx.Done():
			return p.expire(ctx)
		}
	}
}

// keepalive reads the interval. 0 takes the whole daemon down, as it does in
// the recorded version.
func (s *Server) keepalive(r *http.Request) (time.Duration, *rpcError) {
	text := r.Header.Get("Keepalive-Ping-Interval")
	if text == "" {
		return 90 * time.Second, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil { // what the real one does with such a value is unverified
		return 0, rpcErrorf("invalid_argument", "parse keepalive interval: %v", err)
	}
	if n < 1 {
		s.crashed.Store(true)
		panic(http.ErrAbortHandler)
	}
	return time.Duration(n) * time.Second, nil
}

// flush sends what was published before the end, then the end.
func (p *proc) flush(events chan any, out *sender) *rpcError {
	for {
		select {
		case ev := <-events:
			_ = out.message(message{ev}) // who does not listen any more misses it
		default:
			_ = out.message(message{endEvent{p.end}})
			return nil
		}
	}
}

// expire ends a stream whose client left, which ends nothing else, or whose
// deadline passed, which kills the process.
func (p *proc) expire(ctx context.Context) *rpcError {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		p.signal(syscall.SIGKILL)
		return rpcErrorf("deadline_exceeded", "context deadline exceeded")
	}
	return rpcErrorf("unknown", "%v", ctx.Err())
}

// streamInput takes any number of inputs for one process.
func (s *Server) streamInput(_ context.Context, _ *http.Request, messages [][]byte, out *sender) *rpcError {
	var p *proc
	for _, body := range messages {
		var req struct {
			Start *struct {
				Process *selector `json:"process"`
			} `json:"start"`
			Data *struct {
				Input *input `json:"input"`
			} `json:"data"`
		}
		err := unmarshal("StreamInputRequest", bytes.Clone(body), &req)
		switch {
		case err != nil:
		case req.Start != nil:
			p, err = s.find(req.Start.Process, false)
		case req.Data != nil && p == nil:
			err = rpcErrorf("unknown", "the stream does not begin with a start message")
		case req.Data != nil:
			err = p.write(req.Data.Input)
		}
		if err != nil {
			return err
		}
	}
	if err := out.message(struct{}{}); err != nil {
		return rpcErrorf("unknown", "%s", fmt.Sprint(err))
	}
	return nil
}

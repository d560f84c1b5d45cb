package filter

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// checkWait bounds the whole of a check.
const checkWait = 30 * time.Second

// Check tries a policy on an engine: it sends harmless calls through a filter
// of its own, some that must pass and some that must not, and reads the
// engine's state. It changes nothing. dial must reach the engine itself.
func Check(ctx context.Context, policy *Policy, dial func(context.Context) (net.Conn, error)) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	state, err := ReadEngine(ctx, dial)
	if err != nil {
		return nil, err
	}
	tried, err := tryPolicy(ctx, policy, policy.common(state.API), dial)
	return append(state.Findings(), tried...), err
}

// common is the version that engine and policy have in common: the newest.
func (p *Policy) common(api string) string {
	if p.admitsVersion(api) {
		return api
	}
	return p.MaxAPI
}

func tryPolicy(ctx context.Context, policy *Policy, version string, dial func(context.Context) (net.Conn, error)) ([]Finding, error) {
	var sent atomic.Int64 // bytes that reached the engine
	f, err := New(Config{Policy: policy, Log: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		return countingConn{c, &sent}, err
	}})
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "dockerfilter")
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := ListenUnix(ctx, filepath.Join(dir, "socket"), "")
	if err != nil {
		return nil, err
	}
	serving, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- f.Serve(serving, l) }()
	transport := newTransport(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
	})
	defer transport.CloseIdleConnections()
	var out []Finding
	for _, p := range policy.probes("/v" + version) {
		before := sent.Load()
		status, err := p.send(ctx, transport)
		out = append(out, p.judge(status, err, sent.Load() > before))
	}
	stop()
	return out, <-done
}

// A countingConn counts what is written to it.
type countingConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.sent.Add(int64(n))
	return n, err
}

// A probe is a request that a check sends through a filter.
type probe struct {
	name, method, target, body string
	pass                       bool // it must reach the engine
}

// probes are what must pass and what must not, under any policy. v begins the
// targets. None of them would change anything, even if it got through: the
// container that they name does not exist.
func (p *Policy) probes(v string) []probe {
	nobody := p.Prefix + "x-check.x"
	probes := []probe{
		{name: "ping", method: "GET", target: "/_ping", pass: true},
		{name: "state of the host", method: "GET", target: v + "/info"},
		{name: "list of all containers", method: "GET", target: v + "/containers/json?all=1"},
		{name: "list by a foreign label", method: "GET", target: v + `/containers/json?filters={"label":["x"]}`},
		{name: "encoded path", method: "GET", target: v + "/%63ontainers/json"},
		{name: "container by id", method: "GET", target: v + "/containers/deadbeef/json"},
		{name: "old API version", method: "GET", target: "/v1.24/containers/" + nobody + "/json"},
		{name: "files of a container", method: "GET", target: v + "/containers/" + nobody + "/archive?path=/"},
		{name: "image import", method: "POST", target: v + "/images/create?fromSrc=-&repo=x"},
		{name: "host bind", method: "POST", target: v + "/containers/create?name=" + nobody, body: `{"Image":"x","HostConfig":{"Binds":["/:/host"]}}`},
		{name: "privileged exec", method: "POST", target: v + "/containers/" + nobody + "/exec", body: `{"Privileged":true,"Cmd":["id"]}`},
	}
	if _, ok := p.Calls["container.inspect"]; ok {
		probes = append(probes, probe{name: "inspection of a container of ours", method: "GET", target: v + "/containers/" + nobody + "/json", pass: true})
	}
	return probes
}

func (p *probe) send(ctx context.Context, transport *http.Transport) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, p.method, "http://docker", strings.NewReader(p.body))
	if err != nil {
		return 0, err
	}
	if p.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.URL.Opaque = p.target // as it is, nothing encoded
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, err
}

func (p *probe) judge(status int, err error, reached bool) Finding {
	f := Finding{Level: LevelOK, Name: "policy", Detail: p.name + " is refused"}
	if p.pass {
		f.Detail = p.name + " passes"
	}
	if err != nil || reached != p.pass || p.pass && status >= 500 || !p.pass && status < 400 {
		f = Finding{
			LevelProblem, "policy", fmt.Sprintf("%s: pass wanted %t, reached the engine %t, status %d", p.name, p.pass, reached, status),
			"do not use this filter with this policy",
		}
	}
	return f
}

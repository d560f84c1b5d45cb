package e2e_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"shoal/docker/dockertest"
	"shoal/messaging"
	"shoal/sandbox"
)

// runtimes are those of the engine that sandboxes can run under.
func runtimes(t *testing.T) []string {
	t.Helper()
	list := []string{"runc"}
	if dockertest.HasRuntime(t, "runsc") {
		list = append(list, "runsc")
	}
	return list
}

// allow is an allowlist of hosts.
func allow(hosts ...string) sandbox.Egress {
	return sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: hosts}
}

// internet is a sandbox with what its programs need to trust the world.
type internet struct {
	t   *testing.T
	f   *fleet
	w   *world
	box messaging.Target
	env map[string]string
}

func newInternet(t *testing.T, f *fleet, w *world, r messaging.CreateRequest) *internet {
	t.Helper()
	box := f.create(r)
	return &internet{t: t, f: f, w: w, box: box, env: w.trust(t, f, box)}
}

// run runs a shell command and returns its exit code and its output together.
func (i *internet) run(shell string) (int, string) {
	i.t.Helper()
	r, err := i.f.client.Run(i.t.Context(), i.box, sandbox.Command{Shell: shell, Env: i.env, Timeout: sandbox.Millis(3 * time.Minute)}, messaging.RunOptions{})
	if err != nil {
		i.t.Fatalf("run %q: %v", shell, err)
	}
	return r.Code, string(r.Stdout) + string(r.Stderr)
}

// must runs a command that has to succeed and print want.
func (i *internet) must(what, shell, want string) {
	i.t.Helper()
	if code, out := i.run(shell); code != 0 || !strings.Contains(out, want) {
		i.t.Errorf("%s: exit code %d, output %q, want %q", what, code, out, want)
	}
}

// refused runs a command that has to fail by an answer, not by a time-out of its
// own, with want in its output; pip alone takes 10 s to start on a busy machine.
func (i *internet) refused(what, shell, want string) {
	i.t.Helper()
	within(i.t, time.Minute, what, func() {
		if code, out := i.run(shell); code == 0 || !strings.Contains(out, want) {
			i.t.Errorf("%s: exit code %d, output %q, want a failure with %q", what, code, out, want)
		}
	})
}

// The programs that people use get what is listed and nothing else, after a
// restart of the proxy as well.
func TestEgressPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addPackage(t, "shoalprobe")
	w.addRepository(t)
	for _, runtime := range runtimes(t) {
		t.Run(runtime, func(t *testing.T) {
			f := newEgressFleet(t, w, 1, "--runtime", runtime)
			i := newInternet(t, f, w, messaging.CreateRequest{Egress: allow(listed, inside, onHost)})
			i.must("curl", "curl -sS https://"+listed+"/hello", "hello from "+listed)
			i.must("curl of plain HTTP", "curl -sS http://"+listed+"/hello", "hello from "+listed)
			i.must("pip", "pip download -q --no-deps -d out --index-url https://"+listed+"/simple/ shoalprobe && python3 -c 'import sys; sys.path.insert(0, \"out/shoalprobe-1.0-py3-none-any.whl\"); import shoalprobe; print(shoalprobe.answer)'", "42")
			i.must("git", "git clone -q https://"+listed+"/repo.git && cat repo/README", "cloned")
			i.must("urllib", `python3 -c 'import urllib.request as u; print(u.urlopen("https://`+listed+`/hello").read())'`, "hello from "+listed)

			before := w.hits[unlisted].Load()
			i.refused("curl", "curl -sS https://"+unlisted+"/hello", "403")
			i.must("curl of plain HTTP, refused", "curl -sS http://"+unlisted+"/hello", "not_listed")
			i.refused("pip", "pip download -q --retries 0 --no-deps -d out --index-url https://"+unlisted+"/simple/ shoalprobe", "No matching distribution")
			i.refused("git", "git clone -q https://"+unlisted+"/repo.git other", "403")
			i.refused("urllib", `python3 -c 'import urllib.request as u; u.urlopen("https://`+unlisted+`/hello")'`, "403")
			i.refused("a listed name that resolves to loopback", "curl -sS https://"+inside+"/", "403")
			i.refused("a listed name that resolves to this machine", "curl -sS https://"+onHost+"/", "403")
			i.refused("an address instead of a name", "curl -sS https://93.184.215.10/", "403")
			if n := w.hits[unlisted].Load() - before; n != 0 {
				t.Errorf("%d requests reached the host that is not listed", n)
			}
			i.counts(5, 8)

			// EG-15: the proxy is found by its address, also when it has been restarted.
			f.workers[0].kill()
			f.replaceDead()
			i.must("curl after a restart of the proxy", "curl -sS https://"+listed+"/hello", "hello from "+listed)
			i.refused("curl after a restart of the proxy", "curl -sS https://"+unlisted+"/hello", "403")
		})
	}
}

// counts checks that the owner's counters have at least this many verdicts.
func (i *internet) counts(allowed, denied uint64) {
	i.t.Helper()
	a, err := i.f.client.Egress(i.t.Context(), i.box)
	if err != nil || a.Counts == nil || a.Counts.Allowed < allowed || a.Counts.Denied < denied {
		i.t.Errorf("the counters: %+v, %v; want %d allowed and %d denied at least", a.Counts, err, allowed, denied)
	}
}

// around tries every other way out. Each attempt prints its name and how it
// failed, or REACHED; none may take long.
const around = `
import os, socket, sys, time
slow = []
def attempt(name, fn):
    start = time.monotonic()
    try:
        fn()
        print("REACHED", name)
    except Exception as e:
        print(name, type(e).__name__, e)
    if time.monotonic() - start > 2:
        print("SLOW", name, time.monotonic() - start)
def tcp(host, port):
    socket.create_connection((host, port), timeout=5).close()
def udp(host, port, family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(5)
    s.connect((host, port)) # so that a refusal is heard
    s.send(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01")
    s.recv(512)
def raw(family, kind, proto):
    socket.socket(family, kind, proto).close()
attempt("tcp", lambda: tcp("93.184.215.10", 443))
attempt("tcp6", lambda: tcp("2606:4700::1111", 443))
attempt("udp", lambda: udp("93.184.215.10", 53))
attempt("udp6", lambda: udp("2606:4700::1111", 53, socket.AF_INET6))
attempt("docker's resolver", lambda: udp("127.0.0.11", 53))
attempt("dns", lambda: socket.getaddrinfo("files.shoal.test", 443))
attempt("metadata", lambda: tcp("169.254.169.254", 80))
attempt("icmp", lambda: raw(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("packet", lambda: raw(socket.AF_PACKET, socket.SOCK_RAW, 3))
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    attempt("host " + target, lambda: tcp(host, int(port)))
    attempt("host udp " + target, lambda: udp(host, int(port)))
print("interfaces", [n for _, n in socket.if_nameindex()])
print("DONE")
`

// EG-14: nothing but the proxy's address leads out; no listener of this
// machine can be reached, on whatever address it is.
func TestEgressNoWayAround(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	targets := hostListeners(t)
	for _, runtime := range runtimes(t) {
		t.Run(runtime, func(t *testing.T) {
			f := newEgressFleet(t, w, 1, "--runtime", runtime)
			for mode, e := range map[string]sandbox.Egress{"none": {Mode: sandbox.EgressNone}, "allowlist": allow(listed)} {
				i := newInternet(t, f, w, messaging.CreateRequest{Egress: e})
				i.put("around.py", around)
				code, out := i.run("python3 around.py " + strings.Join(targets, " "))
				if code != 0 || !strings.Contains(out, "DONE") || strings.Contains(out, "REACHED") || strings.Contains(out, "SLOW") {
					t.Errorf("%s: exit code %d\n%s", mode, code, out)
				}
				i.refused("past the proxy", "curl -sS --noproxy '*' https://"+listed+"/hello", "curl: (6)")
				i.refused("past the proxy by address", "curl -sS --noproxy '*' -k https://93.184.215.10/hello", "curl: (7)")
				through, refused := "curl -sS --noproxy '' -w '%{http_code} '", strings.Repeat("403 ", len(targets))
				for _, target := range targets {
					through += " -o /dev/null http://" + target + "/"
				}
				i.must("through the proxy to each", through, refused)
			}
		})
	}
}

func (i *internet) put(path, text string) {
	i.t.Helper()
	target := messaging.PathTarget{Target: i.box, Path: "/workspace/" + path}
	if _, err := i.f.client.WriteFile(i.t.Context(), target, []byte(text), sandbox.WriteOptions{Size: int64(len(text))}); err != nil {
		i.t.Fatal(err)
	}
}

// hostListeners starts what a careless host has on 0.0.0.0 (a NATS server, a
// worker's health checks, a web server) and returns all addresses by which
// this machine reaches them.
func hostListeners(t *testing.T) []string {
	t.Helper()
	bus, health, l := freePort(t), freePort(t), listenAll(t)
	start(t, "nats-server", nil, "-a", "0.0.0.0", "-p", strconv.Itoa(bus), "-js", "-sd", t.TempDir())
	start(t, "worker", nil, "--state-dir", t.TempDir(), "--fleet", dockertest.Fleet(t), "--image", dockertest.Image, "--http-addr", "0.0.0.0:"+strconv.Itoa(health))
	var targets []string
	for _, addr := range hostAddrs(t) {
		if addr.Is6() {
			continue // 0.0.0.0 is IPv4
		}
		for _, port := range []int{bus, health, l} {
			target := net.JoinHostPort(addr.String(), strconv.Itoa(port))
			eventually(t, 30*time.Second, "this machine reaches "+target, func() error {
				conn, err := net.DialTimeout("tcp", target, time.Second)
				if err == nil {
					_ = conn.Close()
				}
				return err
			})
			targets = append(targets, target)
		}
	}
	return targets
}

// listenAll serves HTTP on every address and returns the port.
func listenAll(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(rw, "secret")
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

// EG-19: a caller's variables reach programs in the sandbox alone, and the
// proxy's win.
func TestEgressEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := newEgressFleet(t, w, 1)
	evil := map[string]string{
		"HTTP_PROXY": "http://10.0.0.1:1", "https_proxy": "http://10.0.0.1:1", "no_proxy": "*", "NO_PROXY": "*",
		"LD_PRELOAD": "/workspace/evil.so", "NODE_OPTIONS": "--require=/workspace/evil.js", "EVIL_MARK": "evil",
	}
	i := newInternet(t, f, w, messaging.CreateRequest{Egress: allow(listed), Env: evil})
	for name, value := range evil {
		if name != "LD_PRELOAD" { // the loader complains about a file that is not there
			i.env[name] = value
		}
	}
	i.must("the proxy's variables", "env", "https_proxy=http://127.0.0.1:3128")
	i.must("the caller's variables", "env", "EVIL_MARK=evil")
	i.must("curl", "curl -sS https://"+listed+"/hello", "hello from "+listed)
	if _, out := i.run("env | grep -i proxy"); strings.Contains(out, "10.0.0.1") || strings.Contains(out, "=*") {
		t.Errorf("a caller has changed the proxy: %s", out)
	}
	p, _ := f.owner(i.box)
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/environ")
	if err != nil || strings.Contains(string(data), "EVIL_MARK") {
		t.Errorf("the worker's own environment: %v, %q", err, data)
	}
}

// A large download arrives whole, and the worker does not grow with it.
func TestEgressBigDownload(t *testing.T) {
	t.Parallel()
	mib := lasting(128, 512)
	size := int64(mib) << 20
	w := newWorld(t)
	f := newEgressFleet(t, w, 1)
	i := newInternet(t, f, w, messaging.CreateRequest{Egress: allow(listed)})
	sum := sha256.New()
	if _, err := io.CopyN(sum, bigFile(), size); err != nil {
		t.Fatal(err)
	}
	want := hex.EncodeToString(sum.Sum(nil))
	owner, _ := f.owner(i.box)
	i.must("a first download", "curl -sS 'https://"+listed+"/big?n=1048576' | wc -c", "1048576")
	before := owner.rss()
	most, stop := peak(owner)
	start := time.Now()
	i.must("the download", fmt.Sprintf("curl -sS 'https://%s/big?n=%d' | sha256sum", listed, size), want)
	took := time.Since(start)
	stop()
	host := w.download(t, size)
	t.Logf("%d MiB: %.0f MiB/s through the proxy, %.0f MiB/s on this machine directly; the worker's memory %d MiB before, %d MiB at most",
		mib, float64(mib)/took.Seconds(), float64(mib)/host.Seconds(), before>>10, most()>>10)
	if grown := most() - before; grown > 48<<10 {
		t.Errorf("the worker grew by %d MiB", grown>>10)
	}
}

// peak samples a process's memory in KiB until stop.
func peak(p *process) (most func() int64, stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	var top int64
	go func() {
		defer close(done)
		for {
			top = max(top, p.rss())
			select {
			case <-quit:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() int64 { return top }, func() { close(quit); <-done }
}

// download fetches the big file from this process and returns how long it took.
func (w *world) download(t *testing.T, size int64) time.Duration {
	t.Helper()
	client := w.tls.Client()
	client.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true
	start := time.Now()
	resp, err := client.Get(w.tls.URL + "/big?n=" + strconv.FormatInt(size, 10))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(sha256.New(), resp.Body); err != nil || n != size {
		t.Fatalf("%d bytes, %v", n, err)
	}
	return time.Since(start)
}

// halves is a client that ends its direction first, and one that goes on after
// the server has ended.
const halves = `
import socket, hashlib
def tunnel(host):
    s = socket.create_connection(("127.0.0.1", 3128))
    s.sendall(b"CONNECT %s:80 HTTP/1.1\r\nHost: %s:80\r\n\r\n" % (host, host))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += s.recv(1)
    assert b" 200 " in head, head
    return s
data = bytes(range(256)) * 8192
s = tunnel(b"files.shoal.test")
s.sendall(data)
s.shutdown(socket.SHUT_WR)
answer = b""
while chunk := s.recv(65536):
    answer += chunk
assert answer == hashlib.sha256(data).hexdigest().encode(), answer
s = tunnel(b"more.shoal.test")
assert s.recv(10) == b"bye", "no greeting"
assert s.recv(10) == b"", "no end"
s.sendall(data)
s.shutdown(socket.SHUT_WR)
print("HALVES")
`

// A tunnel ends one direction at a time, either first.
func TestEgressHalfClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.raw(t, listed, func(c *net.TCPConn) {
		sum := sha256.New()
		_, _ = io.Copy(sum, c)
		_, _ = io.WriteString(c, hex.EncodeToString(sum.Sum(nil)))
	})
	got := make(chan int64, 1)
	w.raw(t, second, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "bye")
		_ = c.CloseWrite()
		n, _ := io.Copy(io.Discard, c)
		got <- n
	})
	f := newEgressFleet(t, w, 1)
	i := newInternet(t, f, w, messaging.CreateRequest{Egress: allow(listed, second)})
	i.put("halves.py", halves)
	i.must("half-closed tunnels", "python3 halves.py", "HALVES")
	select {
	case n := <-got:
		if n != 256*8192 {
			t.Errorf("the server got %d bytes after its own end", n)
		}
	case <-time.After(20 * time.Second):
		t.Error("the server never saw the client's end")
	}
}

package filter_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	catWords  = `["/bin/cat"]`
	fillWords = `["/bin/dd","if=/dev/zero","bs=1M","count=256","status=none"]`
	fillBytes = 256 << 20
)

// benchEngine is an engine with a running container of ours.
func benchEngine(b *testing.B) *realEngine {
	b.Helper()
	e := newRealEngine(b)
	e.policy.Exec.Cmds = append(e.policy.Exec.Cmds, []string{"/bin/dd", "if=/dev/zero", "bs=1M", "count=256", "status=none"})
	if status, body := e.through(b, "POST", e.createTarget(), e.create(b, nil)); status != http.StatusCreated {
		b.Fatalf("create: %d %s", status, body)
	}
	if status, body := e.through(b, "POST", "/containers/"+e.name+"/start", ""); status != http.StatusNoContent {
		b.Fatalf("start: %d %s", status, body)
	}
	return e
}

// attach makes and starts an exec as the provider does: a pooled connection for
// the first, one of its own for the second.
func attach(b *testing.B, hc *http.Client, socket, container, words string) (net.Conn, *bufio.Reader) {
	b.Helper()
	body := `{"AttachStdin":true,"AttachStdout":true,"AttachStderr":true,"Cmd":` + words + `,"User":"0:0"}`
	resp, err := hc.Post("http://docker/v1.41/containers/"+container+"/exec", "application/json", strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	var made struct {
		ID string `json:"Id"`
	}
	err = json.NewDecoder(resp.Body).Decode(&made)
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if err != nil || len(made.ID) != 64 {
		b.Fatalf("exec: status %d, error %v", resp.StatusCode, err)
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	const start = `{"Detach":false,"Tty":false}`
	_, _ = io.WriteString(c, post("/exec/"+made.ID+"/start", length(len(start))+"Connection: Upgrade\r\nUpgrade: tcp\r\n", start))
	br := bufio.NewReaderSize(c, 64<<10)
	answer, err := http.ReadResponse(br, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		b.Fatalf("start: %v %v", answer, err)
	}
	return c, br
}

// BenchmarkAttach compares an attach, up to the first byte that comes back,
// directly and through the filter, alternating.
func BenchmarkAttach(b *testing.B) {
	e := benchEngine(b)
	sockets := []string{e.socket, e.filter}
	clients := []*http.Client{unixClient(b, e.socket), unixClient(b, e.filter)}
	var took [2][]time.Duration
	for b.Loop() {
		for i := range sockets {
			began := time.Now()
			c, br := attach(b, clients[i], sockets[i], e.name, catWords)
			_, _ = io.WriteString(c, "x")
			if _, err := br.ReadByte(); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(began))
			_ = c.Close()
		}
	}
	b.ReportMetric(ms(median(took[0])), "direct-ms")
	b.ReportMetric(ms(median(took[1])), "filter-ms")
	reportAdded(b, took)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStream compares the rate of a stream's output, alternating.
func BenchmarkStream(b *testing.B) {
	e := benchEngine(b)
	sockets := []string{e.socket, e.filter}
	clients := []*http.Client{unixClient(b, e.socket), unixClient(b, e.filter)}
	var took [2][]time.Duration
	for b.Loop() {
		for i := range sockets {
			c, br := attach(b, clients[i], sockets[i], e.name, fillWords)
			began := time.Now()
			n, err := io.Copy(io.Discard, br)
			if err != nil || n < fillBytes {
				b.Fatalf("%d bytes, error %v", n, err)
			}
			took[i] = append(took[i], time.Since(began))
			_ = c.Close()
		}
	}
	direct, through := median(took[0]), median(took[1])
	b.ReportMetric(fillBytes/1e6/direct.Seconds(), "direct-MB/s")
	b.ReportMetric(fillBytes/1e6/through.Seconds(), "filter-MB/s")
	b.ReportMetric(direct.Seconds()/through.Seconds(), "ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAlone is the filter's own share, without an engine's noise: an
// attach and a stream of 64 MiB against an engine that answers at once.
func BenchmarkAlone(b *testing.B) {
	engine := quickEngine(b)
	policy := defaultPolicy(b)
	sockets := []string{engine, startUnixFilter(b, policy, engine, slog.New(slog.DiscardHandler))}
	clients := []*http.Client{unixClient(b, sockets[0]), unixClient(b, sockets[1])}
	var attached, streamed [2][]time.Duration
	for b.Loop() {
		for i := range sockets {
			began := time.Now()
			c, br := attach(b, clients[i], sockets[i], ourName, `["/opt/shoal/bin/attach","/run/shoal/agent.sock"]`)
			attached[i] = append(attached[i], time.Since(began))
			began = time.Now()
			if n, err := io.Copy(io.Discard, br); err != nil || n != quickBytes {
				b.Fatalf("%d bytes, error %v", n, err)
			}
			streamed[i] = append(streamed[i], time.Since(began))
			_ = c.Close()
		}
	}
	reportAdded(b, attached)
	b.ReportMetric(quickBytes/1e6/median(streamed[0]).Seconds(), "direct-MB/s")
	b.ReportMetric(quickBytes/1e6/median(streamed[1]).Seconds(), "filter-MB/s")
	b.ReportMetric(0, "ns/op")
}

const quickBytes = 64 << 20

// quickEngine answers an exec's creation and start at once and sends quickBytes.
func quickEngine(b *testing.B) string {
	b.Helper()
	socket := b.TempDir() + "/quick.sock"
	l, err := new(net.ListenConfig).Listen(b.Context(), "unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	serve := func(c net.Conn) {
		defer c.Close()
		br := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case strings.HasSuffix(r.RequestURI, "/start"):
				_, _ = io.WriteString(c, switched)
				block := make([]byte, 1<<20)
				for range quickBytes / len(block) {
					if _, err := c.Write(block); err != nil {
						return
					}
				}
				return
			case r.Method == http.MethodGet:
				_, _ = io.WriteString(c, answer(200, ourOwners()["containers/"+ourName+"/json"]))
			default:
				_, _ = io.WriteString(c, answer(201, `{"Id":"`+corpusExec+`"}`))
			}
		}
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(c) })
		}
	})
	b.Cleanup(func() {
		_ = l.Close()
		// The connections end with the clients that hold them.
	})
	return socket
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// reportAdded reports what the filter adds: the difference of the medians, and
// that of the fastest tenths, which a busy machine disturbs less.
func reportAdded(b *testing.B, took [2][]time.Duration) {
	b.Helper()
	b.ReportMetric(ms(median(took[1])-median(took[0])), "added-ms")
	b.ReportMetric(ms(took[1][len(took[1])/10]-took[0][len(took[0])/10]), "added-p10-ms") // median has sorted them
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func unixClient(b *testing.B, socket string) *http.Client {
	b.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	b.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

package filter_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
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
	direct, through := median(took[0]), median(took[1])
	b.ReportMetric(ms(direct), "direct-ms")
	b.ReportMetric(ms(through), "filter-ms")
	b.ReportMetric(ms(through-direct), "added-ms")
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

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
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

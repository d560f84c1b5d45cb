package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"shoal/docker/dockertest"
	"shoal/egress"
)

// One tiny run measures every headline row, leaves nothing behind and prints
// the JSON that the package's comment describes. Ratios are held to the widest
// bound: a busy machine slows both sides.
func TestSmoke(t *testing.T) {
	t.Parallel()
	dockertest.NeedImage(t)
	worker := filepath.Join(t.TempDir(), "worker")
	if out, err := exec.Command("go", "build", "-o", worker, "shoal/cmd/worker").CombinedOutput(); err != nil {
		t.Fatalf("build the worker: %v\n%s", err, out)
	}
	s, err := parse([]string{
		"-json", "-count", "3", "-output-mb", "8", "-only", "exec,file,output,create,takeover,messaging,warm",
		"-worker", worker, "-docker-endpoint", dockertest.Endpoint(), "-image", dockertest.Image, "-timeout", "10m",
	}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), s, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Settings struct{ Fleet string }
		Rows     []map[string]any
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, &out)
	}
	dockertest.NothingLeft(t, got.Settings.Fleet)
	dockertest.NothingLeft(t, got.Settings.Fleet+"-hand")
	dockertest.NothingLeft(t, got.Settings.Fleet+"-warm")
	for name, better := range map[string]float64{"exec": 1, "exec16": 1, "file4k": 1, "output": 0, "create_cold": 0, "create_warm": 1, "takeover": -1} {
		i := slices.IndexFunc(got.Rows, func(r map[string]any) bool { return r["name"] == name })
		if i < 0 {
			t.Errorf("no row %s", name)
			continue
		}
		checkRow(t, got.Rows[i], better)
	}
}

// checkRow wants every field, and a ratio above better; below 0 there is none.
func checkRow(t *testing.T, r map[string]any, better float64) {
	t.Helper()
	for _, field := range []string{"name", "unit", "p50", "p99", "baseline", "baseline_p50", "ratio", "floor_p50"} {
		if _, ok := r[field]; !ok {
			t.Errorf("row %v has no field %s", r, field)
		}
	}
	if p50, _ := r["p50"].(float64); p50 <= 0 {
		t.Errorf("row %v: p50 is not above 0", r)
	}
	ratio, ok := r["ratio"].(float64)
	if ok != (better >= 0) || ok && ratio <= better {
		t.Errorf("row %v: the ratio is not above %v", r, better)
	}
}

func TestSummaryTakesRatiosPairByPair(t *testing.T) {
	t.Parallel()
	ours, base := []float64{1, 2, 10}, []float64{10, 40, 20} // ratios 10, 20, 2
	w := summarise(probe{name: "x", baseline: "y"}, ours, base, []float64{3, 1, 2})
	if w.P50 != 2 || w.P99 != 10 || *w.BaselineP50 != 20 || *w.Ratio != 10 || *w.FloorP50 != 2 {
		t.Errorf("less is better: %s", w.line())
	}
	w = summarise(probe{name: "x", baseline: "y", more: true}, base, ours, nil)
	if w.P50 != 20 || w.P99 != 10 || *w.Ratio != 10 || w.FloorP50 != nil {
		t.Errorf("more is better: %s", w.line())
	}
	if d := differences(base, ours); !slices.Equal(d, []float64{9, 38, 10}) {
		t.Errorf("by how much it is more: %v", d)
	}
}

func TestCurlsReportIsChecked(t *testing.T) {
	t.Parallel()
	for out, ok := range map[string]bool{
		"200 8 0.25\n200 8 0.5\n": true, "200 8 0.25\n": false, "200 8 0.25\n200 7 0.5\n": false,
		"200 8 0.25\n403 8 0.5\n": false, "200 8 0.25\n200 8 x\n": false, "200 8 0\n200 8 0\n": false,
	} {
		c := curl(func(context.Context, ...string) ([]byte, error) { return []byte(out), nil })
		took, err := c.fetch(t.Context(), 8, 2)
		if (err == nil) != ok || ok && !slices.Equal(took, []float64{0.25, 0.5}) {
			t.Errorf("%q: %v %v", out, took, err)
		}
	}
}

// A proxy takes the origin for a public host, and whoever asks gets every byte
// on a connection of its own.
func TestOriginBehindAProxy(t *testing.T) {
	t.Parallel()
	o, err := startOrigin(t.Context(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	policy, err := egress.ParsePolicy([]string{originName, "other.bench.test"}, egress.PolicyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := egress.NewProxy(egress.Config{Resolver: o, Dialer: o})
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	defer served.Wait()
	session := egress.NewSession("sandbox", policy)
	defer session.Close() // ends what is still served
	client := http.Client{Transport: &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy"}),
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the origin's certificate is for another name
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			served.Go(func() { proxy.ServeConn(t.Context(), far, session) })
			return near, nil
		},
	}}
	for range 2 {
		resp, err := client.Get("https://" + originName + "/100000?1")
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || n != 100000 || err != nil || !resp.Close {
			t.Errorf("%s, %d bytes, %v, closed after it: %t", resp.Status, n, err, resp.Close)
		}
	}
	if resp, err := client.Get("https://other.bench.test/1"); err == nil {
		_ = resp.Body.Close()
		t.Error("a name that is not the origin's is reached")
	}
}

func TestCountingFindsLossAndRepeats(t *testing.T) {
	t.Parallel()
	for in, ok := range map[string]bool{"1\n2\n3\n": true, "1\n2": true, "1\n1\n": false, "1\n3\n": false, "1\nx\n": false} {
		var c counting
		err := errorOf(strings.Split(in, ""), c.take)
		if (err == nil) != ok {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func errorOf(pieces []string, take func([]byte) error) error {
	for _, p := range pieces {
		if err := take([]byte(p)); err != nil {
			return err
		}
	}
	return nil
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for args, ok := range map[string]bool{
		"-quick -json": true, "-only exec,growth": true, "-for 2s": true, "-growth 1,2": true,
		"-only cold": false, "-for 2s -count 3": false, "-growth 2,1": false, "-growth 0": false, "rest": false, "-count -1": false,
	} {
		if _, err := parse(strings.Fields(args), t.Output()); (err == nil) != ok {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestTimeOrCountEndsARow(t *testing.T) {
	t.Parallel()
	byTime := &rig{effort: effort{Samples: 9, Rounds: 2, For: time.Second}}
	byCount := &rig{effort: effort{Samples: 9, Rounds: 2}}
	for _, c := range []struct {
		r      *rig
		long   bool
		n      int
		passed time.Duration
		want   bool
	}{
		{byTime, false, 9, 0, false},
		{byTime, false, 1, time.Second, true},
		{byTime, false, 0, time.Hour, false},
		{byTime, true, 1, time.Hour, false},
		{byTime, true, 2, 0, true},
		{byCount, false, 8, time.Hour, false},
		{byCount, false, 9, 0, true},
		{byCount, true, 2, 0, true},
	} {
		if got := c.r.enough(probe{long: c.long}, c.n, c.passed); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/docker/dockertest"
	"shoal/messaging"
	"shoal/sandbox"
)

// cli is the command line against a worker with an embedded server.
type cli struct {
	t     *testing.T
	state string
}

func (c cli) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(binaries, "shoal"), args...)
	cmd.Env = append(os.Environ(), "SHOAL_STATE_DIR="+c.state)
	return cmd
}

// run runs the command line and returns what it printed and its exit code.
func (c cli) run(args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	var out, errs bytes.Buffer
	cmd := c.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func (c cli) must(args ...string) string {
	c.t.Helper()
	out, errs, code := c.run(args...)
	if code != 0 {
		c.t.Fatalf("shoal %s: code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	worker, creds, state := embedded(t)
	c := cli{t, state}
	c.must("create", "box", "--memory-mb", "512")
	t.Cleanup(func() { c.run("rm", "box") })

	t.Run("exit code, streams and order", func(t *testing.T) {
		out, errs, code := c.run("exec", "box", "--", "sh", "-c", "echo out; echo warn >&2; exit 41")
		if out != "out\n" || errs != "warn\n" || code != 41 {
			t.Fatalf("%q, %q, %d", out, errs, code)
		}
	})
	t.Run("a gigabyte arrives whole and the worker stays small", func(t *testing.T) {
		gigabyte(t, c, worker)
	})
	t.Run("interrupt kills the command and says so", func(t *testing.T) {
		cmd := c.command("exec", "box", "--", "sh", "-c", "echo begun; sleep 600")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Process.Signal(syscall.SIGINT)
		_, _ = io.ReadAll(out)
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code < 128 || errs.Len() == 0 {
			t.Fatalf("code %d, said %q", code, errs.String())
		}
		if left, _, _ := c.run("exec", "box", "--", "sh", "-c", "pgrep sleep || echo none"); left != "none\n" {
			t.Fatalf("left: %s", left)
		}
	})
	t.Run("files both ways", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(file, []byte("from the host\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.must("cp", file, "box:/workspace/d/f")
		c.must("exec", "box", "--", "sh", "-c", "tr a-z A-Z < d/f > d/g")
		c.must("cp", "box:/workspace/d/g", file+".back")
		if got, _ := os.ReadFile(file + ".back"); string(got) != "FROM THE HOST\n" {
			t.Fatalf("read back %q", got)
		}
	})
	t.Run("bare JSON over NATS", func(t *testing.T) { bareJSON(t, creds) })
	t.Run("the state directory is this worker's alone", func(t *testing.T) { ownState(t, creds, state) })
	t.Run("a missing image is said in plain words", func(t *testing.T) {
		_, errs, code := c.run("create", "none", "--image", "127.0.0.1:1/none:none")
		if code != 125 || !strings.Contains(errs, "docker pull") {
			t.Fatalf("code %d, %s", code, errs)
		}
	})
	t.Run("suspended, resumed, listed", func(t *testing.T) {
		c.must("suspend", "box")
		if out := c.must("ls"); !strings.Contains(out, "suspended") {
			t.Fatalf("ls: %s", out)
		}
		c.must("resume", "box")
		if out := c.must("--json", "ls"); !json.Valid([]byte(out)) {
			t.Fatalf("ls --json: %s", out)
		}
	})
}

// gigabyte sends 1 GiB through the command line, of which no two parts are the
// same: numbered copies of a file of numbers.
func gigabyte(t *testing.T, c cli, worker *process) {
	const parts = 156
	before := worker.rss()
	cmd := c.command("exec", "box", "--", "sh", "-c", "seq 1000000 > /tmp/block; for i in $(seq "+strconv.Itoa(parts)+"); do echo part $i; cat /tmp/block; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	var most int64
	buf := make([]byte, 1<<20)
	var total int64
	for {
		n, err := out.Read(buf)
		sum.Write(buf[:n])
		total += int64(n)
		most = max(most, worker.rss())
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(sum.Sum(nil)), hashOfParts(parts); got != want || total < 1<<30 {
		t.Fatalf("%d bytes, sha256 %s, want %s", total, got, want)
	}
	t.Logf("1 GiB in %s; worker %d KiB before, %d KiB at most", time.Since(began).Round(time.Millisecond), before, most)
	if most-before > 96<<10 {
		t.Errorf("the worker grew from %d to %d KiB", before, most)
	}
}

// hashOfParts is the hash of what gigabyte's command writes.
func hashOfParts(parts int) string {
	var block []byte
	for i := range 1000000 {
		block = append(strconv.AppendInt(block, int64(i+1), 10), '\n')
	}
	sum := sha256.New()
	for i := range parts {
		fmt.Fprintf(sum, "part %d\n", i+1)
		sum.Write(block)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// bareJSON uses nothing but NATS and JSON.
func bareJSON(t *testing.T, creds credentials) {
	nc, err := nats.Connect(creds.URL, nats.UserInfo(creds.User, creds.Password))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ask := func(op, body string) *nats.Msg {
		t.Helper()
		m := nats.NewMsg("shoal.v1.main." + op)
		m.Header.Set("Content-Type", "application/json")
		m.Data = []byte(body)
		answer, err := nc.RequestMsg(m, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	var list struct {
		Result struct {
			Sandboxes []struct{ Name, State string }
		}
	}
	if err := json.Unmarshal(ask("list", "{}").Data, &list); err != nil || len(list.Result.Sandboxes) != 1 || list.Result.Sandboxes[0].Name != "box" {
		t.Fatalf("list: %+v, %v", list, err)
	}
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg("shoal.v1.main.exec")
	m.Reply = inbox
	m.Header.Set("Content-Type", "application/json")
	m.Data = []byte(`{"sandbox":"box","command":{"id":"json-1","shell":"echo from json; exit 5"}}`)
	if err := nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for {
		got, err := sub.NextMsg(15 * time.Second)
		if err != nil {
			t.Fatalf("after %q: %v", out.String(), err)
		}
		var f struct {
			Kind   string
			Data   []byte
			Answer struct{ Result struct{ Code *int } }
		}
		if err := json.Unmarshal(got.Data, &f); err != nil {
			t.Fatalf("not JSON: %s", got.Data)
		}
		out.Write(f.Data)
		if f.Kind == "end" {
			if f.Answer.Result.Code == nil || *f.Answer.Result.Code != 5 || out.String() != "from json\n" {
				t.Fatalf("end %s after %q", got.Data, out.String())
			}
			return
		}
		if f.Kind == "error" {
			t.Fatalf("failed: %s", got.Data)
		}
	}
}

// Each mistake has its own code, and leaves nothing behind.
func TestMistakesHaveCodes(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	box := f.create(messaging.CreateRequest{Name: "box"})
	create := func(r messaging.CreateRequest) error {
		_, err := f.client.Create(t.Context(), r)
		return err
	}
	start := func(c sandbox.Command) error {
		_, err := f.client.Run(t.Context(), box, c, messaging.RunOptions{})
		return err
	}
	shellless := derived(t, "RUN rm /usr/bin/bash")
	for name, c := range map[string]struct {
		err  error
		want sandbox.Code
	}{
		"an image without a shell":      {create(messaging.CreateRequest{Name: "m5", Image: shellless}), sandbox.StartFailed},
		"a create without time left":    {f.raw("create", `{"name":"m6"}`, nats.Header{messaging.HeaderTimeout: {"0"}}), sandbox.Timeout},
		"a create past its deadline":    {f.raw("create", `{"name":"m7"}`, nats.Header{messaging.HeaderDeadline: {"1000000"}}), sandbox.Timeout},
		"a create with too little time": {f.raw("create", `{"name":"m8"}`, nats.Header{messaging.HeaderTimeout: {"40"}}), sandbox.Timeout},
		"a name that exists":            {create(messaging.CreateRequest{Name: "box"}), sandbox.Exists},
		"a registry that is away":       {create(messaging.CreateRequest{Name: "m1", Image: "127.0.0.1:1/none:none"}), sandbox.Engine},
		"too much memory":               {create(messaging.CreateRequest{Name: "m2", Limits: sandbox.Limits{MemoryMB: 1 << 20}}), sandbox.Invalid},
		"open egress":                   {create(messaging.CreateRequest{Name: "m3", Egress: sandbox.Egress{Mode: sandbox.EgressOpen}}), sandbox.Denied},
		"a literal host":                {create(messaging.CreateRequest{Name: "m4", Egress: sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{"10.0.0.1"}}}), sandbox.Invalid},
		"a missing cwd":                 {start(sandbox.Command{Shell: "true", Cwd: "/nowhere"}), sandbox.StartFailed},
		"EX-08 a bad cwd, before any piece of the stream": {func() error {
			_, err := f.client.Exec(t.Context(), box, sandbox.Command{Shell: "echo x", Cwd: "/nowhere"})
			return err
		}(), sandbox.StartFailed},
		"a cwd that is a file":      {start(sandbox.Command{Shell: "true", Cwd: "/etc/passwd"}), sandbox.StartFailed},
		"a missing program":         {start(sandbox.Command{Argv: []string{"/no/such"}}), sandbox.StartFailed},
		"a program without a right": {start(sandbox.Command{Argv: []string{"/etc/passwd"}}), sandbox.StartFailed},
		"another generation": {func() error {
			_, err := f.client.Get(t.Context(), messaging.Target{Sandbox: "box", Generation: "old"})
			return err
		}(), sandbox.Stale},
		"a sandbox that never was": {func() error { _, err := f.client.Get(t.Context(), messaging.Target{Sandbox: "no"}); return err }(), sandbox.NotFound},
	} {
		if got := sandbox.CodeOf(c.err); got != c.want {
			t.Errorf("%s: code %q, want %q: %v", name, got, c.want, c.err)
		}
	}
	list, err := f.client.List(t.Context(), messaging.ListRequest{})
	if err != nil || len(list.Sandboxes) != 1 {
		t.Errorf("left behind: %+v, %v", list, err)
	}
	if _, err := f.client.Destroy(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	dockertest.NothingLeft(t, f.name)
}

// raw asks in plain JSON with headers of one's own and returns the error that
// is answered.
func (f *fleet) raw(op, body string, header nats.Header) error {
	f.t.Helper()
	nc, err := nats.Connect(f.bus.url)
	if err != nil {
		f.t.Fatal(err)
	}
	defer nc.Close()
	header.Set(messaging.HeaderContent, "application/json")
	m := &nats.Msg{Subject: "shoal.v1.main." + op, Header: header, Data: []byte(body)}
	answer, err := nc.RequestMsg(m, patience)
	if err != nil {
		f.t.Fatal(err)
	}
	var a struct{ Error *sandbox.Error }
	if err := json.Unmarshal(answer.Data, &a); err != nil {
		f.t.Fatalf("%v in %s", err, answer.Data)
	}
	if a.Error == nil {
		return nil
	}
	return a.Error
}

// derived builds an image FROM that of the sandboxes with one more line. It is
// removed with the test.
func derived(t *testing.T, line string) string {
	t.Helper()
	dir, tag := t.TempDir(), "shoal-test-derived:"+sandbox.NewID()[:12]
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM "+dockertest.Image+"\n"+line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	docker := func(args ...string) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "docker", args...)
		cmd.Env = append(os.Environ(), "DOCKER_HOST="+dockertest.Endpoint(), "DOCKER_BUILDKIT=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("docker %v: %v\n%s", args, err, out)
		}
	}
	docker("build", "--quiet", "--network", "none", "--tag", tag, dir)
	t.Cleanup(func() { docker("rmi", "--force", tag) })
	return tag
}

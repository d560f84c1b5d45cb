package filter_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"shoal/docker/dockertest"
	"shoal/docker/filter"
)

// A realEngine is the machine's engine, and a filter in front of it whose
// containers run "sleep" in place of the agent, so that no agent is needed.
type realEngine struct {
	socket string // the engine's
	filter string // the filter's
	policy *filter.Policy
	fleet  string
	name   string // of the test's own container
}

func newRealEngine(t testing.TB) *realEngine {
	t.Helper()
	dockertest.NeedImage(t)
	e := &realEngine{socket: strings.TrimPrefix(dockertest.Endpoint(), "unix://"), fleet: dockertest.Fleet(t)}
	e.name = "shoal-t1-" + e.fleet + ".g1"
	policy, err := filter.DefaultPolicy(filter.Settings{Fleet: e.fleet})
	if err != nil {
		t.Fatal(err)
	}
	rule := policy.Roles["sandbox"].Container
	rule.Entrypoint, rule.Cmd = []string{"/bin/sleep"}, []string{"infinity"}
	policy.Exec.Cmds = [][]string{{"/bin/cat"}}
	e.policy = policy
	e.filter = startUnixFilter(t, policy, e.socket, slog.New(slog.DiscardHandler))
	client := dockertest.Client(t)
	t.Cleanup(func() {
		dockertest.Sweep(t, client, e.fleet)
		// The engine made the volumes that the containers name, without labels.
		for _, suffix := range []string{"-workspace", "-skills"} {
			e.direct(t, "DELETE", "/volumes/"+e.name+suffix, "")
		}
	})
	return e
}

func startUnixFilter(t testing.TB, policy *filter.Policy, engine string, log *slog.Logger) string {
	t.Helper()
	dial, err := filter.Dialer("unix://" + engine)
	if err != nil {
		t.Fatal(err)
	}
	f, err := filter.New(filter.Config{Policy: policy, Dial: dial, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	socket := t.TempDir() + "/filter.sock"
	l, err := filter.ListenUnix(t.Context(), socket, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return socket
}

// direct asks the engine itself, through the filter asks the filter. Both send
// exactly the target given.
func (e *realEngine) direct(t testing.TB, method, target, body string) (int, string) {
	t.Helper()
	return ask(t, e.socket, method, target, body)
}

func (e *realEngine) through(t testing.TB, method, target, body string) (int, string) {
	t.Helper()
	return ask(t, e.filter, method, target, body)
}

func ask(t testing.TB, socket, method, target, body string) (int, string) {
	t.Helper()
	head := ""
	if body != "" {
		head = "Content-Type: application/json\r\n"
	}
	return exchange(t, socket, method, fmt.Sprintf("%s /v1.41%s HTTP/1.1\r\nHost: docker\r\n%sContent-Length: %d\r\n\r\n%s", method, target, head, len(body), body))
}

// exchange sends raw bytes, half-closes, and reads one answer; status 0 means
// that there was none.
func exchange(t testing.TB, socket, method, raw string) (int, string) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatalf("nobody answers on %s (run: make engine): %v", socket, err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	go func() {
		_, _ = io.WriteString(c, raw)
	}()
	br := bufio.NewReader(c)
	for {
		resp, err := http.ReadResponse(br, &http.Request{Method: method})
		if err != nil {
			return 0, ""
		}
		if resp.StatusCode == http.StatusContinue {
			continue
		}
		out, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(out)
	}
}

// create is the body of the test's container, with changes.
func (e *realEngine) create(t testing.TB, change func(body, host map[string]any)) string {
	t.Helper()
	text := strings.ReplaceAll(encode(t, validCreate(t)), ourName, e.name)
	body := decode(t, text)
	body["Entrypoint"], body["Cmd"] = []string{"/bin/sleep"}, []string{"infinity"}
	labels := body["Labels"].(map[string]any)
	labels["shoal.fleet"], labels["shoal.name"] = e.fleet, e.fleet
	// The engine may be limited itself, and may not raise that.
	body["HostConfig"].(map[string]any)["Ulimits"] = []any{map[string]any{"Name": "nofile", "Soft": 4096, "Hard": 4096}}
	if change != nil {
		change(body, body["HostConfig"].(map[string]any))
	}
	return encode(t, body)
}

func (e *realEngine) createTarget() string { return "/containers/create?name=" + e.name }

// exists reports whether the test's container is there.
func (e *realEngine) exists(t testing.TB) bool {
	t.Helper()
	status, _ := e.direct(t, "GET", "/containers/"+e.name+"/json", "")
	return status == http.StatusOK
}

func (e *realEngine) remove(t testing.TB) {
	t.Helper()
	e.direct(t, "DELETE", "/containers/"+e.name+"?force=1&v=1", "")
}

// post is a raw create with headers of the caller's choice.
func post(target, headers, body string) string {
	return "POST /v1.41" + target + " HTTP/1.1\r\nHost: docker\r\n" + headers + "\r\n" + body
}

func length(n int) string {
	return fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", n)
}

// TestEngineAcceptsFilterRefuses shows for each known way to the host that the
// engine itself would go along, and that through the filter nothing is made.
func TestEngineAcceptsFilterRefuses(t *testing.T) {
	e := newRealEngine(t)
	bind := e.create(t, func(_, host map[string]any) { host["Binds"] = []string{"/etc:/host"} })
	withKey := func(key, value string) string {
		return strings.Replace(e.create(t, nil), `"HostConfig":{`, `"HostConfig":{`+key+`:`+value+`,`, 1)
	}
	var rows []engineRow
	row := func(id, body string) {
		rows = append(rows, engineRow{id, post(e.createTarget(), length(len(body)), body)})
	}
	chunked := "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
	rows = append(rows,
		engineRow{"SF-02 chunked", post(e.createTarget(), chunked, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(bind), bind))},
		engineRow{"SF-02 continue", post(e.createTarget(), length(len(bind))+"Expect: 100-continue\r\n", bind)},
		engineRow{"SF-06 charset", post(e.createTarget(), fmt.Sprintf("Content-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n", len(bind)), bind)},
	)
	row("SF-03 escaped key", withKey(`"\u0042inds"`, `["/etc:/host"]`))
	row("SF-04 U+017F", withKey(`"Bindſ"`, `["/etc:/host"]`))
	row("SF-04 Kelvin", withKey(`"NetworKMode"`, `"host"`))
	row("SF-05 double", withKey(`"Privileged"`, `false,"privileged":true`))
	row("SF-05 second HostConfig", strings.Replace(e.create(t, nil), `{`, `{"hostconfig":{"Privileged":true},`, 1))
	row("SF-06 lower case", withKey(`"binds"`, `["/etc:/host"]`))
	row("SF-06 leading space", " \n\t"+withKey(`"Privileged"`, `true`))
	row("SF-06 trailing brackets", e.create(t, nil)+"]}")
	for _, item := range engineItems {
		row("SF-16 "+item.key, withKey(`"`+item.key+`"`, item.value))
	}
	for _, r := range rows {
		t.Run(r.id, func(t *testing.T) {
			status, body := exchange(t, e.socket, "POST", r.raw)
			if status != http.StatusCreated {
				t.Errorf("the engine itself answers %d %s: the row proves nothing", status, body)
			}
			e.remove(t)
			status, body = exchange(t, e.filter, "POST", r.raw)
			if status != http.StatusForbidden && status != http.StatusBadRequest || e.exists(t) {
				t.Errorf("through the filter: %d %s", status, body)
			}
		})
	}
	if status, body := e.through(t, "POST", e.createTarget(), e.create(t, nil)); status != http.StatusCreated {
		t.Errorf("our own create is answered %d %s", status, body)
	}
}

type engineRow struct{ id, raw string }

// engineItems are what the engine takes in a HostConfig beside what we send.
var engineItems = []struct{ key, value string }{
	{"Privileged", "true"},
	{"Binds", `["/:/host"]`},
	{"VolumesFrom", `[]`},
	{"Devices", `[{"PathOnHost":"/dev/null","PathInContainer":"/dev/x","CgroupPermissions":"rwm"}]`},
	{"DeviceCgroupRules", `["a *:* rwm"]`},
	{"PidMode", `"host"`},
	{"UTSMode", `"host"`},
	{"UsernsMode", `"host"`},
	{"CgroupParent", `"/x"`},
	{"Sysctls", `{"net.ipv4.ip_forward":"1"}`},
	{"ExtraHosts", `["x:host-gateway"]`},
	{"GroupAdd", `["0"]`},
	{"MaskedPaths", `[]`},
	{"ReadonlyPaths", `[]`},
	{"OomKillDisable", `true`},
	{"PortBindings", `{"80/tcp":[{"HostPort":"0"}]}`},
	{"RestartPolicy", `{"Name":"always"}`},
}

// TestEngineBodies: SF-01, SF-02, SF-06: lengths and types of bodies.
func TestEngineBodies(t *testing.T) {
	e := newRealEngine(t)
	valid := e.create(t, nil)
	pad := func(n int) string { return valid + strings.Repeat(" ", n-len(valid)) }
	limit := int(e.policy.MaxBody)
	for _, c := range []struct {
		id, headers, body string
		want              int
	}{
		{"SF-01 limit - 1", length(limit - 1), pad(limit - 1), 201},
		{"SF-01 limit", length(limit), pad(limit), 201},
		{"SF-01 limit + 1", length(limit + 1), pad(limit + 1), 413},
		{"SF-01 10 MiB", length(10 << 20), pad(10 << 20), 413},
		{"SF-01 declared smaller", length(len(valid) - 9), valid, 400},
		{"SF-01 declared larger", length(len(valid) + 9), valid, 400},
		{"SF-02 length 0", length(0), valid, 403},
		{"SF-02 both", length(len(valid)) + "Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(valid), valid), 403},
		{"SF-02 two lengths", length(len(valid)) + "Content-Length: 1\r\n", valid, 400},
		{"SF-06 text/plain", fmt.Sprintf("Content-Type: text/plain\r\nContent-Length: %d\r\n", len(valid)), valid, 403},
		{"SF-06 form", fmt.Sprintf("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n", len(valid)), valid, 403},
	} {
		t.Run(c.id, func(t *testing.T) {
			statuses := exchangeAll(t, e.filter, post(e.createTarget(), c.headers, c.body)+"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n", 2)
			if len(statuses) == 0 || statuses[0] != c.want || e.exists(t) != (c.want == 201) {
				t.Errorf("%d, want %d", statuses, c.want)
			}
			if c.want != 201 && len(statuses) > 1 {
				t.Errorf("the connection goes on after a refusal: %d", statuses)
			}
			e.remove(t)
		})
	}
}

// TestEngineVolumes: SF-07: the engine makes a volume that is a bind of the
// host; the filter does not let it.
func TestEngineVolumes(t *testing.T) {
	e := newRealEngine(t)
	labels := strings.ReplaceAll(strings.ReplaceAll(ourLabels, `"main"`, `"`+e.fleet+`"`), `"demo"`, `"`+e.fleet+`"`)
	labels = strings.ReplaceAll(labels, `"sandbox"`, `"workspace"`)
	name := e.name + "-workspace"
	body := func(more string) string { return fmt.Sprintf(`{"Name":%q,"Labels":%s%s}`, name, labels, more) }
	for _, more := range []string{
		`,"DriverOpts":{"type":"none","o":"bind","device":"/etc"}`,
		`,"driveropts":{"type":"none","o":"bind","device":"/etc"}`,
		`,"Driver":"local","DriverOpts":{"type":"nfs","o":"addr=127.0.0.1","device":":/"}`,
	} {
		t.Run("SF-07 "+more, func(t *testing.T) {
			if status, text := e.direct(t, "POST", "/volumes/create", body(more)); status != http.StatusCreated {
				t.Errorf("the engine itself answers %d %s: the row proves nothing", status, text)
			}
			e.direct(t, "DELETE", "/volumes/"+name, "")
			if status, text := e.through(t, "POST", "/volumes/create", body(more)); status != http.StatusForbidden {
				t.Errorf("through the filter: %d %s", status, text)
			}
		})
	}
	if status, text := e.through(t, "POST", "/volumes/create", body("")); status != http.StatusCreated {
		t.Errorf("our own volume: %d %s", status, text)
	}
	if status, text := e.through(t, "DELETE", "/volumes/"+name, ""); status != http.StatusNoContent {
		t.Errorf("its removal: %d %s", status, text)
	}
}

// TestEnginePaths: SF-08: the engine decodes and cleans paths, the filter takes
// them as they are.
func TestEnginePaths(t *testing.T) {
	e := newRealEngine(t)
	for _, target := range []string{
		"/%63ontainers/json", "/containers%2Fjson", "/./containers/json", "/x/../containers/json", "//containers/json",
		"/containers/json", "/containers/json?limit=1", "/info", "/images/json",
	} {
		t.Run("SF-08 "+target, func(t *testing.T) {
			if status, body := e.direct(t, "GET", target, ""); status >= 400 {
				t.Errorf("the engine itself answers %d %s: the row proves nothing", status, body)
			}
			if status, body := e.through(t, "GET", target, ""); status != http.StatusForbidden {
				t.Errorf("through the filter: %d %s", status, body)
			}
		})
	}
}

// TestEngineExecs: SF-11, SF-12: an exec belongs to a container, and a
// connection becomes raw only when the engine says so.
func TestEngineExecs(t *testing.T) {
	e := newRealEngine(t)
	if status, body := e.through(t, "POST", e.createTarget(), e.create(t, nil)); status != http.StatusCreated {
		t.Fatalf("create: %d %s", status, body)
	}
	const attach = `{"AttachStdin":true,"AttachStdout":true,"AttachStderr":true,"Cmd":["/bin/cat"],"User":"0:0"}`
	const start = `{"Detach":false,"Tty":false}`
	execOf := func(ask func(testing.TB, string, string, string) (int, string), container string) string {
		_, body := ask(t, "POST", "/containers/"+container+"/exec", attach)
		var made struct {
			ID string `json:"Id"`
		}
		_ = json.Unmarshal([]byte(body), &made)
		return made.ID
	}
	upgrade := func(id string) string {
		return post("/exec/"+id+"/start", length(len(start))+"Connection: Upgrade\r\nUpgrade: tcp\r\n", start)
	}
	t.Run("SF-12 foreign", func(t *testing.T) {
		foreign := "foreign-" + e.fleet
		body := e.create(t, func(body, _ map[string]any) { body["Labels"] = map[string]string{"shoal.fleet": e.fleet} })
		if status, text := e.direct(t, "POST", "/containers/create?name="+foreign, body); status != http.StatusCreated {
			t.Fatalf("foreign container: %d %s", status, text)
		}
		if status, text := e.direct(t, "POST", "/containers/"+foreign+"/start", ""); status >= 300 {
			t.Fatalf("start: %d %s", status, text)
		}
		id := execOf(e.direct, foreign)
		if len(id) != 64 {
			t.Fatalf("no exec in the foreign container: %q", id)
		}
		if status, text := exchange(t, e.filter, "POST", upgrade(id)); status != http.StatusForbidden {
			t.Errorf("its exec starts through the filter: %d %s", status, text)
		}
		if status, text := e.through(t, "POST", "/containers/"+foreign+"/exec", attach); status != http.StatusForbidden {
			t.Errorf("an exec in it: %d %s", status, text)
		}
	})
	t.Run("SF-12 prefix without labels", func(t *testing.T) {
		fake := "shoal-t1-" + e.fleet + ".fake"
		body := e.create(t, func(body, _ map[string]any) { body["Labels"] = map[string]string{"shoal.fleet": e.fleet} })
		if status, text := e.direct(t, "POST", "/containers/create?name="+fake, body); status != http.StatusCreated {
			t.Fatalf("container: %d %s", status, text)
		}
		if status, text := e.through(t, "POST", "/containers/"+fake+"/exec", attach); status != http.StatusForbidden {
			t.Errorf("an exec in it: %d %s", status, text)
		}
	})
	t.Run("SF-12 missing", func(t *testing.T) {
		status, text := e.through(t, "POST", "/containers/shoal-t1-nobody.g1/exec", attach)
		if status != http.StatusNotFound || !strings.Contains(text, "No such container") {
			t.Errorf("a container that is not there: %d %s", status, text)
		}
		status, text = exchange(t, e.filter, "POST", upgrade(strings.Repeat("0", 64)))
		if status != http.StatusNotFound || !strings.Contains(text, "No such exec") {
			t.Errorf("an exec that is not there: %d %s", status, text)
		}
	})
	t.Run("SF-11 pipelined behind a failed start", func(t *testing.T) {
		e.through(t, "POST", "/containers/"+e.name+"/start", "")
		id := execOf(e.through, e.name)
		e.direct(t, "POST", "/containers/"+e.name+"/stop?t=0", "")
		evil := e.create(t, func(_, host map[string]any) { host["Privileged"] = true })
		target := "/containers/create?name=shoal-t1-" + e.fleet + ".evil"
		answers := exchangeAll(t, e.filter, upgrade(id)+post(target, length(len(evil)), evil), 2)
		if len(answers) == 0 || answers[0] < 400 || len(answers) > 1 && answers[1] < 400 {
			t.Errorf("answers %v", answers)
		}
		if status, _ := e.direct(t, "GET", "/containers/shoal-t1-"+e.fleet+".evil/json", ""); status != http.StatusNotFound {
			t.Errorf("the pipelined create was carried out: %d", status)
		}
	})
	t.Run("SF-12 looked up", func(t *testing.T) {
		e.through(t, "POST", "/containers/"+e.name+"/start", "")
		id := execOf(e.direct, e.name) // the filter has not seen it being made
		if got := echo(t, e.filter, upgrade(id), "hello"); got != "hello" {
			t.Errorf("the stream echoes %q", got)
		}
	})
	t.Run("SF-11 a request behind the 101", func(t *testing.T) {
		evil := e.create(t, func(_, host map[string]any) { host["Privileged"] = true })
		request := post("/containers/create?name=shoal-t1-"+e.fleet+".evil", length(len(evil)), evil)
		if got := echo(t, e.filter, upgrade(execOf(e.through, e.name)), request); got != request {
			t.Errorf("the stream echoes %q", got)
		}
		if status, _ := e.direct(t, "GET", "/containers/shoal-t1-"+e.fleet+".evil/json", ""); status != http.StatusNotFound {
			t.Errorf("the create behind it was carried out: %d", status)
		}
	})
}

// exchangeAll sends raw bytes and returns the statuses of up to n answers.
func exchangeAll(t testing.TB, socket, raw string, n int) (out []int) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	go func() {
		_, _ = io.WriteString(c, raw)
		_ = c.(*net.UnixConn).CloseWrite()
	}()
	br := bufio.NewReader(c)
	for range n {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			return out
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		out = append(out, resp.StatusCode)
	}
	return out
}

// echo starts an exec of cat, sends text, half-closes, and returns stdout.
func echo(t testing.TB, socket, raw, text string) string {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("start: %v %v", resp, err)
	}
	_, _ = io.WriteString(c, text)
	_ = c.(*net.UnixConn).CloseWrite()
	out, err := io.ReadAll(br)
	if err != nil {
		t.Error(err)
	}
	// Each frame has a header of eight bytes: stream, three zeros, length.
	var got strings.Builder
	for len(out) >= 8 {
		n := int(out[4])<<24 | int(out[5])<<16 | int(out[6])<<8 | int(out[7])
		got.Write(out[8 : 8+n])
		out = out[8+n:]
	}
	return got.String()
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"shoal/docker/dockertest"
	"shoal/docker/filter"
)

// engineSaying is an engine that tells only its own state.
func engineSaying(t *testing.T, seccomp string) string {
	t.Helper()
	socket := t.TempDir() + "/engine.sock"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/version":
			fmt.Fprint(w, `{"Version":"29.6.0","ApiVersion":"1.52","MinAPIVersion":"1.24","Components":[{"Name":"runc","Version":"1.1.11"}]}`)
		case "/info":
			fmt.Fprintf(w, `{"Driver":"overlay2","CgroupVersion":"2","Runtimes":{"runc":{},"evil\u001b[2J":{}},"SecurityOptions":[%q],"MemoryLimit":true,"SwapLimit":true,"PidsLimit":true,"CpuCfsQuota":true}`, seccomp)
		default:
			http.NotFound(w, r)
		}
	}))
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return "unix://" + socket
}

// doctor runs the command line and returns its code and what it printed.
func doctor(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
	code = a.main(t.Context(), append([]string{"doctor"}, args...))
	return code, out.String(), errs.String()
}

// TestDoctor judges a sound engine, one without seccomp, and none at all.
func TestDoctor(t *testing.T) {
	code, out, _ := doctor(t, "--docker-endpoint", engineSaying(t, "name=seccomp,profile=default"))
	if code != 0 || !strings.Contains(out, "CVE-2024-21626") || !strings.Contains(out, "1.1.12") || strings.ContainsRune(out, 0x1b) {
		t.Errorf("code %d\n%q", code, out)
	}
	code, out, _ = doctor(t, "--json", "--docker-endpoint", engineSaying(t, "name=seccomp,profile=unconfined"))
	var findings []filter.Finding
	if err := json.Unmarshal([]byte(out), &findings); err != nil || code != exitFailure {
		t.Fatalf("code %d, %v\n%s", code, err, out)
	}
	for _, f := range findings {
		if (f.Level == filter.LevelProblem) != (f.Name == "seccomp") || f.Level != filter.LevelOK && f.Remedy == "" {
			t.Errorf("%+v", f)
		}
	}
	if code, _, errs := doctor(t, "--docker-endpoint", "unix:///nobody.sock"); code != exitFailure || !strings.Contains(errs, "engine") {
		t.Errorf("code %d, %s", code, errs)
	}
}

// TestDoctorOnThisEngine reads the machine's own engine.
func TestDoctorOnThisEngine(t *testing.T) {
	dockertest.Client(t)
	_, out, errs := doctor(t, "--docker-endpoint", dockertest.Endpoint())
	for _, name := range []string{"api", "seccomp", "limits", "runtimes", "storage", "CVE-2024-21626"} {
		if !strings.Contains(out, name) {
			t.Errorf("nothing is said about %s:\n%s%s", name, out, errs)
		}
	}
}

package sandboxtest

import (
	"slices"
	"strings"
	"testing"
)

var insideCases = []Case{
	{Promise: "commands have no capability, no new privileges and their mark alone", Needs: isReal, run: insideRights},
	{Promise: "commands cannot touch the agent", Needs: isReal, run: insideAgent},
	{Promise: "the root is read-only, the workspace and tmp are not", Needs: isReal, run: insideMounts},
	{Promise: "there is no network but the loopback", Needs: isReal, run: insideNetwork},
	{Promise: "common programs work", Needs: isReal, run: insidePrograms},
	{Promise: "commands inherit no descriptors", Needs: isReal, run: insideDescriptors},
}

func insideRights(t *testing.T, x *suite) {
	b := x.box(t)
	status := map[string]string{}
	for line := range strings.Lines(b.output(t, "cat /proc/self/status")) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.Join(strings.Fields(value), " ")
	}
	for key, want := range map[string]string{
		"Uid": "1000 1000 1000 1000", "Gid": "1000 1000 1000 1000",
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapAmb": "0000000000000000",
	} {
		if got, ok := status[key]; got != want && (ok || x.PidsLimit || key[:3] != "Cap") { // gVisor's has not every line
			t.Errorf("%s: %q, want %s", key, got, want)
		}
	}
	if got, ok := status["NoNewPrivs"]; got != "1" && (ok || x.PidsLimit) { // gVisor's release of 2022 has no such line
		t.Errorf("NoNewPrivs: %q, want 1", got)
	}
	if groups := strings.Fields(status["Groups"]); len(groups) != 1 {
		t.Errorf("groups %v, want the mark alone", groups)
	}
	if got := b.output(t, "id -un; umask"); got != "sandbox\n0022" {
		t.Errorf("user and umask %q", got)
	}
	if out := b.run(t, "id && groups"); out.end.Code == nil || *out.end.Code != 0 || out.err.Len() > 0 {
		t.Errorf("id and groups complain: %q", out.err.String())
	}
}

func insideAgent(t *testing.T, x *suite) {
	b := x.box(t)
	r := b.run(t, `
agent=$(grep -l agent /proc/[0-9]*/comm | head -1 | cut -d/ -f3)
[ -n "$agent" ] || { echo no agent; exit 9; }
ok() { "$@" >/dev/null 2>&1 && echo "allowed: $*"; }
ok kill -0 $agent; ok kill -9 $agent; ok kill -STOP $agent; ok kill -9 1
ok cat /proc/$agent/mem; ok cat /opt/shoal/bin/agent; ok cat /opt/shoal/skills/.shoal-spec; ok cat /skills/.shoal-spec
ok python3 -c "import socket; socket.socket(socket.AF_UNIX).connect('/run/shoal/agent.sock')"
ok python3 -c "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, $agent, 0, 0) != 0)"
ok touch /skills/x; ok touch /opt/shoal/skills/x; ok unshare -U true; ok unshare -r true
ok su -c true; ok chown 0:0 /workspace; ok mount -t tmpfs none /tmp
exit 0`)
	if r.wantCode(t, 0); r.out.Len() > 0 {
		t.Errorf("%s", r.out.String())
	}
	reachAgent(t, x, b)
	if got := b.output(t, "echo on"); got != "on" {
		t.Errorf("after the attempts: %q", got)
	}
}

// reach tells what can be done to the agent, and to a process of one's own, by
// which the same attempts must succeed: otherwise they would show nothing.
const reach = `
agent=$(grep -l agent /proc/[0-9]*/comm | head -1 | cut -d/ -f3)
python3 -c '
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
def trace(pid):
    if libc.ptrace(16, pid, 0, 0): raise OSError
def reached(pid):
    got = []
    for name, attempt in ("signal", lambda: os.kill(pid, 0)), ("memory", lambda: os.open("/proc/%d/mem" % pid, 0)), ("trace", lambda: trace(pid)):
        try: attempt(); got.append(name)
        except OSError: pass
    return " ".join(got)
child = os.fork()
if child == 0: time.sleep(60)
print("agent:", reached(int(sys.argv[1])), "own:", reached(child))
os.kill(child, 9)' $agent
echo environment: $(tr '\0' '\n' < /proc/$agent/environ | cut -d= -f1)`

func reachAgent(t *testing.T, x *suite, b *attached) {
	t.Helper()
	reached, environment, _ := strings.Cut(b.output(t, reach), "environment:")
	if want := "agent:  own: signal memory trace"; strings.TrimSpace(reached) != want {
		t.Errorf("reached %q, want %q", reached, want)
	}
	for variable := range strings.FieldsSeq(environment) {
		if x.PidsLimit || !slices.Contains([]string{"HOME", "HOSTNAME", "PATH"}, variable) { // gVisor lets it be read
			t.Errorf("the agent's environment shows %s", variable)
		}
	}
}

func insideMounts(t *testing.T, x *suite) {
	b := x.box(t)
	r := b.run(t, `
for d in / /usr /etc /bin /opt /run /skills; do touch $d/x 2>/dev/null && echo "writable: $d"; done
for d in /workspace /tmp; do echo '#!/bin/sh' > $d/run-me && chmod 755 $d/run-me && $d/run-me || echo "not usable: $d"; done
find / -xdev -perm /6000 ! -type l 2>/dev/null | head -3
exit 0`)
	if r.wantCode(t, 0); r.out.Len() > 0 {
		t.Errorf("%s", r.out.String())
	}
}

func insideNetwork(t *testing.T, x *suite) {
	got := x.box(t).output(t, `sed 1,2d /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | tr '\n' ' '; cat /proc/net/route | tail -n +2`)
	for name := range strings.FieldsSeq(got) {
		if name != "lo" && !strings.HasPrefix(name, "tun") && !strings.HasPrefix(name, "sit") && !strings.HasPrefix(name, "ip6") &&
			!strings.HasPrefix(name, "gre") && !strings.HasPrefix(name, "erspan") && !strings.HasPrefix(name, "ip_vti") {
			t.Errorf("interface or route %s", name)
		}
	}
}

func insidePrograms(t *testing.T, x *suite) {
	b := x.box(t)
	for what, script := range map[string]string{
		"stderr by its name": `echo x > /dev/stderr`,
		"a login shell":      `bash -lc true`,
		"python":             `python3 -c 'import threading, subprocess; t = threading.Thread(target=lambda: None); t.start(); t.join(); subprocess.check_call(["true"])'`,
		"git":                `rm -rf g && git init -q g && cd g && git config user.email a@b && git config user.name a && echo a > a && git add a && git commit -qm a`,
		"a pipeline":         `seq 1000 | sort -rn | head -1 | grep -q 1000`,
		"a temporary file":   `f=$(mktemp) && echo x > $f && rm $f`,
	} {
		if r := b.run(t, script); r.end.Code == nil || *r.end.Code != 0 {
			t.Errorf("%s: %s, %q", what, show(r.end), r.err.String())
		}
	}
}

func insideDescriptors(t *testing.T, x *suite) {
	r := x.box(t).run(t, `python3 -c '
import os
print(sorted(int(f) for f in os.listdir("/proc/self/fd"))[:-1])'`)
	if r.wantCode(t, 0); strings.TrimSpace(r.out.String()) != "[0, 1, 2]" {
		t.Errorf("descriptors %s", r.out.String())
	}
}

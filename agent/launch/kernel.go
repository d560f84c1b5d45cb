package launch

import (
	"bytes"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GVisor says whether the kernel is gVisor's, which names itself in its log and
// shows that to every user. Linux shows its log to administrators only.
func GVisor() bool {
	const readAll = 3 // SYSLOG_ACTION_READ_ALL
	log := make([]byte, 8<<10)
	n, err := unix.Klogctl(readAll, log)
	return err == nil && bytes.Contains(log[:max(n, 0)], []byte("gVisor"))
}

// RewriteUnchecked says whether a tracer can change a system call after the
// filter was asked, so that Config.NoRewrite is needed: Linux asks again since
// 4.8; gVisor (measured on release 20221219, which calls itself 4.4) does not.
func RewriteUnchecked() bool {
	var name unix.Utsname
	if GVisor() || unix.Uname(&name) != nil {
		return true
	}
	return olderThan(unix.ByteSliceToString(name.Release[:]), 4, 8)
}

// olderThan compares a kernel release such as "6.1.0-13-amd64"; what it cannot
// read is old.
func olderThan(release string, major, minor int) bool {
	first, rest, _ := strings.Cut(release, ".")
	second, _, _ := strings.Cut(rest, ".")
	second, _, _ = strings.Cut(second, "-")
	a, errA := strconv.Atoi(first)
	b, errB := strconv.Atoi(second)
	return errA != nil || errB != nil || a < major || a == major && b < minor
}

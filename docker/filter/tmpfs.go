package filter

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

func equalLog(a, b logConfig) bool {
	return a.Type == b.Type && (len(a.Config) == 0 && len(b.Config) == 0 || maps.Equal(a.Config, b.Config))
}

// judgeTmpfs judges the targets and the mount options of the tmpfs mounts.
func judgeTmpfs(rule *ContainerRule, b *createBody) *Refusal {
	if len(b.HostConfig.Tmpfs) != len(rule.Tmpfs) {
		return refuse("container.tmpfs", "the tmpfs mounts must be exactly the policy's")
	}
	for target, options := range b.HostConfig.Tmpfs {
		t, ok := rule.Tmpfs[target]
		if !ok || !t.admits(options) {
			return refuse("container.tmpfs", "a tmpfs has another target or other options than the policy's")
		}
	}
	return nil
}

// admits judges options such as "rw,nosuid,nodev,size=1024m,mode=1777", in any
// order.
func (t TmpfsRule) admits(options string) bool {
	sent := strings.Split(options, ",")
	want := append([]string{"rw", "nosuid", "nodev", "mode=" + t.Mode}, t.Flags...)
	i := slices.IndexFunc(sent, func(s string) bool { return strings.HasPrefix(s, "size=") })
	if i < 0 {
		return false
	}
	size, ok := parseSize(strings.TrimPrefix(sent[i], "size="))
	return ok && size <= t.MaxSize && sameSet(slices.Delete(sent, i, i+1), want)
}

// parseSize reads a size with the unit k, m or g (powers of 1024), or in bytes.
func parseSize(s string) (int64, bool) {
	digits := strings.TrimRight(s, "kKmMgG")
	shift := 0
	switch strings.ToLower(s[len(digits):]) {
	case "":
	case "k":
		shift = 10
	case "m":
		shift = 20
	case "g":
		shift = 30
	default:
		return 0, false
	}
	if digits == "" || len(digits) > 12 || !only(digits, isDigit) {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n == 0 || n > 1<<50>>shift {
		return 0, false
	}
	return n << shift, true
}

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

// admits judges options such as "rw,nosuid,nodev,size=1024m,mode=1777": nosuid,
// nodev and a bounded size must be there, nothing twice.
func (t TmpfsRule) admits(options string) bool {
	seen := map[string]bool{}
	for option := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(option, "=")
		if seen[key] {
			return false
		}
		seen[key] = true
		switch {
		case option == "rw" || option == "nosuid" || option == "nodev" || slices.Contains(t.Flags, option):
		case key == "size":
			if n, ok := parseSize(value); !ok || n > t.MaxSize {
				return false
			}
		case key == "mode":
			if !slices.Contains(t.Modes, value) {
				return false
			}
		default:
			return false
		}
	}
	return seen["nosuid"] && seen["nodev"] && seen["size"]
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

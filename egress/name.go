package egress

import "strings"

// maxName and maxLabel are the bounds of RFC 1035, without the root dot.
const (
	maxName  = 253
	maxLabel = 63
)

// normalName returns s in lower case if it is a host name of at least one label:
// letters, digits, hyphens and underscores, no empty label, no hyphen at either
// end of one. It does not decode, map or trim anything. ASCII only: folding by
// Unicode rules would let "ſtatic" match "static".
func normalName(s string) (string, bool) {
	if s == "" || len(s) > maxName {
		return "", false
	}
	name := []byte(s)
	start := 0
	for i := 0; i <= len(name); i++ {
		if i == len(name) || name[i] == '.' {
			if !validLabel(name[start:i]) {
				return "", false
			}
			start = i + 1
			continue
		}
		if 'A' <= name[i] && name[i] <= 'Z' {
			name[i] += 'a' - 'A'
		}
	}
	return string(name), true
}

func validLabel(l []byte) bool {
	if len(l) == 0 || len(l) > maxLabel || l[0] == '-' || l[len(l)-1] == '-' {
		return false
	}
	for _, c := range l {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// looksNumeric reports whether C resolvers could take the valid name for an IPv4
// address: the last label is a decimal, octal or hexadecimal number (the rule of
// the WHATWG URL standard, "ends in a number"). No top-level domain is.
func looksNumeric(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	digits, chars := last, "0123456789"
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		digits, chars = hex, "0123456789abcdef"
	}
	return strings.Trim(digits, chars) == ""
}

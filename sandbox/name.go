package sandbox

import (
	"crypto/rand"
	"fmt"
	"path"
	"strings"
	"time"
)

// The ids are types of their own, so that they cannot be swapped.
type (
	// Tenant is a name space of kernels: ^[a-z0-9]{1,32}$. Names with a
	// leading underscore are reserved for the fleet itself.
	Tenant string
	// Name is what a kernel calls a sandbox: ^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,100}$.
	Name string
	// Tag names who started a command: ^[a-zA-Z0-9_-]{1,64}$.
	Tag string
	// CommandID is chosen by the client and makes a start idempotent:
	// ^[a-zA-Z0-9_-]{1,64}$.
	CommandID string
)

// The bounds of the grammar.
const (
	maxTenant  = 32
	maxName    = 101
	maxToken   = 64
	maxPath    = 4096
	maxPort    = 65535
	escapedDot = "=2E"
)

// Milliseconds is a duration on the wire.
type Milliseconds int64

// Millis rounds d to whole milliseconds, up, so that a positive duration never
// becomes zero.
func Millis(d time.Duration) Milliseconds {
	if d <= 0 {
		return Milliseconds(d / time.Millisecond)
	}
	return Milliseconds((d-1)/time.Millisecond + 1) // without overflow at the largest duration
}

// Duration returns m as a time.Duration.
func (m Milliseconds) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// NewID returns a fresh id of 26 letters and digits, fit to be a command id,
// request id, generation or token (130 bits of randomness).
func NewID() string { return rand.Text() }

// Validate reports whether t is a tenant's name.
func (t Tenant) Validate() error {
	if t == "" || len(t) > maxTenant || !all(string(t), isLowerAlnum) {
		return InvalidField("tenant", "%s is not a tenant: use 1 to %d lower-case letters and digits", quote(string(t)), maxTenant)
	}
	return nil
}

// Validate reports whether n is a sandbox's name.
func (n Name) Validate() error {
	if n == "" || len(n) > maxName || !isAlnum(n[0]) || !all(string(n[1:]), isNameByte) {
		return InvalidField("name", "%s is not a name: use 1 to %d letters, digits, '_', '.', '-', beginning with a letter or digit", quote(string(n)), maxName)
	}
	return nil
}

// Token returns n as it stands in subjects and KV keys: a dot is written =2E.
// This is the only place that does so; [ParseNameToken] is its inverse.
func (n Name) Token() string { return strings.ReplaceAll(string(n), ".", escapedDot) }

// ParseNameToken is the inverse of [Name.Token].
func ParseNameToken(token string) (Name, error) {
	if strings.Contains(token, ".") {
		return "", InvalidField("name", "%s is not a name's token", quote(token))
	}
	n := Name(strings.ReplaceAll(token, escapedDot, "."))
	return n, n.Validate()
}

// Validate reports whether t is a tag. The empty tag (no tag) is not valid here.
func (t Tag) Validate() error { return validateToken("tag", string(t)) }

// Validate reports whether id is a command id.
func (id CommandID) Validate() error { return validateToken("id", string(id)) }

func validateToken(field, s string) error {
	if s == "" || len(s) > maxToken || !all(s, isTokenByte) {
		return InvalidField(field, "%s: use 1 to %d letters, digits, '_', '-'", quote(s), maxToken)
	}
	return nil
}

// ValidateID reports whether s, a request id, generation or lock token named
// field, may stand in a subject or key: ^[a-zA-Z0-9_-]{1,64}$.
func ValidateID(field, s string) error { return validateToken(field, s) }

// ValidatePath reports whether p is absolute, clean, without NUL and at most
// 4096 bytes.
func ValidatePath(field, p string) error {
	switch {
	case p == "" || p[0] != '/':
		return InvalidField(field, "%s is not an absolute path", quote(p))
	case len(p) > maxPath:
		return InvalidField(field, "the path has %d bytes, at most %d are allowed", len(p), maxPath)
	case strings.IndexByte(p, 0) >= 0:
		return InvalidField(field, "the path holds a NUL byte")
	case path.Clean(p) != p:
		return InvalidField(field, "%s is not clean: write %s", quote(p), quote(path.Clean(p)))
	}
	return nil
}

// ValidateEnvKey reports whether key may name an environment variable:
// ^[A-Za-z_][A-Za-z0-9_]*$, at most 256 bytes.
func ValidateEnvKey(key string) error {
	if key == "" || len(key) > 256 || isDigit(key[0]) || !all(key, isEnvByte) {
		return InvalidField("env", "%s is not a variable name: use letters, digits and '_', not beginning with a digit", quote(key))
	}
	return nil
}

// quote prints hostile text bounded and on one line.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return fmt.Sprintf("%q", s)
}

func all(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool      { return c >= '0' && c <= '9' }
func isLowerAlnum(c byte) bool { return isDigit(c) || (c >= 'a' && c <= 'z') }
func isAlnum(c byte) bool      { return isLowerAlnum(c) || (c >= 'A' && c <= 'Z') }
func isTokenByte(c byte) bool  { return isAlnum(c) || c == '_' || c == '-' }
func isNameByte(c byte) bool   { return isTokenByte(c) || c == '.' }
func isEnvByte(c byte) bool    { return isAlnum(c) || c == '_' }

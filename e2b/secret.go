package e2b

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

const redacted = "[redacted]"

// Secret is a string that is never printed: formatting, logging and encoding
// all give "[redacted]". The zero value is the empty secret.
type Secret struct{ value string }

// NewSecret wraps value.
func NewSecret(value string) Secret { return Secret{value: value} }

// Reveal returns the secret itself. Only what puts it on the wire calls it.
func (s Secret) Reveal() string { return s.value }

// IsZero reports whether the secret is empty.
func (s Secret) IsZero() bool { return s.value == "" }

// String implements [fmt.Stringer].
func (s Secret) String() string { return redacted }

// Format implements [fmt.Formatter], so that no verb reaches the field.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue implements [slog.LogValuer].
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements [encoding.TextMarshaler].
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Secret) UnmarshalText(text []byte) error {
	s.value = string(text)
	return nil
}

// scrub replaces the secret in text that came from elsewhere.
func (s Secret) scrub(text string) string {
	if s.value == "" {
		return text
	}
	return strings.ReplaceAll(text, s.value, redacted)
}

package filter

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
)

// admitted writes an admitted change into the audit log, before the engine sees
// it: the rule, the object's name, and the digest of the body as written anew.
func (f *Filter) admitted(r *http.Request, c *Call) {
	if !c.Change {
		return
	}
	attrs := []slog.Attr{slog.String("rule", c.Rule), slog.String("name", c.Name)}
	if c.Hijack {
		attrs = append(attrs, slog.String("container", f.owners.containerOf(c.Name)))
	}
	if c.Body != nil {
		sum := sha256.Sum256(c.Body)
		attrs = append(attrs, slog.String("body_sha256", hex.EncodeToString(sum[:])))
	}
	f.log.LogAttrs(r.Context(), slog.LevelInfo, "docker call admitted", attrs...)
}

// refused writes a refusal into the audit log: the rule alone, as everything
// else was chosen by whoever was refused.
func (f *Filter) refused(r *http.Request, refusal *Refusal) {
	f.log.LogAttrs(r.Context(), slog.LevelWarn, "docker call refused",
		slog.String("rule", refusal.Rule), slog.Int("status", refusal.Status), slog.Int64("length", r.ContentLength))
}

const slogError = slog.LevelError

func ruleAttr(c *Call) slog.Attr { return slog.String("rule", c.Rule) }

func errAttr(err error) slog.Attr { return slog.String("error", err.Error()) }

package filter

import (
	"fmt"
	"net/http"
)

// A Refusal says which rule turned a request down. Rule is a stable name for
// logs and tests; Detail is for people and never quotes a value of a body.
type Refusal struct {
	Rule   string
	Detail string
	Status int // the HTTP status of the answer: 400, 403 or 413
}

// String says both, for the caller.
func (r *Refusal) String() string {
	return fmt.Sprintf("refused by rule %s: %s", r.Rule, r.Detail)
}

// message is what the caller is told: that nothing is there in the engine's own
// words, as they tell apart what is missing.
func (r *Refusal) message() string {
	if r.Status == http.StatusNotFound {
		return r.Detail
	}
	return "docker filter: " + r.String()
}

func refuse(rule, format string, args ...any) *Refusal {
	return &Refusal{Rule: rule, Detail: fmt.Sprintf(format, args...), Status: http.StatusForbidden}
}

func malformed(rule, detail string) *Refusal {
	return &Refusal{Rule: rule, Detail: detail, Status: http.StatusBadRequest}
}

package sandbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"shoal/sandbox"
)

// The codes are what goes over the wire: a change here breaks kernels.
func TestCodesAreTheClosedSet(t *testing.T) {
	want := []string{
		"busy", "canceled", "conflict", "denied", "draining", "engine", "exists", "fenced", "gone", "internal", "invalid", "locked",
		"no_space", "not_found", "outcome_unknown", "permission", "quota", "restarted", "stale", "start_failed", "timeout", "too_large",
		"unavailable", "unsupported",
	}
	var got []string
	for _, c := range sandbox.Codes() {
		got = append(got, string(c))
		if !c.Known() {
			t.Errorf("%s is not known", c)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("codes %v, want %v", got, want)
	}
	for _, c := range []sandbox.Code{"", "INVALID", "unknown"} {
		if c.Known() || c.Retryable() {
			t.Errorf("%q is known or retryable", c)
		}
	}
	for _, c := range []sandbox.Code{sandbox.Busy, sandbox.Draining, sandbox.Engine, sandbox.Locked, sandbox.Unavailable} {
		if !c.Retryable() {
			t.Errorf("%s is not retryable", c)
		}
	}
	for _, c := range []sandbox.Code{sandbox.OutcomeUnknown, sandbox.Restarted, sandbox.Invalid, sandbox.Timeout} {
		if c.Retryable() {
			t.Errorf("%s is retryable", c)
		}
	}
}

func TestCodeOf(t *testing.T) {
	own := sandbox.Errorf(sandbox.Busy, "later")
	for _, c := range []struct {
		err  error
		want sandbox.Code
	}{
		{nil, ""},
		{own, sandbox.Busy},
		{fmt.Errorf("start: %w", own), sandbox.Busy},
		{errors.Join(io.EOF, own), sandbox.Busy},
		{own.Wrap(context.Canceled), sandbox.Busy},
		{context.Canceled, sandbox.Canceled},
		{fmt.Errorf("call: %w", context.DeadlineExceeded), sandbox.Timeout},
		{io.EOF, sandbox.Internal},
	} {
		if got := sandbox.CodeOf(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
		if e := sandbox.AsError(c.err); (e == nil) != (c.err == nil) || e != nil && e.Code != c.want {
			t.Errorf("%v as an error: %v, want %q", c.err, e, c.want)
		}
	}
}

func TestErrorHidesItsCause(t *testing.T) {
	secret := errors.New("dial /var/run/docker.sock: password hunter2")
	for _, err := range []error{sandbox.AsError(secret), sandbox.Errorf(sandbox.Engine, "no engine").Wrap(secret)} {
		text, jsonErr := json.Marshal(err)
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		if strings.Contains(err.Error()+string(text), "hunter2") {
			t.Errorf("%v, %s: the cause is told", err, text)
		}
		if !errors.Is(err, secret) {
			t.Errorf("%v: the cause is lost", err)
		}
	}
}

func TestErrorCopiesOnChange(t *testing.T) {
	base := sandbox.Errorf(sandbox.Busy, "later")
	changed := base.From(sandbox.FromEngine).Because("full").After(time.Second).Wrap(io.EOF)
	if base.Origin != "" || base.Reason != "" || base.RetryAfter != 0 || base.Unwrap() != nil {
		t.Errorf("the original changed: %+v", base)
	}
	if changed.Origin != sandbox.FromEngine || changed.Reason != "full" || changed.RetryAfter != 1000 || !errors.Is(changed, io.EOF) {
		t.Errorf("the copy: %+v", changed)
	}
}

func TestErrorIsMatchesTheCodeAlone(t *testing.T) {
	err := fmt.Errorf("create: %w", sandbox.InvalidField("name", "bad"))
	if !errors.Is(err, &sandbox.Error{Code: sandbox.Invalid}) {
		t.Error("the code does not match")
	}
	if errors.Is(err, &sandbox.Error{Code: sandbox.Gone}) || errors.Is(err, &sandbox.Error{Code: sandbox.Invalid, Message: "other"}) {
		t.Error("another code or message matches")
	}
	if got := err.Error(); got != "create: invalid: name: bad" {
		t.Errorf("text %q", got)
	}
}

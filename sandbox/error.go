package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Origin says who stated an error: an answer of the engine deserves another
// retry than a guess of the client.
type Origin string

// The origins.
const (
	FromEngine  Origin = "engine"  // Docker or E2B said so
	FromSandbox Origin = "sandbox" // the agent or the kernel inside the sandbox said so
	FromWorker  Origin = "worker"  // a worker said so
	FromClient  Origin = "client"  // the client inferred it: no answer, a broken stream
)

// Error is the one error type that crosses a boundary of Shoal.
//
// Message is for the caller: what was tried and what to do next, without
// hosts, paths of the worker or secrets. The wrapped cause stays in the
// process and goes to the log.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Origin  Origin `json:"origin,omitempty"`
	// Field names the request field that is at fault (Invalid).
	Field string `json:"field,omitempty"`
	// Reason refines the code by one word that programs may test, such as
	// "no_token" (Gone), "cwd" or "shell" (StartFailed).
	Reason string `json:"reason,omitempty"`
	// RetryAfter is when to try again at the earliest (Busy); 0 = no advice.
	RetryAfter Milliseconds `json:"retryAfterMs,omitempty"`
	// Boot is the sandbox's present boot (Restarted).
	Boot string `json:"boot,omitempty"`
	// ID joins this answer with the worker's log line.
	ID string `json:"id,omitempty"`

	cause error
}

// Error returns the code and the message; the cause is not part of the text.
func (e *Error) Error() string {
	if e.Field != "" {
		return fmt.Sprintf("%s: %s: %s", e.Code, e.Field, e.Message)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap returns the cause, which never leaves the process.
func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is(err, &Error{Code: c}) match on the code alone.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// Retryable reports whether the same request may be sent again as it is.
func (e *Error) Retryable() bool { return e.Code.Retryable() }

// From returns a copy of e that says who stated it.
func (e *Error) From(o Origin) *Error {
	c := *e
	c.Origin = o
	return &c
}

// Because returns a copy of e with the one-word reason.
func (e *Error) Because(reason string) *Error {
	c := *e
	c.Reason = reason
	return &c
}

// Wrap returns a copy of e with the cause, for errors.Is and for the log.
func (e *Error) Wrap(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// After returns a copy of e with advice when to try again.
func (e *Error) After(d time.Duration) *Error {
	c := *e
	c.RetryAfter = Millis(d)
	return &c
}

// Errorf makes an error with a code. The format must not print secrets or
// paths of the worker; use [Error.Wrap] for the cause.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// InvalidField makes an Invalid error that names the field.
func InvalidField(field, format string, args ...any) *Error {
	return &Error{Code: Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of err: that of the first [Error] in its chain,
// Timeout and Canceled for context errors, Internal for anything else, and ""
// for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Internal
}

// AsError returns err as an [Error]: itself if there is one in its chain,
// otherwise a new one with [CodeOf] that hides the foreign text and keeps err
// as the cause. It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch code := CodeOf(err); code {
	case Timeout:
		return Errorf(code, "the time allowed for the operation is over").Wrap(err)
	case Canceled:
		return Errorf(code, "the operation was withdrawn").Wrap(err)
	default:
		return Errorf(code, "an internal fault; the worker's log has the details").Wrap(err)
	}
}

package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// maxMessage bounds the text that is taken over from an answer, in runes.
const maxMessage = 300

// The texts by which the API tells its kinds of 404 apart. The status and the
// body's code are the same for all of them, so nothing but the text is left.
// Source: the API's handlers and its OpenAPI validator, e2b-dev/infra 54693ff.
const (
	textGone     = "doesn't exist or you don't have access"
	textNoRoute  = "no matching operation was found"
	textNoMethod = "method not allowed"
	textPaused   = "is already paused"
)

// apiError is one failed call of the control plane.
type apiError struct {
	// Call is what was tried, such as "create sandbox".
	Call string
	// Status is the HTTP status; 0 when no answer was read.
	Status int
	// Structured says that the body was the API's own JSON. Anything else comes
	// from a proxy or a load balancer on the way.
	Structured bool
	// Code is the API's error_code, often empty.
	Code string
	// Message is the API's text, bounded and without control characters.
	Message string
	// RetryAfter is the wait the server asked for; 0 when it named none.
	RetryAfter time.Duration
	// NotSent says that no byte of the request can have reached the server.
	NotSent bool

	cause error
}

func (e *apiError) Error() string {
	if e.Status == 0 {
		return fmt.Sprintf("e2b: %s: %v", e.Call, e.cause)
	}
	text := e.Message
	if text == "" {
		text = http.StatusText(e.Status)
	}
	if e.Code != "" {
		text += " (" + e.Code + ")"
	}
	return fmt.Sprintf("e2b: %s: status %d: %s", e.Call, e.Status, text)
}

func (e *apiError) Unwrap() error { return e.cause }

// gone reports the only answer that proves a sandbox does not exist.
func (e *apiError) gone() bool {
	return e.Status == http.StatusNotFound && e.Structured && strings.Contains(e.Message, textGone)
}

// noRoute reports that this version of the server does not know the route. Its
// body has the same shape and code as the one for a missing sandbox.
func (e *apiError) noRoute() bool {
	return e.Status == http.StatusNotFound && e.Structured &&
		(strings.Contains(e.Message, textNoRoute) || strings.Contains(e.Message, textNoMethod))
}

// retryable reports whether the same call may succeed later.
func (e *apiError) retryable() bool {
	switch {
	case e.Status == 0:
		return !errors.Is(e.cause, context.Canceled)
	case e.Status == http.StatusTooManyRequests, e.Status == http.StatusConflict:
		return true
	default:
		return e.Status >= 500
	}
}

// notDone reports that the server certainly did nothing, so that even a create
// may be sent again.
func (e *apiError) notDone() bool {
	return e.NotSent || e.Status == http.StatusTooManyRequests
}

// settled reports that the server answered the call itself and refused it: a
// failed create then left nothing to look for.
func (e *apiError) settled() bool {
	return e.NotSent || (e.Structured && e.Status >= 400 && e.Status < 500)
}

// asAPI returns the control plane's error inside err, or nil.
func asAPI(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	return nil
}

// isGone reports whether err is the proven absence of a sandbox.
func isGone(err error) bool {
	e := asAPI(err)
	return e != nil && e.gone()
}

// answerError reads a failed answer. The body is foreign and bounded by the caller.
func answerError(call string, status int, header http.Header, body []byte, key Secret) *apiError {
	e := &apiError{Call: call, Status: status, RetryAfter: retryAfter(header)}
	var parsed struct {
		Code      *int   `json:"code"`
		Message   string `json:"message"`
		ErrorCode string `json:"error_code"`
	}
	if json.Unmarshal(body, &parsed) == nil && parsed.Code != nil && *parsed.Code == status {
		e.Structured = true
		e.Message = clean(key.scrub(parsed.Message))
		e.Code = clean(key.scrub(parsed.ErrorCode))
	}
	return e
}

// retryAfter reads the header's whole seconds; dates are not sent by this API.
func retryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, 3600)) * time.Second
}

// clean makes foreign text fit for an error or a log line.
func clean(text string) string {
	var b strings.Builder
	n := 0
	for _, r := range text {
		if n++; n > maxMessage {
			b.WriteString("…")
			break
		}
		if !unicode.IsPrint(r) {
			r = ' '
		}
		b.WriteRune(r)
	}
	return b.String()
}

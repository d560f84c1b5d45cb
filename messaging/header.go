package messaging

import (
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// The headers of requests and answers.
const (
	// HeaderRequest is the request id, the same in every copy of a request.
	HeaderRequest = "Shoal-Request"
	// HeaderTimeout is the remaining time in ms when the message was sent; it
	// rules, since clocks differ.
	HeaderTimeout = "Shoal-Timeout"
	// HeaderDeadline is the absolute deadline in Unix ms; it only drops what
	// is more than a minute late.
	HeaderDeadline = "Shoal-Deadline"
	// HeaderProtocol is the protocol's number; absent means [Protocol].
	HeaderProtocol = "Shoal-Protocol"
	// HeaderAccept asks every receiver to say at once that it has the request.
	HeaderAccept = "Shoal-Accept"
	// HeaderWord is "accepted" on that word, absent on answers and frames.
	HeaderWord = "Shoal-Word"
	// HeaderWorker names the worker that speaks.
	HeaderWorker = "Shoal-Worker"
	// HeaderContent is application/json or application/msgpack.
	HeaderContent = "Content-Type"
	// HeaderError carries the code of an answer that is an error, and
	// HeaderErrorText its text, where the tools of NATS look for them.
	HeaderError     = "Nats-Service-Error-Code"
	HeaderErrorText = "Nats-Service-Error"
	// HeaderTenant, HeaderReply and HeaderFrom: on the fleet's subjects only,
	// the client's tenant and reply subject and the worker that forwards.
	HeaderTenant = "Shoal-Tenant"
	HeaderReply  = "Shoal-Reply"
	HeaderFrom   = "Shoal-From"
	// HeaderTraceParent and HeaderTraceState are passed through.
	HeaderTraceParent = "Traceparent"
	HeaderTraceState  = "Tracestate"
)

// Protocol is the version of the protocol that this package speaks.
const Protocol = "1"

// wordAccepted is the one value of HeaderWord.
const wordAccepted = "accepted"

// The times of requests.
const (
	defaultRequestTime = 60 * time.Second // a request that names no time
	maxRequestTime     = 24 * time.Hour
	maxLate            = time.Minute
)

// remaining returns how long a request may take from its arrival on, or an
// error when it came too late to begin.
func remaining(h nats.Header, now time.Time) (time.Duration, error) {
	if err := checkLate(h, now); err != nil {
		return 0, err
	}
	text := h.Get(HeaderTimeout)
	if text == "" {
		return defaultRequestTime, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms > maxRequestTime.Milliseconds() {
		return 0, sandbox.InvalidField(HeaderTimeout, "use 1 to %d ms", maxRequestTime.Milliseconds())
	}
	if ms <= 0 {
		return 0, sandbox.Errorf(sandbox.Timeout, "the request had no time left when it was sent; nothing was done")
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func checkLate(h nats.Header, now time.Time) error {
	text := h.Get(HeaderDeadline)
	if text == "" {
		return nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return sandbox.InvalidField(HeaderDeadline, "use Unix milliseconds")
	}
	if now.Sub(time.UnixMilli(ms)) > maxLate {
		return sandbox.Errorf(sandbox.Timeout, "the request arrived more than a minute after its deadline; nothing was done")
	}
	return nil
}

// contentJSON reports whether the body is JSON, and refuses what is neither.
func contentJSON(h nats.Header) (bool, error) {
	media, _, _ := strings.Cut(h.Get(HeaderContent), ";")
	switch strings.ToLower(strings.TrimSpace(media)) {
	case "application/json":
		return true, nil
	case "", "application/msgpack":
		return false, nil
	}
	return true, sandbox.InvalidField(HeaderContent, "use application/json or application/msgpack")
}

// checkProtocol refuses another protocol version.
func checkProtocol(h nats.Header) error {
	if p := h.Get(HeaderProtocol); p != "" && p != Protocol {
		return sandbox.Errorf(sandbox.Unsupported, "this worker speaks protocol %s; upgrade it or the client", Protocol)
	}
	return nil
}

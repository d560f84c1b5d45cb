package e2b

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"shoal/sandbox"
)

// errGone is the answer for what E2B itself denies.
func errGone(name sandbox.Name) *sandbox.Error {
	return sandbox.Errorf(sandbox.Gone, "sandbox %s does not exist any more at E2B; its files are lost", name).From(sandbox.FromEngine)
}

func engineError(format string, args ...any) *sandbox.Error {
	return sandbox.Errorf(sandbox.Engine, format, args...).From(sandbox.FromEngine)
}

// translate gives a failure of E2B the contract's code. op says what was tried,
// such as "resume sandbox a".
func translate(op string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	if e := asAPI(err); e != nil && e.Status != 0 {
		return translateAnswer(op, e)
	}
	if e := asEnvd(err); e != nil {
		return translateEnvd(op, e)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return sandbox.Errorf(sandbox.Canceled, "%s: the operation was withdrawn", op).Wrap(err)
	case errors.Is(err, context.DeadlineExceeded):
		return sandbox.Errorf(sandbox.Timeout, "%s: the time allowed for it is over", op).Wrap(err)
	case errors.Is(err, errNoAnswer), errors.Is(err, errNoStart):
		return engineError("%s: E2B does not answer in time", op).From(sandbox.FromWorker).Wrap(err)
	default:
		return engineError("%s: E2B cannot be reached or broke off", op).From(sandbox.FromWorker).Wrap(err)
	}
}

func translateAnswer(op string, e *apiError) error {
	var out *sandbox.Error
	switch {
	case e.gone():
		out = sandbox.Errorf(sandbox.Gone, "%s: it does not exist any more at E2B; its files are lost", op)
	case e.noRoute():
		out = sandbox.Errorf(sandbox.Engine, "%s: this E2B server does not know the route; look at the apiURL setting and the server's version", op)
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		out = sandbox.Errorf(sandbox.Denied, "%s: E2B refuses the account; look at the apiKey setting (%s)", op, e.Message)
	case e.Status == http.StatusTooManyRequests:
		out = sandbox.Errorf(sandbox.Busy, "%s: E2B's limit is reached: %s", op, e.Message).
			Because(limitReason(e)).After(max(e.RetryAfter, 5*time.Second))
	case e.Status == http.StatusConflict:
		out = sandbox.Errorf(sandbox.Busy, "%s: %s", op, e.Message).Because("transition").After(time.Second)
	case e.Status == http.StatusBadRequest:
		out = sandbox.Errorf(sandbox.Unsupported, "%s: E2B refuses the request: %s", op, e.Message)
	case e.Message == "":
		out = sandbox.Errorf(sandbox.Engine, "%s: status %d, not from E2B's API itself", op, e.Status)
	default:
		out = sandbox.Errorf(sandbox.Engine, "%s: status %d: %s", op, e.Status, e.Message)
	}
	return out.From(sandbox.FromEngine).Wrap(e)
}

// limitReason tells the account's number of sandboxes from the rate of requests.
func limitReason(e *apiError) string {
	if e.RetryAfter == 0 && strings.Contains(e.Message, "concurrent") {
		return "concurrency"
	}
	return "rate"
}

func translateEnvd(op string, e *envdError) error {
	var out *sandbox.Error
	switch {
	case e.notRunning():
		out = suspended(op)
	case e.unauthorized():
		out = sandbox.Errorf(sandbox.Gone, "%s: the sandbox refuses its own access token; create it anew", op).Because("no_token")
	default:
		out = sandbox.Errorf(sandbox.Engine, "%s: %s", op, e.Error())
	}
	return out.From(sandbox.FromEngine).Wrap(e)
}

func suspended(op string) *sandbox.Error {
	return sandbox.Errorf(sandbox.Unavailable, "%s: it is suspended", op).Because("suspended").From(sandbox.FromEngine)
}

// settle judges a failure of a call that names a sandbox: a 404 that does not
// prove absence is asked about once more, by the one call that every version
// of the server knows.
func (p *Provider) settle(ctx context.Context, op, id string, err error) error {
	e := asAPI(err)
	if e != nil && e.Status == http.StatusNotFound && !e.gone() {
		if _, again := p.api.get(ctx, id); isGone(again) {
			err = again
		}
	}
	if isGone(err) {
		p.forget(id)
	}
	return translate(op, err)
}

package e2b

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// keepaliveSeconds is how often envd speaks on a silent stream. It must
	// never be below 1: 0 crashes envd (seen with 0.6.13).
	keepaliveSeconds = 15
	// maxSilence is how long a stream may be silent while somebody reads it.
	maxSilence = 3 * keepaliveSeconds * time.Second
	// startWait bounds the wait for the start event of a process.
	startWait = 30 * time.Second
	// inputWait bounds one SendInput, which waits for the process to read.
	inputWait = 60 * time.Second
	// envdWait bounds every other call.
	envdWait = 15 * time.Second
)

// envdError is a failure that envd, or the proxy before it, answered.
type envdError struct {
	// Status is the HTTP status; 200 for the end of a stream.
	Status int
	// Code is Connect's code; empty for an answer of the token check or the proxy.
	Code string
	// Message is bounded and without control characters.
	Message string
}

func (e *envdError) Error() string {
	if e.Code != "" {
		return "envd: " + e.Code + ": " + e.Message
	}
	return fmt.Sprintf("envd: status %d: %s", e.Status, e.Message)
}

// notRunning is the proxy's word that the sandbox is paused, killed or expired.
func (e *envdError) notRunning() bool {
	return e.Status == http.StatusBadGateway && strings.Contains(e.Message, "sandbox was not found")
}

// unauthorized means a missing or wrong access token.
func (e *envdError) unauthorized() bool { return e.Status == http.StatusUnauthorized && e.Code == "" }

func asEnvd(err error) *envdError {
	if e, ok := errors.AsType[*envdError](err); ok {
		return e
	}
	return nil
}

// envd speaks to the daemon inside one sandbox. Safe for concurrent use.
type envd struct {
	http  *http.Client
	base  string // scheme and host
	id    string // sandbox id
	token Secret
}

// envdBase is the address that reaches the daemon of a sandbox: the shared host
// of E2B's own domains, the sandbox's host elsewhere, and the address itself
// where the domain is one (the proxy then routes by headers).
func envdBase(domain, id string) string {
	host := hostOnly(domain)
	switch {
	case localHost(host):
		return "http://" + domain
	case slices.Contains([]string{"e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"}, domain):
		return "https://sandbox." + domain
	default:
		return "https://" + envdPort + "-" + id + "." + domain
	}
}

// process is what Start runs.
type process struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

type startRequest struct {
	Process process `json:"process"`
	Stdin   bool    `json:"stdin"`
}

type selector struct {
	PID uint32 `json:"pid"`
}

type inputRequest struct {
	Process selector `json:"process"`
	Input   struct {
		Stdin string `json:"stdin"`
	} `json:"input"`
}

type selectRequest struct {
	Process selector `json:"process"`
}

// event is one message of a process stream.
type event struct {
	Event struct {
		Start *struct {
			PID uint32 `json:"pid"`
		} `json:"start"`
		Data *struct {
			Stdout []byte `json:"stdout"`
			Stderr []byte `json:"stderr"`
		} `json:"data"`
		End *ended `json:"end"`
	} `json:"event"`
}

// ended says how a process ended: exit codes are absent when 0, and -1 with
// exited absent means a signal that only the status names.
type ended struct {
	ExitCode int    `json:"exitCode"`
	Exited   bool   `json:"exited"`
	Status   string `json:"status"`
}

// request builds a call as the root user. No deadline becomes a header: envd
// takes Connect-Timeout-Ms for the life of the process.
func (e *envd) request(ctx context.Context, method, contentType string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.base+"/process.Process/"+method, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range map[string]string{
		"E2b-Sandbox-Id":           e.id,
		"E2b-Sandbox-Port":         envdPort,
		"X-Access-Token":           e.token.Reveal(),
		"Authorization":            "Basic " + base64.StdEncoding.EncodeToString([]byte("root:")),
		"Content-Type":             contentType,
		"Connect-Protocol-Version": "1",
		"User-Agent":               "shoal",
	} {
		req.Header.Set(k, v)
	}
	return req, nil
}

// unary calls one method that has a single answer, which nobody needs.
func (e *envd) unary(caller context.Context, method string, body any, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(caller, wait)
	defer cancel()
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := e.request(ctx, method, "application/json", data)
	if err != nil {
		return err
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return fmt.Errorf("envd: %s: %w", method, ownDeadline(caller, hideURL(err)))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return e.answerError(resp)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody)) // so that the connection is kept
	return err
}

// answerError reads a failed answer: Connect's code is a string, the token
// check's and the proxy's an integer, and some answers are no JSON at all.
func (e *envd) answerError(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	out := &envdError{Status: resp.StatusCode}
	var parsed struct {
		Code    any    `json:"code"`
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &parsed) == nil {
		out.Code, _ = parsed.Code.(string)
		out.Code = clean(out.Code)
		out.Message = parsed.Message
	} else {
		out.Message = strings.TrimSpace(string(body))
	}
	if out.Message == "" {
		out.Message = http.StatusText(resp.StatusCode)
	}
	out.Message = clean(e.token.scrub(out.Message))
	return out
}

// startProcess begins p and returns its open event stream and pid. ctx bounds
// the whole life of the stream; the start itself is bounded by startWait.
func (e *envd) startProcess(ctx context.Context, p process, stdin bool) (io.ReadCloser, uint32, error) {
	data, err := json.Marshal(startRequest{Process: p, Stdin: stdin})
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := e.request(ctx, "Start", "application/connect+json", appendEnvelope(nil, data))
	if err != nil {
		cancel(err)
		return nil, 0, err
	}
	req.Header.Set("Keepalive-Ping-Interval", strconv.Itoa(keepaliveSeconds))
	watch := time.AfterFunc(startWait, func() { cancel(errNoStart) })
	body, pid, err := e.openStream(req)
	if !watch.Stop() && err == nil {
		_ = body.Close()
		err = errNoStart
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(err)
		return nil, 0, fmt.Errorf("start %s: %w", p.Cmd, err)
	}
	return &cancelBody{ReadCloser: body, cancel: cancel}, pid, nil
}

var errNoStart = errors.New("envd did not say in time that the process started")

// openStream sends req and reads up to the start event.
func (e *envd) openStream(req *http.Request) (io.ReadCloser, uint32, error) {
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, 0, hideURL(err)
	}
	pid, err := e.readStart(resp)
	if err != nil {
		_ = resp.Body.Close()
		return nil, 0, err
	}
	return resp.Body, pid, nil
}

func (e *envd) readStart(resp *http.Response) (uint32, error) {
	if resp.StatusCode != http.StatusOK {
		return 0, e.answerError(resp)
	}
	flags, payload, err := readEnvelope(resp.Body, nil)
	if err != nil {
		return 0, err
	}
	if flags&flagEnd != 0 {
		if err := endError(payload, e.token); err != nil {
			return 0, err
		}
		return 0, errors.New("the stream ended before the process started")
	}
	var ev event
	if err := json.Unmarshal(payload, &ev); err != nil || ev.Event.Start == nil || ev.Event.Start.PID == 0 {
		return 0, errors.New("the stream does not begin with a start event")
	}
	return ev.Event.Start.PID, nil
}

// cancelBody ends the request with its body.
type cancelBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *cancelBody) Close() error {
	b.cancel(context.Canceled)
	return b.ReadCloser.Close()
}

// sendInput writes to the stdin of a process and returns when envd has taken
// all of it. It is never repeated: after a lost answer nobody knows what arrived.
func (e *envd) sendInput(ctx context.Context, pid uint32, data []byte) error {
	req := inputRequest{Process: selector{PID: pid}}
	req.Input.Stdin = base64.StdEncoding.EncodeToString(data)
	return e.unary(ctx, "SendInput", req, inputWait)
}

// closeStdin gives the process EOF. Repeating it is harmless.
func (e *envd) closeStdin(ctx context.Context, pid uint32) error {
	return e.unary(ctx, "CloseStdin", selectRequest{Process: selector{PID: pid}}, envdWait)
}

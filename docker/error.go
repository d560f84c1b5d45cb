package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"syscall"

	"shoal/sandbox"
)

// errNoAnswer is the cause of a call's own deadline, as opposed to the caller's.
var errNoAnswer = errors.New("the engine did not answer in time")

// engineError is a refusal by the engine.
type engineError struct {
	op      string
	status  int
	message string
}

func (e *engineError) Error() string {
	return fmt.Sprintf("%s: the engine answers %d: %s", e.op, e.status, e.message)
}

// versionError says that no API version is common.
type versionError struct{ theirs string }

func (e *versionError) Error() string {
	return fmt.Sprintf("the engine speaks API %q, needed is %s or newer", e.theirs, minAPI)
}

// ended adds to err why ctx ended, when it did.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// The engine's refusals that are told apart. The status alone does not say
// which object a 404 means, and a proxy may answer 404 too, so the text decides
// as well; it is the same in all engines from 20.10 on.

func isNoContainer(err error) bool { return refused(err, http.StatusNotFound, "no such container") }
func isNoImage(err error) bool     { return refused(err, http.StatusNotFound, "no such image") }
func isNoVolume(err error) bool    { return refused(err, http.StatusNotFound, "no such volume") }
func isNoNetwork(err error) bool   { return refused(err, http.StatusNotFound, "not found") }
func isConflict(err error) bool    { return refused(err, http.StatusConflict, "") }

// isFailure reports whether the engine itself failed at what it was asked.
func isFailure(err error) bool {
	e, ok := errors.AsType[*engineError](err)
	return ok && e.status >= http.StatusInternalServerError
}

func isPaused(err error) bool     { return refused(err, http.StatusConflict, "is paused") }
func isNotRunning(err error) bool { return refused(err, http.StatusConflict, "is not running") }
func isNotPaused(err error) bool {
	return refused(err, http.StatusInternalServerError, "is not paused") || refused(err, http.StatusConflict, "is not paused") ||
		// The runtime's own words, when the engine's state is older than its (seen on Engine 20.10).
		refused(err, http.StatusInternalServerError, "cannot resume a running process")
}

func isBeingRemoved(err error) bool {
	return refused(err, http.StatusConflict, "already in progress") ||
		refused(err, http.StatusConflict, "marked for removal")
}

func refused(err error, status int, text string) bool {
	e, ok := errors.AsType[*engineError](err)
	return ok && e.status == status && strings.Contains(strings.ToLower(e.message), text)
}

// translate turns err into the contract's error. op completes "could not …".
// The engine's words stay in the cause.
func translate(op string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e
	}
	if errors.Is(err, errNoAnswer) {
		return engineFault("could not %s: the engine did not answer in time; see its log", op).Wrap(err)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return sandbox.AsError(err)
	}
	if e := unreachable(err); e != nil {
		return e.Wrap(err)
	}
	if v, ok := errors.AsType[*versionError](err); ok {
		return engineFault("could not %s: %s; update the engine", op, v).Wrap(err)
	}
	if _, ok := errors.AsType[*engineError](err); ok {
		return refusal(op, err)
	}
	return engineFault("could not %s: the connection to the engine broke", op).Wrap(err)
}

// unreachable puts into words why no connection came about.
func unreachable(err error) *sandbox.Error {
	dial, ok := errors.AsType[*net.OpError](err)
	switch {
	case !ok || dial.Op != "dial":
		return nil
	case errors.Is(err, fs.ErrPermission):
		return engineFault("no permission on the Docker socket; " +
			"add yourself to its group (sudo usermod -aG docker $USER), log in again, or point --docker-endpoint at another engine")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return engineFault("no Docker engine answers; " +
			"start it (sudo systemctl start docker) or point --docker-endpoint at one")
	}
	return engineFault("the Docker engine cannot be reached; check --docker-endpoint")
}

// refusal puts the engine's refusals into words where we know what to do.
func refusal(op string, err error) *sandbox.Error {
	known := []struct{ text, words string }{
		{"unknown or invalid runtime", "the engine has no such runtime; register it with the engine or choose --runtime runc"},
		{"unknown runtime", "the engine has no such runtime; register it with the engine or choose --runtime runc"},
		{"client version", "the engine and Shoal have no API version in common; try again, or update the older one"},
		{"no space left", "the engine's disk is full; free some of it"},
		{"plugin", "the engine has no such volume driver; install it or leave --volume-driver out"},
	}
	e, _ := errors.AsType[*engineError](err)
	if e.status == http.StatusForbidden && strings.HasPrefix(e.message, "docker filter:") {
		return sandbox.Errorf(sandbox.Denied, "could not %s: %s; the filter's operator sets what it admits with --policy, --image and --fleet", op, e.message).
			From(sandbox.FromEngine).Wrap(err)
	}
	for _, k := range known {
		if strings.Contains(strings.ToLower(e.message), k.text) {
			return engineFault("could not %s: %s", op, k.words).Wrap(err)
		}
	}
	return engineFault("could not %s: the engine refused (status %d); the worker's log has its words", op, e.status).Wrap(err)
}

func engineFault(format string, args ...any) *sandbox.Error {
	return sandbox.Errorf(sandbox.Engine, format, args...).From(sandbox.FromEngine)
}

func gone(h sandbox.Handle) error {
	return sandbox.Errorf(sandbox.Gone, "sandbox %s does not exist any more; create it anew", h.Name).From(sandbox.FromEngine)
}

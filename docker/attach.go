package docker

import (
	"context"
	"io"
	"net/http"

	"shoal/sandbox"
)

// attachTries is how often an attach wakes a sandbox that stops again.
const attachTries = 3

// Attach implements [sandbox.Provider]. Closing the stream ends the attach
// program inside; one goroutine may read and one may write at a time.
func (p *Provider) Attach(ctx context.Context, h sandbox.Handle, wake bool) (io.ReadWriteCloser, error) {
	id, err := identityOf(h)
	if err != nil {
		return nil, err
	}
	name := p.container(id)
	for range attachTries {
		s, err := p.open(ctx, name)
		switch {
		case err == nil:
			return s, nil
		case isNoContainer(err):
			return nil, gone(h)
		case isFailure(err):
			return nil, unentered(err)
		case !isAsleep(err):
			return nil, translate("attach to sandbox "+string(h.Name), err)
		case !wake:
			return nil, sandbox.Errorf(sandbox.Unavailable, "sandbox %s is suspended", h.Name).
				Because("suspended").From(sandbox.FromEngine)
		}
		if err := p.Resume(ctx, h); err != nil {
			return nil, err
		}
	}
	return nil, sandbox.Errorf(sandbox.StartFailed, "sandbox %s stops right after each start: its agent cannot run or does not pass its self-test; look at its image", h.Name).
		Because("agent").From(sandbox.FromEngine)
}

// isAsleep reports whether an exec failed because the container does not run,
// or stopped between the two calls of an exec.
func isAsleep(err error) bool {
	return isPaused(err) || isNotRunning(err) ||
		refused(err, http.StatusConflict, "restarting") || refused(err, http.StatusNotFound, "no such exec")
}

// unentered says that the engine could start no program in the sandbox. It finds no
// process left for it, or one that ended while it was entered, and has words and
// statuses for that by the dozen.
func unentered(cause error) error {
	return engineFault("the attach program could not be started in the sandbox; where its processes are used up try again, " +
		"otherwise look whether its image was built FROM shoal-sandbox").Because("attach").Wrap(cause)
}

// open runs the attach program in the container and returns its stdio.
func (p *Provider) open(ctx context.Context, name string) (io.ReadWriteCloser, error) {
	var made created
	err := p.engine.call(ctx, quickCall, request{
		method: http.MethodPost, path: "/containers/" + name + "/exec",
		body: execCreate{
			AttachStdin: true, AttachStdout: true, AttachStderr: true,
			Cmd: []string{attachProgram, agentSocket}, User: "0:0",
		},
	}, &made)
	if err != nil {
		return nil, err
	}
	if !isHex(made.ID) {
		return nil, engineFault("the engine's answer to an exec has no id")
	}
	conn, in, err := p.engine.hijack(ctx, request{
		method: http.MethodPost, path: "/exec/" + made.ID + "/start", body: execStart{},
	})
	if err != nil {
		return nil, err
	}
	s := newStream(conn, in)
	p.links.add(name, s)
	return s, nil
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

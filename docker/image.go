package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/distribution/reference"

	"shoal/sandbox"
)

const (
	// pullLimit bounds one pull.
	pullLimit = 3 * time.Minute
	// reportEvery spaces a pull's progress reports.
	reportEvery = 100 * time.Millisecond
	// The most layers and bytes of progress that are read.
	maxLayers      = 512
	maxPullAnswer  = 256 << 20
	pullStep       = "pull"
	pullBrokenText = "the engine's answer broke off"
)

// normalImage returns ref in its short form with a tag or digest. Without one
// the engine would pull every tag of the repository.
func normalImage(ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", sandbox.InvalidField("image", "%.80q is not an image reference such as registry.example/name:tag", ref).Wrap(err)
	}
	return reference.FamiliarString(reference.TagNameOnly(named)), nil
}

// ensureImage makes sure that the engine has ref, pulling it once if need be,
// and that it is an image of ours.
func (p *Provider) ensureImage(ctx context.Context, ref string, progress sandbox.Progress) error {
	img, err := p.inspectImage(ctx, ref)
	if isNoImage(err) {
		err = p.pulls.do(ctx, ref, pullLimit, progress, func(ctx context.Context, report sandbox.Progress) error {
			return p.pull(ctx, ref, report)
		})
		if err != nil {
			return pullFailed(ref, err)
		}
		img, err = p.inspectImage(ctx, ref)
	}
	if err != nil {
		return translate("look at the image "+ref, err)
	}
	if img.Config.Labels[sandbox.AgentLabel] == "" {
		return sandbox.InvalidField("image", "%s has no label %s: build it FROM the image shoal-sandbox and leave its entry point alone", ref, sandbox.AgentLabel)
	}
	return nil
}

func (p *Provider) inspectImage(ctx context.Context, ref string) (image, error) {
	var img image
	err := p.engine.call(ctx, quickCall, request{method: http.MethodGet, path: "/images/" + ref + "/json"}, &img)
	return img, err
}

func (p *Provider) pull(ctx context.Context, ref string, report sandbox.Progress) error {
	r := request{method: http.MethodPost, path: "/images/create", query: url.Values{"fromImage": {ref}}}
	return p.engine.stream(ctx, r, func(body io.Reader) error {
		return followPull(io.LimitReader(body, maxPullAnswer), report)
	})
}

// pullError is what the engine said in the middle of a pull, after its 200.
type pullError struct{ message string }

func (e *pullError) Error() string { return "the engine could not pull: " + e.message }

// followPull reads progress lines to the end.
func followPull(body io.Reader, report sandbox.Progress) error {
	layers := make(map[string][2]int64)
	var reported time.Time
	lines := json.NewDecoder(body)
	for {
		var line progressLine
		switch err := lines.Decode(&line); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", pullBrokenText, err)
		case line.Error != "":
			return &pullError{line.Error}
		}
		if line.ProgressDetail.Total > 0 && line.Status == "Downloading" && len(layers) < maxLayers {
			layers[line.ID] = [2]int64{line.ProgressDetail.Current, line.ProgressDetail.Total}
		}
		if time.Since(reported) < reportEvery {
			continue
		}
		reported = time.Now()
		var done, total int64
		for _, l := range layers {
			done, total = done+l[0], total+l[1]
		}
		report(pullStep, done, total)
	}
}

// pullFailed says why ref is not there and what to do.
func pullFailed(ref string, err error) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	const advice = "check the reference, or put the image on the engine beforehand (docker pull, or make image for shoal-sandbox)"
	if errors.Is(err, errNoAnswer) {
		return sandbox.Errorf(sandbox.Timeout, "image %s could not be pulled within %s; %s", ref, pullLimit, advice).
			From(sandbox.FromEngine).Wrap(err)
	}
	_, refusedPull := errors.AsType[*engineError](err)
	_, brokenPull := errors.AsType[*pullError](err)
	switch {
	case !refusedPull && !brokenPull:
		return translate("pull image "+ref, err)
	case saysMissing(err):
		return sandbox.Errorf(sandbox.NotFound, "image %s is neither on the engine nor in its registry; %s", ref, advice).
			Because("image").From(sandbox.FromEngine).Wrap(err)
	}
	return engineFault("image %s is not on the engine and its registry does not give it; %s", ref, advice).Because("image").Wrap(err)
}

// saysMissing reports whether a registry denied the image, in the words that
// the engine passes on from it. A private image is denied in the same way.
func saysMissing(err error) bool {
	text := strings.ToLower(err.Error())
	for _, words := range []string{"manifest unknown", "not found", "access denied", "does not exist"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"shoal/messaging"
	"shoal/sandbox"
)

const byBridge = "curl on Docker's bridge"

// egressRows measure what the way out of a sandbox costs, through its agent and
// the worker's proxy, against a container made by hand on the engine's default
// bridge. Both ask the same HTTPS server, and both times are curl's own: how
// the curl was started does not count.
func egressRows(ctx context.Context, r *rig) (err error) {
	hand, host, err := r.engine.CreateBridged(ctx, r.handName())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.engine.Remove(context.WithoutCancel(ctx), hand)) }()
	o, err := startOrigin(ctx, host)
	if err != nil {
		return err
	}
	defer o.close()
	return r.withProxied(ctx, o, func(id messaging.WorkerID) error {
		box, err := r.reaching(ctx, id, originName)
		if err != nil {
			return err
		}
		err = r.measureEgress(ctx, r.curlThere(box), r.curlByHand(hand, o))
		return errors.Join(err, r.destroy(context.WithoutCancel(ctx), box))
	})
}

// reaching makes a sandbox of the given worker that may reach host.
func (r *rig) reaching(ctx context.Context, id messaging.WorkerID, host string) (messaging.Target, error) {
	box, err := r.ownedBy(ctx, id)
	if err != nil {
		return box, err
	}
	_, err = r.client.SetEgress(ctx, box, sandbox.Egress{Mode: sandbox.EgressAllowlist, Hosts: []string{host}})
	return box, err
}

func (r *rig) measureEgress(ctx context.Context, ours, base curl) error {
	size := r.effort.Output / 16 // all of it would take a minute a sample
	err := r.measure(ctx, probe{
		name: "egress", unit: unitMiBps, more: true, long: true, baseline: byBridge,
		ours: ours.download(size), base: base.download(size),
	})
	if err != nil {
		return err
	}
	return r.measure(ctx, probe{
		name: "egress_latency", unit: unitMS, long: true, baseline: byBridge, added: "egress_added",
		ours: ours.latency, base: base.latency,
	})
}

// curl runs curl on one side and returns what it prints.
type curl func(ctx context.Context, args ...string) (stdout []byte, err error)

// curlThere is curl in a sandbox.
func (r *rig) curlThere(box messaging.Target) curl {
	return func(ctx context.Context, args ...string) ([]byte, error) {
		res, err := r.client.Run(ctx, box, sandbox.Command{Argv: append([]string{"curl"}, args...)}, messaging.RunOptions{})
		if err == nil && res.Code != 0 {
			err = fmt.Errorf("curl ended with %d: %s", res.Code, res.Stderr)
		}
		if err != nil {
			return nil, err
		}
		return res.Stdout, nil
	}
}

// curlByHand is curl in a container that connects to the origin by itself.
func (r *rig) curlByHand(container string, o *origin) curl {
	return func(ctx context.Context, args ...string) ([]byte, error) {
		var out bytes.Buffer
		argv := append([]string{"curl", "--connect-to", originName + ":443:" + o.address()}, args...)
		err := r.engine.Exec(ctx, container, argv, nil, &out)
		return out.Bytes(), err
	}
}

// download makes a sample of MiB per second.
func (c curl) download(size int64) sample {
	return func(ctx context.Context) (float64, error) {
		took, err := c.fetch(ctx, size, 1)
		if err != nil {
			return 0, err
		}
		return mib(size) / took[0], nil
	}
}

// latency is a sample of a small request's milliseconds on a connection of its
// own: the median of ten that one curl makes, since a curl's first one also
// loads its certificates.
func (c curl) latency(ctx context.Context) (float64, error) {
	took, err := c.fetch(ctx, 100, 10)
	if err != nil {
		return 0, err
	}
	return 1000 * median(took), nil
}

// fetch gets size bytes so many times, one after another, and returns the
// seconds of each from its beginning to the last byte.
func (c curl) fetch(ctx context.Context, size int64, times int) ([]float64, error) {
	out, err := c(ctx, "-sSk", "--no-sessionid", "--connect-timeout", "15", "--max-time", "120", "-o", "/dev/null",
		"-w", "%{http_code} %{size_download} %{time_total}\n",
		fmt.Sprintf("https://%s/%d?[1-%d]", originName, size, times))
	if err != nil {
		return nil, err
	}
	var seconds []float64
	for line := range strings.Lines(string(out)) {
		rest, whole := strings.CutPrefix(line, fmt.Sprintf("200 %d ", size))
		s, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
		if !whole || err != nil || s <= 0 {
			return nil, fmt.Errorf("curl reports %q for %d bytes", line, size)
		}
		seconds = append(seconds, s)
	}
	if len(seconds) != times {
		return nil, fmt.Errorf("curl reports %d requests instead of %d", len(seconds), times)
	}
	return seconds, nil
}

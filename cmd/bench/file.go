package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"

	"shoal/sandbox"
)

const filePath = "/workspace/bench.bin"

// fileRows measure writing a file and reading it back.
func fileRows(ctx context.Context, r *rig) error {
	for _, f := range []struct {
		name string
		size int
	}{{"file4k", 4 << 10}, {"file1m", 1 << 20}} {
		data := make([]byte, f.size)
		_, _ = rand.Read(data) // never fails
		err := r.measure(ctx, probe{
			name: f.name, unit: unitMS, baseline: "two docker exec",
			ours: timed(func(ctx context.Context) error { return r.fileThere(ctx, data) }),
			base: timed(func(ctx context.Context) error { return r.fileByHand(ctx, data) }),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) fileThere(ctx context.Context, data []byte) error {
	f := r.box.File(filePath)
	if _, err := r.client.WriteFile(ctx, f, data, sandbox.WriteOptions{}); err != nil {
		return err
	}
	back, err := r.client.ReadFile(ctx, f, sandbox.ReadOptions{}, int64(len(data)))
	return same(data, back, err)
}

func (r *rig) fileByHand(ctx context.Context, data []byte) error {
	var back bytes.Buffer
	if err := r.engine.Exec(ctx, r.hand, []string{"sh", "-c", "cat > " + filePath}, data, &back); err != nil {
		return err
	}
	err := r.engine.Exec(ctx, r.hand, []string{"cat", filePath}, nil, &back)
	return same(data, back.Bytes(), err)
}

func same(want, got []byte, err error) error {
	if err == nil && !bytes.Equal(want, got) {
		err = fmt.Errorf("wrote %d bytes and read %d others", len(want), len(got))
	}
	return err
}

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"shoal/messaging"
	"shoal/sandbox"
)

type cpCmd struct {
	From      string `arg:"" help:"What is copied."`
	To        string `arg:"" help:"Where it goes."`
	Recursive bool   `short:"r" help:"Copy a directory with what is in it."`
	Durable   bool   `help:"Make a copied file survive a power loss before saying so."`
}

// Run copies in either direction.
func (c *cpCmd) Run(a *app) error {
	from, fromBox := remotePath(c.From)
	to, toBox := remotePath(c.To)
	if fromBox == toBox {
		return sandbox.InvalidField("from", "one of the two is in a sandbox, written <sandbox>:<path>, and only one")
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	switch {
	case fromBox && c.Recursive:
		return a.getTree(client, from, c.To)
	case fromBox:
		return a.getFile(client, from, c.To)
	case c.Recursive:
		return a.putTree(client, c.From, to)
	}
	return a.putFile(client, c.From, to, c.Durable)
}

// remotePath reads <sandbox>:<path>; a relative path is in /workspace.
func remotePath(s string) (messaging.PathTarget, bool) {
	name, p, ok := strings.Cut(s, ":")
	if !ok || name == "" || strings.ContainsAny(name, "/\\") {
		return messaging.PathTarget{}, false
	}
	if !path.IsAbs(p) {
		p = "/workspace/" + p
	}
	return messaging.Target{Sandbox: sandbox.Name(name)}.File(path.Clean(p)), true
}

// putFile copies one file, or standard input, into a sandbox.
func (a *app) putFile(client *messaging.Client, from string, to messaging.PathTarget, durable bool) error {
	in, o := a.stdin, sandbox.WriteOptions{Size: -1, Durable: durable}
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		if st.IsDir() {
			return sandbox.InvalidField("from", "%s is a directory; add -r", from)
		}
		in, o.Mode = f, uint32(st.Mode().Perm())
		if st.Mode().IsRegular() {
			o.Size = st.Size()
		}
		to, err = a.intoDir(client, to, filepath.Base(from))
		if err != nil {
			return err
		}
	}
	var info sandbox.FileInfo
	err := a.again(in, func() (err error) {
		m := a.newMeter(to.Path, o.Size)
		defer m.finish()
		info, err = client.Upload(a.ctx, to, io.TeeReader(in, m), o)
		return err
	})
	if err != nil {
		return fmt.Errorf("copy to %s: %w", to.Path, err)
	}
	return a.copied(info)
}

// again repeats a copy whose worker was lost in the middle, from the beginning
// of the local file: a file is replaced whole, so a copy too many does no harm.
// What cannot go back to its beginning, a pipe, is copied once.
func (a *app) again(local any, once func() error) error {
	const tries = 3
	for try := 1; ; try++ {
		err := once()
		file, ok := local.(io.Seeker)
		code := sandbox.CodeOf(err)
		if !ok || try == tries || code != sandbox.Unavailable && code != sandbox.OutcomeUnknown || a.ctx.Err() != nil {
			return err
		}
		if _, serr := file.Seek(0, io.SeekStart); serr != nil {
			return err
		}
		fmt.Fprintln(a.stderr, "shoal: the worker was lost; copying again")
	}
}

// intoDir adds the file's name when the destination is a directory.
func (a *app) intoDir(client *messaging.Client, to messaging.PathTarget, base string) (messaging.PathTarget, error) {
	ctx, cancel := contextFor(a.ctx, callTime)
	defer cancel()
	info, err := client.Stat(ctx, to, false)
	switch {
	case err == nil && info.Kind == sandbox.FileDir:
		to.Path = path.Join(to.Path, base)
	case err != nil && sandbox.CodeOf(err) != sandbox.NotFound:
		return to, err
	}
	return to, nil
}

func (a *app) copied(info sandbox.FileInfo) error {
	if a.cli.JSON {
		return a.printJSON(info)
	}
	return nil
}

// getFile copies one file out of a sandbox; the destination holds the old
// content or the whole new one.
func (a *app) getFile(client *messaging.Client, from messaging.PathTarget, to string) error {
	if to == "-" {
		r, err := client.Open(a.ctx, from, sandbox.ReadOptions{})
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(a.stdout, r)
		return err
	}
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		to = filepath.Join(to, path.Base(from.Path))
	}
	tmp, err := os.CreateTemp(filepath.Dir(to), ".shoal-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // gone already when it was renamed
	var end messaging.ReadEnd
	err = a.again(tmp, func() (err error) {
		end, err = a.download(client, from, tmp)
		return err
	})
	if err := errors.Join(err, tmp.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", from.Path, err)
	}
	mode := os.FileMode(end.Info.Mode).Perm()
	if mode == 0 {
		mode = 0o644
	}
	if err := os.Chmod(tmp.Name(), mode); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), to); err != nil {
		return err
	}
	return a.copied(end.Info)
}

// download fills file with a file of a sandbox.
func (a *app) download(client *messaging.Client, from messaging.PathTarget, file *os.File) (messaging.ReadEnd, error) {
	r, err := client.Open(a.ctx, from, sandbox.ReadOptions{})
	if err != nil {
		return messaging.ReadEnd{}, err
	}
	defer r.Close()
	if err := file.Truncate(0); err != nil { // of what an earlier try has left
		return messaging.ReadEnd{}, err
	}
	m := a.newMeter(from.Path, -1)
	defer m.finish()
	if _, err := io.Copy(io.MultiWriter(file, m), r); err != nil {
		return messaging.ReadEnd{}, err
	}
	return r.End()
}

// putTree copies a directory into a sandbox as a tar archive.
func (a *app) putTree(client *messaging.Client, from string, to messaging.PathTarget) error {
	to, err := a.intoDir(client, to, filepath.Base(filepath.Clean(from)))
	if err != nil {
		return err
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(packTree(from, pw)) }()
	defer pr.Close() // ends the packing when the upload fails
	m := a.newMeter(to.Path, -1)
	defer m.finish()
	answer, err := client.PutTar(a.ctx, to, io.TeeReader(pr, m), -1)
	if err != nil {
		return fmt.Errorf("copy to %s: %w", to.Path, err)
	}
	if a.cli.JSON {
		return a.printJSON(answer)
	}
	return nil
}

// getTree copies a directory out of a sandbox.
func (a *app) getTree(client *messaging.Client, from messaging.PathTarget, to string) error {
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		to = filepath.Join(to, path.Base(from.Path))
	}
	r, err := client.OpenTar(a.ctx, from)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := os.MkdirAll(to, 0o755); err != nil { //nolint:gosec // as cp -r does
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	m := a.newMeter(from.Path, -1)
	skipped, err := unpackTree(root, io.TeeReader(r, m))
	m.finish()
	for _, name := range skipped {
		fmt.Fprintf(a.stderr, "shoal: left out: %s (only files, directories and links that stay inside are copied)\n", printable(name))
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", from.Path, err)
	}
	return nil
}

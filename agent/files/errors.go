package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"

	"shoal/sandbox"
)

// The refusals that come from us and not from the kernel.
var (
	errNotRegular = sandbox.Errorf(sandbox.Invalid, "not a regular file").Because("not_regular").From(sandbox.FromSandbox)
	errNoFile     = sandbox.Errorf(sandbox.NotFound, "it is a directory, not a file").Because("directory").From(sandbox.FromSandbox)
	errIsDir      = sandbox.Errorf(sandbox.Invalid, "it is a directory").Because("directory").From(sandbox.FromSandbox)
	errExists     = sandbox.Errorf(sandbox.Exists, "the path exists").From(sandbox.FromSandbox)
	errHash       = sandbox.Errorf(sandbox.Conflict, "the file does not have the expected content").Because("hash").From(sandbox.FromSandbox)
	errLoop       = sandbox.Errorf(sandbox.Invalid, "too many links lead on from the path").Because("link_loop").From(sandbox.FromSandbox)
	errEscapes    = sandbox.Errorf(sandbox.Permission, "the path leads out of its folder").Because("escapes").From(sandbox.FromSandbox)
	errTooDeep    = sandbox.Errorf(sandbox.TooLarge, "the tree is more than %d folders deep", maxDepth).From(sandbox.FromSandbox)
)

// answers says what an answer of the kernel means to a caller.
var answers = []struct {
	errno  syscall.Errno
	code   sandbox.Code
	reason string
}{
	{syscall.ENOENT, sandbox.NotFound, ""},
	{syscall.ESTALE, sandbox.NotFound, ""},
	{syscall.EEXIST, sandbox.Exists, ""},
	{syscall.ENOTEMPTY, sandbox.Conflict, "not_empty"},
	{syscall.EBUSY, sandbox.Conflict, "in_use"},
	{syscall.EACCES, sandbox.Permission, ""},
	{syscall.EPERM, sandbox.Permission, ""},
	{syscall.EROFS, sandbox.Permission, "read_only"},
	{syscall.ENOSPC, sandbox.NoSpace, ""},
	{syscall.EDQUOT, sandbox.NoSpace, ""},
	{syscall.EFBIG, sandbox.TooLarge, ""},
	{syscall.ENOTDIR, sandbox.Invalid, "not_directory"},
	{syscall.EISDIR, sandbox.Invalid, "directory"},
	{syscall.ELOOP, sandbox.Invalid, "link_loop"},
	{syscall.ENAMETOOLONG, sandbox.Invalid, "name_too_long"},
	{syscall.EINVAL, sandbox.Invalid, ""},
	{syscall.EXDEV, sandbox.Unsupported, "other_file_system"},
	{syscall.EMFILE, sandbox.Busy, ""},
	{syscall.ENFILE, sandbox.Busy, ""},
}

// told makes a [sandbox.Error] of an error, unless it is one or has to do with
// the context. The text names what was tried and the kernel's answer, not the path.
func told(what string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		if escapes(err) {
			return errEscapes.Wrap(err)
		}
		return sandbox.Errorf(sandbox.Internal, "%s: the sandbox's file system does not answer as expected", what).Wrap(err)
	}
	for _, a := range answers {
		if a.errno == errno {
			return sandbox.Errorf(a.code, "%s: %v", what, errno).Because(a.reason).From(sandbox.FromSandbox).Wrap(err)
		}
	}
	return sandbox.Errorf(sandbox.Internal, "%s: %v", what, errno).From(sandbox.FromSandbox).Wrap(err)
}

// escapes recognises the refusal of os.Root, which has no number and no name.
func escapes(err error) bool {
	_, path := errors.AsType[*fs.PathError](err)
	_, link := errors.AsType[*os.LinkError](err)
	return path || link
}

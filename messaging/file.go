package messaging

import "shoal/sandbox"

// The sizes of file transfers.
const (
	// MaxInline is the most bytes of a write in one request.
	MaxInline = 512 << 10
	// MaxUpload is the most bytes of one data message, and UploadCredit what a
	// worker holds of an upload.
	MaxUpload    = 256 << 10
	UploadCredit = 1 << 20
)

// PathTarget names a path in a sandbox.
type PathTarget struct {
	Target
	Path string `json:"path"`
}

// Validate checks every field.
func (t PathTarget) Validate() error {
	if err := t.Target.Validate(); err != nil {
		return err
	}
	return sandbox.ValidatePath("path", t.Path)
}

// ReadRequest reads a file as a stream; its end carries a [ReadEnd].
type ReadRequest struct {
	PathTarget
	sandbox.ReadOptions
	Window int64 `json:"window,omitempty"`
}

// Validate checks every field.
func (r *ReadRequest) Validate() error {
	if err := r.PathTarget.Validate(); err != nil {
		return err
	}
	if err := r.ReadOptions.Validate(); err != nil {
		return err
	}
	return validateWindow(r.Window)
}

// ReadEnd is the end of a read or tar-get.
type ReadEnd struct {
	// Info of the file as it was opened.
	Info sandbox.FileInfo `json:"info"`
	// Bytes that were sent.
	Bytes int64 `json:"bytes"`
	// Truncated: the limit was reached before the end of the file.
	Truncated bool `json:"truncated,omitempty"`
}

// WriteRequest writes a file; the answer is a [sandbox.FileInfo] with its
// hash. The content is Data, or, with Upload, what comes as data messages.
type WriteRequest struct {
	PathTarget
	sandbox.WriteOptions
	Data []byte `json:"data,omitempty"`
	// Upload: the content follows on the file subject of the worker that
	// answers the first message there; see [DataRequest].
	Upload bool `json:"upload,omitempty"`
}

// Validate checks every field.
func (r *WriteRequest) Validate() error {
	if err := r.PathTarget.Validate(); err != nil {
		return err
	}
	if err := r.WriteOptions.Validate(); err != nil {
		return err
	}
	switch {
	case r.Upload && len(r.Data) > 0:
		return sandbox.InvalidField("data", "data given whole excludes upload")
	case !r.Upload && r.Size >= 0 && r.Size != int64(len(r.Data)):
		return sandbox.InvalidField("size", "%d, but data has %d bytes", r.Size, len(r.Data))
	case len(r.Data) > MaxInline:
		return sandbox.InvalidField("data", "%d bytes, at most %d are allowed; use upload", len(r.Data), MaxInline)
	}
	return nil
}

// DataRequest carries the next bytes of an upload or of a forwarded port; the
// answer is an [InputAnswer], given when there is room for more. One message
// at a time is under way.
type DataRequest struct {
	Offset int64  `json:"offset"`
	Data   []byte `json:"data,omitempty"`
	// Final ends the input after Data: the upload is whole, the port's peer
	// has closed its sending side.
	Final bool `json:"final,omitempty"`
	// Abort gives the input up: an upload changes nothing.
	Abort bool `json:"abort,omitempty"`
}

// Validate checks every field.
func (r *DataRequest) Validate() error {
	if r.Offset < 0 {
		return sandbox.InvalidField("offset", "%d is negative", r.Offset)
	}
	if len(r.Data) > MaxUpload {
		return sandbox.InvalidField("data", "%d bytes, at most %d are allowed at once", len(r.Data), MaxUpload)
	}
	return nil
}

// StatRequest describes a path; the answer is a [sandbox.FileInfo].
type StatRequest struct {
	PathTarget
	// Hash asks for the content's SHA-256.
	Hash bool `json:"hash,omitempty"`
}

// FilesRequest lists a directory; the answer is a [sandbox.FileList].
type FilesRequest struct {
	PathTarget
	sandbox.ListOptions
}

// Validate checks every field.
func (r *FilesRequest) Validate() error {
	if err := r.PathTarget.Validate(); err != nil {
		return err
	}
	return r.ListOptions.Validate()
}

// MkdirRequest makes a directory and its parents; one that exists is success.
type MkdirRequest struct {
	PathTarget
	// Mode of the new directories; 0 = 0755.
	Mode uint32 `json:"mode,omitempty"`
}

// Validate checks every field.
func (r *MkdirRequest) Validate() error {
	if r.Mode > 0o777 {
		return sandbox.InvalidField("mode", "%#o: only permission bits up to 0777", r.Mode)
	}
	return r.PathTarget.Validate()
}

// RemoveRequest removes a file, a link, or a directory.
type RemoveRequest struct {
	PathTarget
	// Recursive removes a directory with what is in it.
	Recursive bool `json:"recursive,omitempty"`
}

// RenameRequest moves a file or directory within a sandbox.
type RenameRequest struct {
	PathTarget
	To string `json:"to"`
	// Replace allows To to exist; otherwise Exists.
	Replace bool `json:"replace,omitempty"`
}

// Validate checks every field.
func (r *RenameRequest) Validate() error {
	if err := r.PathTarget.Validate(); err != nil {
		return err
	}
	return sandbox.ValidatePath("to", r.To)
}

// TarGetRequest streams a directory as a tar archive; its end carries a
// [ReadEnd].
type TarGetRequest struct {
	PathTarget
	Window int64 `json:"window,omitempty"`
}

// Validate checks every field.
func (r *TarGetRequest) Validate() error {
	if err := r.PathTarget.Validate(); err != nil {
		return err
	}
	return validateWindow(r.Window)
}

// TarPutRequest unpacks an archive, sent as data messages, into a directory,
// which is made when missing; the answer is a [TarPutAnswer].
type TarPutRequest struct {
	PathTarget
	// Size of the archive in bytes; -1 = unknown.
	Size int64 `json:"size"`
}

// Validate checks every field.
func (r *TarPutRequest) Validate() error {
	if r.Size < -1 {
		return sandbox.InvalidField("size", "%d; use -1 when it is not known", r.Size)
	}
	return r.PathTarget.Validate()
}

// TarPutAnswer says what was unpacked.
type TarPutAnswer struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// ForwardRequest opens a connection to a port on the sandbox's loopback; bytes
// flow as frames to the client and as data messages to the worker.
type ForwardRequest struct {
	Target
	Port   int   `json:"port"`
	Window int64 `json:"window,omitempty"`
}

// Validate checks every field.
func (r *ForwardRequest) Validate() error {
	if err := r.Target.Validate(); err != nil {
		return err
	}
	if r.Port < 1 || r.Port > 65535 {
		return sandbox.InvalidField("port", "%d; allowed are 1 to 65535", r.Port)
	}
	return validateWindow(r.Window)
}

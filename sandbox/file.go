package sandbox

import "time"

// FileKind is the type of a file.
type FileKind string

// The kinds.
const (
	FileRegular FileKind = "file"
	FileDir     FileKind = "dir"
	FileLink    FileKind = "link"
	FileOther   FileKind = "other" // FIFO, socket or device
)

// FileInfo describes a file inside a sandbox.
type FileInfo struct {
	Path  string    `json:"path"`
	Kind  FileKind  `json:"kind"`
	Size  int64     `json:"size"` // bytes
	Mode  uint32    `json:"mode"` // permission bits, 0777
	UID   uint32    `json:"uid"`
	GID   uint32    `json:"gid"`
	MTime time.Time `json:"mtime"`
	// Target of a link, as written in it.
	Target string `json:"target,omitempty"`
	// Dangling: the link's target does not exist.
	Dangling bool `json:"dangling,omitempty"`
	// SHA256 in hex, when asked for.
	SHA256 string `json:"sha256,omitempty"`
}

// ReadOptions narrows a read.
type ReadOptions struct {
	// Offset of the first byte.
	Offset int64 `json:"offset,omitempty"`
	// Limit is the most bytes to return; 0 = to the end. A read that stops at
	// the limit before the end says so (truncated).
	Limit int64 `json:"limit,omitempty"`
}

// WriteOptions says how a file is written. A write is atomic: the path holds
// the old content or the new, never a mix.
type WriteOptions struct {
	// Mode of a new file, masked with 0777; 0 = 0644. An existing file keeps its mode.
	Mode uint32 `json:"mode,omitempty"`
	// Size is the number of bytes that will come; -1 = unknown. A shorter or
	// longer upload changes nothing.
	Size int64 `json:"size"`
	// IfAbsent fails with Exists when the path exists.
	IfAbsent bool `json:"ifAbsent,omitempty"`
	// IfHash fails with Conflict unless the present content has this SHA-256 (hex).
	IfHash string `json:"ifHash,omitempty"`
	// Durable makes the write survive a power loss (fsync) before it is answered.
	Durable bool `json:"durable,omitempty"`
}

// ListOptions pages through a directory.
type ListOptions struct {
	// After is the name to continue after; "" = from the start.
	After string `json:"after,omitempty"`
	// Limit is the most entries; 0 = 1000, at most 1000.
	Limit int `json:"limit,omitempty"`
}

// FileList is one page of a directory, sorted by name, hidden entries included.
type FileList struct {
	Entries []FileInfo `json:"entries"`
	// More: continue with ListOptions.After = Next.
	More bool   `json:"more,omitempty"`
	Next string `json:"next,omitempty"`
}

// MaxListPage is the most entries of one [FileList].
const MaxListPage = 1000

// Validate checks the bounds of o.
func (o ReadOptions) Validate() error {
	if o.Offset < 0 {
		return InvalidField("offset", "%d is negative", o.Offset)
	}
	if o.Limit < 0 {
		return InvalidField("limit", "%d is negative", o.Limit)
	}
	return nil
}

// Validate checks the fields of o.
func (o WriteOptions) Validate() error {
	if o.Mode > 0o777 {
		return InvalidField("mode", "%#o: only permission bits up to 0777", o.Mode)
	}
	if o.Size < -1 {
		return InvalidField("size", "%d; use -1 when it is not known", o.Size)
	}
	if o.IfAbsent && o.IfHash != "" {
		return InvalidField("ifHash", "ifAbsent and ifHash exclude each other")
	}
	if o.IfHash != "" && (len(o.IfHash) != 64 || !all(o.IfHash, isLowerHex)) {
		return InvalidField("ifHash", "%s is not a SHA-256 in lower-case hex", quote(o.IfHash))
	}
	return nil
}

// Validate checks the fields of o.
func (o ListOptions) Validate() error {
	if o.Limit < 0 || o.Limit > MaxListPage {
		return InvalidField("limit", "%d; allowed are 0 to %d", o.Limit, MaxListPage)
	}
	return nil
}

func isLowerHex(c byte) bool { return isDigit(c) || (c >= 'a' && c <= 'f') }

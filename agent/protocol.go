package agent

import (
	"slices"

	"shoal/sandbox"
)

// The protocol versions that this package speaks: the newest and the one
// before it. A hello names the range of one end, the other end picks.
const (
	Protocol       = 1
	oldestProtocol = 1
)

// The bounds of an epoch. An agent refuses a claim that jumps further than
// MaxEpochJump above the highest it has seen (from a fresh boot: above the
// claim's own record, which it cannot know, so only MaxEpoch holds); a worker
// must likewise not follow a hello that jumps that far above its own record.
const (
	MaxEpoch     = 1 << 40
	MaxEpochJump = 1 << 20
)

// The operations: the op of a stream's first frame.
const (
	opHello    = "hello"
	opClaim    = "claim"
	opStart    = "start"
	opFollow   = "follow"
	opWait     = "wait"
	opKill     = "kill"
	opCommands = "commands"
	opTag      = "tag"
	opExpire   = "expire"
	opHold     = "hold"
	opRelease  = "release"
	opSuspend  = "suspend"
	opStats    = "stats"
	opKeep     = "keep"    // changes what the agent keeps of the spec
	opTunnel   = "tunnel"  // switches egress through the stream on or off
	opEgress   = "egress"  // opened by the agent: one connection out
	opForward  = "forward" // one connection in
	opRead     = "read"
	opWrite    = "write"
	opStat     = "stat"
	opList     = "list"
	opMkdir    = "mkdir"
	opRemove   = "remove"
	opRename   = "rename"
	opPack     = "pack"
	opUnpack   = "unpack"
)

// request is the first frame of every stream.
type request struct {
	Op   string `json:"op"`
	Body []byte `json:"body,omitempty"` // the operation's own type in msgpack
}

// helloRequest opens a session.
type helloRequest struct {
	Newest int `json:"newest"`
	Oldest int `json:"oldest"`
}

// Hello is what an agent says of itself before it is claimed.
type Hello struct {
	// Protocol is the version both ends will speak.
	Protocol int `json:"protocol"`
	// Boot identifies this start of the agent; it changes with every restart
	// of the sandbox.
	Boot string `json:"boot"`
	// Epoch is the highest that was claimed in this boot; 0 = none.
	Epoch uint64 `json:"epoch"`
	// Version of the agent's program, for logs.
	Version string `json:"version,omitempty"`
}

// Claim makes a session the one that the agent serves.
type Claim struct {
	// Boot must be the one of the hello.
	Boot string `json:"boot"`
	// Epoch must be above the highest of this boot.
	Epoch uint64 `json:"epoch"`
	// Locks are all live tag locks of the sandbox, tag → token. "*" is the
	// lock over all tags.
	Locks map[sandbox.Tag]string `json:"locks,omitempty"`
	// Spec, when set, is kept inside the sandbox where only root reads it; the
	// first claim of a new sandbox must carry it. It replaces a former one.
	Spec *sandbox.Spec `json:"spec,omitempty"`
	// Tunnel lets connections to the sandbox's proxy address out through this
	// session ([Config.Egress]).
	Tunnel bool `json:"tunnel,omitempty"`
	// Processes limits the user's processes and threads by resource limit
	// where the engine cannot (gVisor); 0 = the engine does.
	Processes int `json:"processes,omitempty"`
}

// Kept is the part of a spec that may change while the sandbox lives. The agent
// keeps it with the rest, so that a lost record can be made anew.
type Kept struct {
	Egress sandbox.Egress       `json:"egress"`
	Pin    bool                 `json:"pin,omitempty"`
	TTL    sandbox.Milliseconds `json:"ttlMs,omitempty"`
}

// KeptOf returns the part of s that may change.
func KeptOf(s *sandbox.Spec) Kept { return Kept{Egress: s.Egress, Pin: s.Pin, TTL: s.TTL} }

// Equal reports whether both say the same.
func (k Kept) Equal(o Kept) bool {
	return k.Egress.Mode == o.Egress.Mode && slices.Equal(k.Egress.Hosts, o.Egress.Hosts) && k.Pin == o.Pin && k.TTL == o.TTL
}

// Claimed answers a [Claim].
type Claimed struct {
	// Spec is what the sandbox keeps, nil if it was never given one.
	Spec *sandbox.Spec `json:"spec,omitempty"`
	// Running is the number of commands that run.
	Running int `json:"running"`
}

// StartRequest starts a command, once.
type StartRequest struct {
	// Boot the caller wants the command to run in; another one answers
	// Restarted and starts nothing.
	Boot    string          `json:"boot"`
	Command sandbox.Command `json:"command"`
	// Window is how many unacknowledged bytes of output the caller takes;
	// 0 = 1 MiB, at most that.
	Window int64 `json:"window,omitempty"`
}

// FollowRequest attaches to a running or recently ended command.
type FollowRequest struct {
	ID sandbox.CommandID `json:"id"`
	// Offset of the next byte the caller wants; -1 = the oldest kept one. What
	// is no longer kept comes as a gap.
	Offset int64 `json:"offset"`
	// Watch follows without governing the command: its acknowledgements free
	// nothing and it may see gaps.
	Watch  bool  `json:"watch,omitempty"`
	Window int64 `json:"window,omitempty"`
}

// Started answers a start or follow.
type Started struct {
	Info sandbox.CommandInfo `json:"info"`
	// Boot in which the command runs.
	Boot string `json:"boot"`
	// Fresh: this very request started it; otherwise it was known already.
	Fresh bool `json:"fresh,omitempty"`
	// Offset of the first output or gap that follows.
	Offset int64 `json:"offset"`
}

// The bodies of the frames of a command's stream.
type (
	output struct {
		Offset int64          `json:"o"`
		Stream sandbox.Stream `json:"s"`
		Data   []byte         `json:"d"`
	}
	gap struct {
		Offset int64 `json:"o"`
		Bytes  int64 `json:"n"`
	}
	ended struct {
		End sandbox.End `json:"end"`
	}
	input struct {
		Offset int64 `json:"o"` // of the next byte it takes
		Credit int64 `json:"n"` // how many it takes from there
		Closed bool  `json:"c,omitempty"`
	}
	role struct {
		Primary bool `json:"p"`
	}
	ack struct {
		Offset int64 `json:"o"`
		End    bool  `json:"e,omitempty"` // the end has arrived, too
	}
	stdin struct {
		Offset int64  `json:"o"`
		Data   []byte `json:"d,omitempty"`
		Close  bool   `json:"c,omitempty"`
	}
	signal struct {
		Seq    uint64 `json:"q"`
		Signal int    `json:"n"`
	}
	resize struct {
		Seq  uint64 `json:"q"`
		Rows uint16 `json:"r"`
		Cols uint16 `json:"c"`
	}
)

// waitRequest waits for a command's end.
type waitRequest struct {
	ID sandbox.CommandID `json:"id"`
}

// commands answers opCommands.
type commands struct {
	Commands []sandbox.CommandInfo `json:"commands"`
}

// TagRequest hands a tag's lock to a new token. With Kill everything that runs
// under the tag ("*": everything) is ended first; only then is it answered.
type TagRequest struct {
	Tag   sandbox.Tag `json:"tag"` // or "*"
	Token string      `json:"token"`
	Kill  bool        `json:"kill,omitempty"`
}

// expireRequest forgets a tag's lock.
type expireRequest struct {
	Tag   sandbox.Tag `json:"tag"`
	Token string      `json:"token"`
	// Kill ends what runs under the tag.
	Kill bool `json:"kill,omitempty"`
}

// tunnelRequest switches egress.
type tunnelRequest struct {
	On bool `json:"on"`
}

// forwardRequest dials 127.0.0.1:Port inside the sandbox.
type forwardRequest struct {
	Port uint16 `json:"port"`
}

// The requests of file operations.
type (
	pathRequest struct {
		Path string `json:"path"`
		Hash bool   `json:"hash,omitempty"` // stat: with the SHA-256
		All  bool   `json:"all,omitempty"`  // remove: whole trees
		Mode uint32 `json:"mode,omitempty"` // mkdir
	}
	readRequest struct {
		Path    string              `json:"path"`
		Options sandbox.ReadOptions `json:"options"`
	}
	writeRequest struct {
		Path    string               `json:"path"`
		Options sandbox.WriteOptions `json:"options"`
	}
	listRequest struct {
		Path    string              `json:"path"`
		Options sandbox.ListOptions `json:"options"`
	}
	renameRequest struct {
		From string `json:"from"`
		To   string `json:"to"`
		// Fresh refuses a target that exists.
		Fresh bool `json:"fresh,omitempty"`
	}
	// readEnd closes a read.
	readEnd struct {
		Truncated bool  `json:"truncated,omitempty"`
		Size      int64 `json:"size"`
	}
	// wrote answers a write or unpack.
	wrote struct {
		Info    sandbox.FileInfo `json:"info"`
		Entries int              `json:"entries,omitempty"` // of an archive
	}
	nothing struct{}
)

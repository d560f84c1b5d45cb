package sandbox

import (
	"strings"
	"time"
)

// The time limits of commands.
const (
	DefaultForeground = 10 * time.Minute
	MaxForeground     = 2 * time.Hour
	MaxBackground     = 24 * time.Hour
	DefaultGrace      = 60 * time.Second // a foreground command whose client is gone
	MaxGrace          = time.Hour
)

// Overflow says what happens to a command whose output nobody takes.
type Overflow string

// The overflow choices.
const (
	// OverflowBlock stops the command at a full buffer until somebody reads:
	// the default in the foreground.
	OverflowBlock Overflow = "block"
	// OverflowDrop overwrites the oldest output and reports the gap: the
	// default in the background.
	OverflowDrop Overflow = "drop"
)

// OnDisconnect says what happens to a command when its client is gone.
type OnDisconnect string

// The disconnect choices.
const (
	DisconnectKill OnDisconnect = "kill" // after the grace: default in the foreground
	DisconnectKeep OnDisconnect = "keep" // default in the background
)

// StdinMode says what a command's standard input is.
type StdinMode string

// The stdin modes.
const (
	StdinNone   StdinMode = "none"   // end of file at once: the default
	StdinStream StdinMode = "stream" // bytes the client sends, until it closes
)

// TTY asks for a terminal of this size.
type TTY struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Command is one program to run. Exactly one of Shell and Argv is set.
type Command struct {
	// ID is chosen by the client: the same id and request starts nothing twice.
	ID CommandID `json:"id"`
	// Shell is run as bash -c.
	Shell string `json:"shell,omitempty"`
	// Argv is executed directly; Argv[0] is looked up in PATH.
	Argv []string `json:"argv,omitempty"`
	// Cwd is the working directory; "" = /workspace. The sandbox user must be
	// able to enter it.
	Cwd string            `json:"cwd,omitempty"`
	Env map[string]string `json:"env,omitempty"`
	// Tag names who starts it; with Token, the holder of that tag's lock.
	Tag   Tag    `json:"tag,omitempty"`
	Token string `json:"token,omitempty"`
	// Timeout; 0 = 10 min in the foreground, none in the background. It counts
	// from the start of the program and holds inside the sandbox.
	Timeout Milliseconds `json:"timeoutMs,omitempty"`
	// MaxOutput ends the output, not the command, after this many bytes over
	// both streams (End.Truncated); 0 = no cap.
	MaxOutput int64     `json:"maxOutput,omitempty"`
	Stdin     StdinMode `json:"stdin,omitempty"`
	// Input is standard input given whole; it excludes StdinStream.
	Input []byte `json:"input,omitempty"`
	// TTY, when set, gives the command a terminal; stdout and stderr are one.
	TTY *TTY `json:"tty,omitempty"`
	// Background keeps the processes the command leaves behind and returns
	// when it has started.
	Background bool `json:"background,omitempty"`
	// KeepAwake makes a background command hold off idle suspension.
	KeepAwake    bool         `json:"keepAwake,omitempty"`
	OnDisconnect OnDisconnect `json:"onDisconnect,omitempty"`
	// Grace before OnDisconnect acts; 0 = 60 s.
	Grace    Milliseconds `json:"graceMs,omitempty"`
	Overflow Overflow     `json:"overflow,omitempty"`
}

const (
	maxArgs     = 4096
	maxArgBytes = 1 << 20
	// maxArg is what Linux takes as one argument (MAX_ARG_STRLEN less the
	// closing NUL); more would fail at the start as E2BIG.
	maxArg = 128<<10 - 1
	// MaxInput is the most bytes of Command.Input; stream what is longer.
	MaxInput = 512 << 10
)

// WithDefaults returns c with the defaults of its kind filled in.
func (c Command) WithDefaults() Command {
	if c.Cwd == "" {
		c.Cwd = "/workspace"
	}
	if c.Stdin == "" {
		c.Stdin = StdinNone
	}
	if c.Grace == 0 {
		c.Grace = Millis(DefaultGrace)
	}
	overflow, gone := OverflowBlock, DisconnectKill
	if c.Background {
		overflow, gone = OverflowDrop, DisconnectKeep
	} else if c.Timeout == 0 {
		c.Timeout = Millis(DefaultForeground)
	}
	if c.Overflow == "" {
		c.Overflow = overflow
	}
	if c.OnDisconnect == "" {
		c.OnDisconnect = gone
	}
	return c
}

// Validate checks every field of c; it does not need the defaults filled in.
func (c *Command) Validate() error {
	if err := c.ID.Validate(); err != nil {
		return err
	}
	if err := c.validateProgram(); err != nil {
		return err
	}
	if c.Cwd != "" {
		if err := ValidatePath("cwd", c.Cwd); err != nil {
			return err
		}
	}
	if err := ValidateEnv(c.Env); err != nil {
		return err
	}
	if err := c.validateHolder(); err != nil {
		return err
	}
	if err := c.validateInput(); err != nil {
		return err
	}
	return c.validateChoices()
}

func (c *Command) validateProgram() error {
	switch {
	case c.Shell != "" && len(c.Argv) > 0:
		return InvalidField("argv", "give shell or argv, not both")
	case c.Shell != "":
		return validateShell("shell", c.Shell)
	case len(c.Argv) == 0 || c.Argv[0] == "":
		return InvalidField("shell", "give shell or argv")
	case len(c.Argv) > maxArgs:
		return InvalidField("argv", "%d arguments, at most %d are allowed", len(c.Argv), maxArgs)
	}
	total := 0
	for _, a := range c.Argv {
		if strings.IndexByte(a, 0) >= 0 {
			return InvalidField("argv", "an argument holds a NUL byte")
		}
		if len(a) > maxArg {
			return InvalidField("argv", "an argument of %d bytes, at most %d are allowed; write a file instead", len(a), maxArg)
		}
		total += len(a) + 1
	}
	if total > maxArgBytes {
		return InvalidField("argv", "%d bytes in all, at most %d are allowed; write a file instead", total, maxArgBytes)
	}
	return nil
}

func (c *Command) validateHolder() error {
	if c.Tag == "" {
		if c.Token != "" {
			return InvalidField("token", "a token needs its tag")
		}
		return nil
	}
	if err := c.Tag.Validate(); err != nil {
		return err
	}
	if c.Token != "" {
		return validateToken("token", c.Token)
	}
	return nil
}

func (c *Command) validateInput() error {
	switch c.Stdin {
	case "", StdinNone, StdinStream:
	default:
		return InvalidField("stdin", "%s; use none or stream", quote(string(c.Stdin)))
	}
	if len(c.Input) > 0 && c.Stdin == StdinStream {
		return InvalidField("input", "input given whole excludes stdin: stream; leave stdin out")
	}
	if len(c.Input) > 0 && c.TTY != nil {
		return InvalidField("input", "a terminal takes a stream; set stdin to stream")
	}
	if len(c.Input) > MaxInput {
		return InvalidField("input", "%d bytes, at most %d are allowed; use stdin: stream", len(c.Input), MaxInput)
	}
	if c.TTY != nil && (c.TTY.Rows == 0 || c.TTY.Cols == 0 || c.TTY.Rows > 4096 || c.TTY.Cols > 4096) {
		return InvalidField("tty", "%d rows × %d columns; allowed are 1 to 4096", c.TTY.Rows, c.TTY.Cols)
	}
	return nil
}

func (c *Command) validateChoices() error {
	most := MaxForeground
	if c.Background {
		most = MaxBackground
	}
	if err := validateTimeout("timeoutMs", c.Timeout, most); err != nil {
		return err
	}
	if err := validateTimeout("graceMs", c.Grace, MaxGrace); err != nil {
		return err
	}
	if c.MaxOutput < 0 {
		return InvalidField("maxOutput", "%d is negative", c.MaxOutput)
	}
	switch c.OnDisconnect {
	case "", DisconnectKeep, DisconnectKill:
	default:
		return InvalidField("onDisconnect", "%s; use kill or keep", quote(string(c.OnDisconnect)))
	}
	switch c.Overflow {
	case "", OverflowBlock, OverflowDrop:
	default:
		return InvalidField("overflow", "%s; use block or drop", quote(string(c.Overflow)))
	}
	if c.KeepAwake && !c.Background {
		return InvalidField("keepAwake", "only a background command can keep its sandbox awake")
	}
	return nil
}

func validateShell(field, s string) error {
	switch {
	case s == "":
		return InvalidField(field, "the command is empty")
	case strings.IndexByte(s, 0) >= 0:
		return InvalidField(field, "the command holds a NUL byte")
	case len(s) > maxArg:
		return InvalidField(field, "%d bytes, at most %d are allowed; write a file instead", len(s), maxArg)
	}
	return nil
}

func validateTimeout(field string, d Milliseconds, most time.Duration) error {
	if d < 0 || d > Millis(most) {
		return InvalidField(field, "%d ms; allowed are 0 to %d", d, Millis(most))
	}
	return nil
}

// Stream says which of a command's outputs a piece of data belongs to.
type Stream uint8

// The output streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// EndReason says why a command ended.
type EndReason string

// The reasons.
const (
	Exited           EndReason = "exited"            // by itself: Code holds its exit code
	Signaled         EndReason = "signal"            // by a signal that Shoal did not send
	TimedOut         EndReason = "timeout"           // its time limit was over
	Killed           EndReason = "killed"            // by a caller: End.By says who
	OutOfMemory      EndReason = "out_of_memory"     // by the kernel, at the memory limit
	Disconnected     EndReason = "disconnected"      // its client was gone for longer than the grace
	Suspended        EndReason = "suspended"         // the sandbox was suspended without its memory
	SandboxRestarted EndReason = "sandbox_restarted" // the sandbox was stopped or restarted under it
)

// End is the last word about a command. It is never invented: Code is there
// only when the main process exited by itself.
type End struct {
	Reason EndReason `json:"reason"`
	// Code is the exit code, nil unless Reason is Exited.
	Code *int `json:"code,omitempty"`
	// Signal that ended the main process, by number; 0 = none.
	Signal int `json:"signal,omitempty"`
	// By says who killed it ("kill", "tag", "all", "reset", …).
	By string `json:"by,omitempty"`
	// Truncated: output beyond MaxOutput was not kept.
	Truncated bool `json:"truncated,omitempty"`
	// Held: a process of the command still held an output pipe when it ended;
	// what that process writes later is not part of the output.
	Held bool `json:"held,omitempty"`
	// Bytes of output over both streams, gaps included; the offset of the end.
	Bytes int64 `json:"bytes"`
	// Survivors are processes that a kill could not end, by pid.
	Survivors []int        `json:"survivors,omitempty"`
	CPU       Milliseconds `json:"cpuMs,omitempty"`
	// PeakMemory of the main process in bytes.
	PeakMemory int64        `json:"peakMemory,omitempty"`
	Duration   Milliseconds `json:"durationMs,omitempty"`
}

// ShellCode maps an end to a shell's exit code: the code itself, 128 + signal,
// 124 for a time limit (as timeout(1) does), 137 for a kill. Only Run and the
// command line use it; the wire carries the facts.
func (e *End) ShellCode() int {
	switch {
	case e.Code != nil:
		return *e.Code
	case e.Reason == TimedOut:
		return 124
	case e.Signal > 0:
		return 128 + e.Signal
	}
	return 137
}

// CommandState is where a command is.
type CommandState string

// The states.
const (
	CommandRunning CommandState = "running"
	CommandEnded   CommandState = "ended"
)

// CommandInfo describes a running or recently ended command.
type CommandInfo struct {
	ID         CommandID    `json:"id"`
	State      CommandState `json:"state"`
	Shell      string       `json:"shell,omitempty"`
	Argv       []string     `json:"argv,omitempty"`
	Tag        Tag          `json:"tag,omitempty"`
	Background bool         `json:"background,omitempty"`
	KeepAwake  bool         `json:"keepAwake,omitempty"`
	TTY        bool         `json:"tty,omitempty"`
	Pid        int          `json:"pid,omitempty"`
	Started    time.Time    `json:"started"`
	// Oldest and Next are the output offsets still kept: [Oldest, Next).
	Oldest int64 `json:"oldest"`
	Next   int64 `json:"next"`
	End    *End  `json:"end,omitempty"`
}

// KillRequest selects commands to end: by id, by tag, or all. Exactly one kind.
type KillRequest struct {
	IDs  []CommandID `json:"ids,omitempty"`
	Tags []Tag       `json:"tags,omitempty"`
	All  bool        `json:"all,omitempty"`
	// By is written into each End; "" = the kind of the selection.
	By string `json:"by,omitempty"`
}

// Validate checks that exactly one selection is made and is well formed.
func (k *KillRequest) Validate() error {
	kinds := 0
	for _, set := range []bool{len(k.IDs) > 0, len(k.Tags) > 0, k.All} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return InvalidField("kill", "give exactly one of ids, tags and all")
	}
	if len(k.IDs) > 256 || len(k.Tags) > 256 {
		return InvalidField("kill", "at most 256 ids or tags at once")
	}
	for _, id := range k.IDs {
		if err := id.Validate(); err != nil {
			return renameField(err, "kill.ids")
		}
	}
	for _, t := range k.Tags {
		if err := t.Validate(); err != nil {
			return renameField(err, "kill.tags")
		}
	}
	return nil
}

// KillResult says what a kill did. It is returned when nothing that was
// selected runs any more, or when it gave up (Survivors).
type KillResult struct {
	// Commands that were running and ended by it.
	Commands []CommandID `json:"commands,omitempty"`
	// Processes it ended.
	Processes int `json:"processes"`
	// Survivors are processes it could not end within its bound, by pid.
	Survivors []int `json:"survivors,omitempty"`
	// Reset: the sandbox was restarted because the kill was not confirmed.
	Reset bool `json:"reset,omitempty"`
}

// Stats is what a sandbox uses now.
type Stats struct {
	CPU         Milliseconds `json:"cpuMs"`
	Memory      int64        `json:"memory"`      // bytes, page cache excluded where known
	MemoryLimit int64        `json:"memoryLimit"` // bytes
	OOMKills    int64        `json:"oomKills"`
	Pids        int          `json:"pids"`
	PidsLimit   int          `json:"pidsLimit"`
	Zombies     int          `json:"zombies"`
	DiskUsed    int64        `json:"diskUsed"`  // bytes of /workspace's file system
	DiskTotal   int64        `json:"diskTotal"` // bytes
	Running     int          `json:"running"`   // commands
}

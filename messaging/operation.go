package messaging

import "shoal/sandbox"

// Op is the name of an operation as it stands in subjects.
type Op string

// The operations of kernels.
const (
	OpCreate      Op = "create"
	OpGet         Op = "get"
	OpList        Op = "list"
	OpResume      Op = "resume"
	OpSuspend     Op = "suspend"
	OpDestroy     Op = "destroy"
	OpPin         Op = "pin"
	OpExplain     Op = "explain"
	OpExec        Op = "exec"   // a stream
	OpFollow      Op = "follow" // a stream
	OpWait        Op = "wait"
	OpKill        Op = "kill"
	OpCommands    Op = "commands"
	OpStats       Op = "stats"
	OpRead        Op = "read" // a stream
	OpWrite       Op = "write"
	OpStat        Op = "stat"
	OpFiles       Op = "files"
	OpMkdir       Op = "mkdir"
	OpRemove      Op = "remove"
	OpRename      Op = "rename"
	OpTarGet      Op = "tar-get" // a stream
	OpTarPut      Op = "tar-put"
	OpForward     Op = "forward" // a stream both ways
	OpEgressSet   Op = "egress.set"
	OpEgressGet   Op = "egress.get"
	OpLockAcquire Op = "lock.acquire"
	OpLockRenew   Op = "lock.renew"
	OpLockRelease Op = "lock.release"
	OpLockList    Op = "lock.list"
	OpWorkers     Op = "workers"
	OpSweep       Op = "sweep"
)

// The operations that arrive as verbs of a command.
const (
	OpStdin  Op = "command.stdin"
	OpSignal Op = "command.signal"
	OpResize Op = "command.resize"
)

// The operations that workers ask of each other.
const (
	OpPing  Op = "ping"
	OpAdopt Op = "adopt" // take over a sandbox that the asking worker hands over
)

// operation describes an Op to server and client.
type operation struct {
	request func() request // a new, empty request body
	area    Area           // of the stream it answers with or takes; "" = none
	stream  bool           // the answer is a stream of frames
	input   bool           // the client may send data (write, tar-put, forward)
	once    bool           // running it twice is not the same as once
	fleet   bool           // only workers ask it
	verb    bool           // it arrives as a verb of a command
}

// request is the body of a request.
type request interface {
	// Validate checks every field; its error names the field.
	Validate() error
}

// operations holds every Op. It is never written to.
var operations = map[Op]operation{
	OpCreate:      {request: empty[CreateRequest]},
	OpGet:         {request: empty[GetRequest]},
	OpList:        {request: empty[ListRequest]},
	OpResume:      {request: empty[ResumeRequest]},
	OpSuspend:     {request: empty[SuspendRequest]},
	OpDestroy:     {request: empty[DestroyRequest]},
	OpPin:         {request: empty[PinRequest]},
	OpExplain:     {request: empty[ExplainRequest]},
	OpExec:        {request: empty[ExecRequest], area: AreaCommand, stream: true},
	OpFollow:      {request: empty[FollowRequest], area: AreaCommand, stream: true},
	OpWait:        {request: empty[WaitRequest]},
	OpKill:        {request: empty[KillRequest]},
	OpCommands:    {request: empty[CommandsRequest]},
	OpStats:       {request: empty[StatsRequest]},
	OpRead:        {request: empty[ReadRequest], area: AreaFile, stream: true},
	OpWrite:       {request: empty[WriteRequest], area: AreaFile, input: true, once: true},
	OpStat:        {request: empty[StatRequest]},
	OpFiles:       {request: empty[FilesRequest]},
	OpMkdir:       {request: empty[MkdirRequest]},
	OpRemove:      {request: empty[RemoveRequest], once: true},
	OpRename:      {request: empty[RenameRequest], once: true},
	OpTarGet:      {request: empty[TarGetRequest], area: AreaFile, stream: true},
	OpTarPut:      {request: empty[TarPutRequest], area: AreaFile, input: true, once: true},
	OpForward:     {request: empty[ForwardRequest], area: AreaPort, stream: true, input: true, once: true},
	OpEgressSet:   {request: empty[EgressSetRequest]},
	OpEgressGet:   {request: empty[EgressGetRequest]},
	OpLockAcquire: {request: empty[LockAcquireRequest]},
	OpLockRenew:   {request: empty[LockRenewRequest]},
	OpLockRelease: {request: empty[LockReleaseRequest]},
	OpLockList:    {request: empty[LockListRequest]},
	OpWorkers:     {request: empty[WorkersRequest]},
	OpSweep:       {request: empty[SweepRequest]},
	OpStdin:       {request: empty[StdinRequest], verb: true},
	OpSignal:      {request: empty[SignalRequest], verb: true},
	OpResize:      {request: empty[ResizeRequest], verb: true},
	OpPing:        {request: empty[PingRequest], fleet: true},
	OpAdopt:       {request: empty[AdoptRequest], fleet: true},
}

func empty[T any, P interface {
	*T
	request
}]() request {
	return P(new(T))
}

// Target names the sandbox that a request is about.
type Target struct {
	Sandbox sandbox.Name `json:"sandbox"`
	// Generation, when set, must be the present one: otherwise Stale.
	Generation string `json:"generation,omitempty"`
}

// Validate checks both fields.
func (t Target) Validate() error {
	if err := t.Sandbox.Validate(); err != nil {
		return renameField(err, "sandbox")
	}
	if t.Generation == "" {
		return nil
	}
	return sandbox.ValidateID("generation", t.Generation)
}

// target makes every request that embeds Target tell which sandbox it names.
func (t Target) target() Target { return t }

// renameField puts the name of the request's field into an Invalid error.
func renameField(err error, field string) error {
	if err == nil {
		return nil
	}
	e := *sandbox.AsError(err)
	e.Field = field
	return &e
}

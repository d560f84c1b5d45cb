package messaging

import (
	"fmt"
	"strings"

	"shoal/sandbox"
)

// Root is the first part of every subject; the number is the protocol's.
const Root = "shoal.v1"

// Queue is the queue group in which the workers take requests.
const Queue = "workers"

// fleetToken stands where a tenant stands, on subjects between workers.
const fleetToken = "_fleet"

// WorkerID names one process of a worker; it is new at every start.
type WorkerID string

// Validate reports whether w may stand in a subject: ^[a-zA-Z0-9_-]{1,64}$.
func (w WorkerID) Validate() error { return sandbox.ValidateID("worker", string(w)) }

// Area says what a stream belongs to: it is the kind in the subjects of
// acknowledgements and input.
type Area string

// The areas.
const (
	AreaCommand Area = "command" // exec and follow; the id is the command's
	AreaFile    Area = "file"    // read, write and tar; the id is the request's
	AreaPort    Area = "port"    // forward; the id is the request's
)

// Verb is what a message to a running stream or command says.
type Verb string

// The verbs.
const (
	VerbAck    Verb = "ack"    // consumed offset; as a request: are you there?
	VerbCancel Verb = "cancel" // the reader leaves; a command goes on under its onDisconnect
	VerbData   Verb = "data"   // the next bytes of an upload or a forwarded port
	VerbStdin  Verb = "stdin"  // the next bytes of a command's standard input
	VerbSignal Verb = "signal"
	VerbResize Verb = "resize"
)

// Subject is where any worker takes an operation.
//
//	shoal.v1.<tenant>.<op>
func Subject(tenant sandbox.Tenant, op Op) string {
	return Root + "." + string(tenant) + "." + string(op)
}

// WorkerSubject is where one worker takes an operation.
//
//	shoal.v1.<tenant>.at.<worker>.<op>
func WorkerSubject(tenant sandbox.Tenant, worker WorkerID, op Op) string {
	return Root + "." + string(tenant) + ".at." + string(worker) + "." + string(op)
}

// StreamSubject is where a worker takes a verb for a running stream.
//
//	shoal.v1.<tenant>.at.<worker>.<area>.<sandbox>.<id>.<verb>
func StreamSubject(tenant sandbox.Tenant, worker WorkerID, area Area, name sandbox.Name, id string, verb Verb) string {
	return fmt.Sprintf("%s.%s.at.%s.%s.%s.%s.%s", Root, tenant, worker, area, name.Token(), id, verb)
}

// EventSubject is where what happened to a sandbox is published.
//
//	shoal.v1.<tenant>.event.<sandbox>.<kind>
func EventSubject(tenant sandbox.Tenant, name sandbox.Name, kind EventKind) string {
	return Root + "." + string(tenant) + ".event." + name.Token() + "." + string(kind)
}

// EventsSubject matches every event of a tenant, or of one sandbox when name
// is not empty.
//
//	shoal.v1.<tenant>.event.<sandbox or *>.*
func EventsSubject(tenant sandbox.Tenant, name sandbox.Name) string {
	token := "*"
	if name != "" {
		token = name.Token()
	}
	return Root + "." + string(tenant) + ".event." + token + ".*"
}

// FleetSubject is where one worker takes what another worker asks; tenants may
// neither publish nor read it.
//
//	shoal.v1._fleet.<worker>.<op>
func FleetSubject(worker WorkerID, op Op) string {
	return Root + "." + fleetToken + "." + string(worker) + "." + string(op)
}

// InboxPrefix is the beginning of every reply subject of a tenant.
//
//	_INBOX.<tenant>
func InboxPrefix(tenant sandbox.Tenant) string { return "_INBOX." + string(tenant) }

// anyTenant, atWorker and atFleet are what a worker subscribes to.
//
//	shoal.v1.*.<op>
//	shoal.v1.*.at.<worker>.>
//	shoal.v1._fleet.<worker>.>
func anyTenant(op Op) string          { return Root + ".*." + string(op) }
func atWorker(worker WorkerID) string { return Root + ".*.at." + string(worker) + ".>" }
func atFleet(worker WorkerID) string {
	return Root + "." + fleetToken + "." + string(worker) + ".>"
}

// address is what a worker reads from the subject of a message.
type address struct {
	tenant sandbox.Tenant // empty on the fleet's subjects
	op     Op             // an operation; empty for ack, cancel and data
	direct bool           // sent to this worker by its name
	fleet  bool           // sent by another worker
	area   Area           // the rest only for verbs
	name   sandbox.Name
	id     string
	verb   Verb
}

// parseSubject reads the subject of a message that arrived at worker.
func parseSubject(subject string, worker WorkerID) (address, error) {
	rest, ok := strings.CutPrefix(subject, Root+".")
	if !ok {
		return address{}, badSubject("it does not begin with " + Root)
	}
	if op, isFleet := strings.CutPrefix(rest, fleetToken+"."+string(worker)+"."); isFleet {
		return address{op: Op(op), direct: true, fleet: true}, knownOp(Op(op))
	}
	tenant, rest, _ := strings.Cut(rest, ".")
	a := address{tenant: sandbox.Tenant(tenant)}
	if err := a.tenant.Validate(); err != nil {
		return address{}, err
	}
	at, isDirect := strings.CutPrefix(rest, "at."+string(worker)+".")
	if !isDirect {
		a.op = Op(rest)
		return a, openOp(a.op)
	}
	a.direct = true
	if strings.Count(at, ".") == 3 {
		return a.parseVerb(at)
	}
	a.op = Op(at)
	return a, openOp(a.op)
}

// parseVerb reads <area>.<sandbox>.<id>.<verb>.
func (a address) parseVerb(at string) (address, error) {
	part := strings.Split(at, ".")
	name, err := sandbox.ParseNameToken(part[1])
	if err != nil {
		return address{}, err
	}
	if err := sandbox.ValidateID("id", part[2]); err != nil {
		return address{}, err
	}
	a.area, a.name, a.id, a.verb = Area(part[0]), name, part[2], Verb(part[3])
	switch {
	case a.area == AreaCommand && (a.verb == VerbStdin || a.verb == VerbSignal || a.verb == VerbResize):
		a.op = Op("command." + string(a.verb))
		return a, nil
	case a.area != AreaCommand && a.area != AreaFile && a.area != AreaPort:
		return address{}, badSubject("there is no such area; use command, file or port")
	case a.verb == VerbAck || a.verb == VerbCancel || a.verb == VerbData && a.area != AreaCommand:
		return a, nil
	}
	return address{}, badSubject("there is no such verb here")
}

func badSubject(why string) error { return sandbox.InvalidField("subject", "%s", why) }

func knownOp(op Op) error {
	if _, ok := operations[op]; !ok {
		return badSubject("there is no such operation")
	}
	return nil
}

// openOp refuses what only workers may ask of each other.
func openOp(op Op) error {
	if o, ok := operations[op]; !ok || o.fleet || o.verb {
		return badSubject("there is no such operation")
	}
	return nil
}

package docker

import "time"

// Everything that this package sends to an engine. {c} is a container's name,
// {v} a volume's; V is the negotiated version. Bodies hold the keys of the
// structs below and no others.
//
//	GET    /_ping
//	GET    /V/images/{reference}/json
//	POST   /V/images/create?fromImage=reference        answered by progress lines
//	POST   /V/volumes/create                           volumeCreate
//	GET    /V/volumes/{v}                              only the marker
//	GET    /V/volumes?filters={"label":["shoal.fleet=F"]}
//	DELETE /V/volumes/{v}
//	POST   /V/containers/create?name={c}               containerCreate
//	GET    /V/containers/{c}/json
//	GET    /V/containers/json?all=1&filters={"label":["shoal.fleet=F"]}
//	POST   /V/containers/{c}/start
//	POST   /V/containers/{c}/stop?t=10
//	POST   /V/containers/{c}/restart?t=0
//	POST   /V/containers/{c}/pause
//	POST   /V/containers/{c}/unpause
//	POST   /V/containers/{c}/rename?name={c}           only with a warm pool
//	POST   /V/containers/{c}/update                    containerUpdate, only with a warm pool
//	DELETE /V/containers/{c}?force=1&v=1
//	POST   /V/containers/{c}/exec                      execCreate
//	POST   /V/exec/{id}/start                          execStart, Upgrade: tcp
//	GET    /V/networks/{network}                       only with open egress
//
// The filter of a listing by name has two labels more: shoal.tenant=T and
// shoal.name=N. The marker volume has the labels shoal.role=engine and
// shoal.engine=ID alone: it belongs to no fleet.

// The versions of the engine's API that this package speaks.
const (
	minAPI = "1.41" // before it private IPC was not the default (Engine 20.10)
	maxAPI = "1.44" // the oldest that Engine 29 still takes
)

// The programs inside the image.
const (
	agentProgram  = "/opt/shoal/bin/agent"
	attachProgram = "/opt/shoal/bin/attach"
	agentSocket   = "/run/shoal/agent.sock"
)

// containerCreate is the body of a container's creation.
type containerCreate struct {
	Image       string
	User        string   // "0:0"
	Entrypoint  []string // agentProgram
	Cmd         []string // "serve"
	WorkingDir  string   // "/"
	StopSignal  string   // "SIGTERM", whatever the image says
	Healthcheck healthcheck
	Labels      map[string]string
	HostConfig  hostConfig
}

// healthcheck NONE turns off what an image declares: it would run as root
// beside the agent.
type healthcheck struct{ Test []string }

type hostConfig struct {
	Runtime        string
	Init           bool
	ReadonlyRootfs bool
	CapDrop        []string
	CapAdd         []string
	SecurityOpt    []string
	IpcMode        string
	NetworkMode    string
	Memory         int64 // bytes
	MemorySwap     int64 // the same: no swap
	NanoCpus       int64
	CpuShares      int64
	PidsLimit      int64
	Ulimits        []ulimit
	Tmpfs          map[string]string
	Mounts         []mount
	LogConfig      logConfig
}

// containerUpdate is the body of a change of limits; the four go together.
type containerUpdate struct {
	Memory     int64
	MemorySwap int64
	NanoCpus   int64 // as hostConfig
	PidsLimit  int64
}

type ulimit struct {
	Name string
	Soft int64
	Hard int64
}

type mount struct {
	Type     string
	Source   string
	Target   string
	ReadOnly bool
}

type logConfig struct{ Type string }

// created answers a container's or exec's creation.
type created struct {
	ID string `json:"Id"`
}

type volumeCreate struct {
	Name       string
	Labels     map[string]string
	Driver     string            `json:",omitempty"` // only the configured one
	DriverOpts map[string]string `json:",omitempty"` // only size, only with Driver
}

type execCreate struct {
	AttachStdin  bool
	AttachStdout bool
	AttachStderr bool
	Cmd          []string // attachProgram agentSocket
	User         string   // "0:0"
}

type execStart struct {
	Detach bool
	Tty    bool
}

// container is what we read of a container's inspection.
type container struct {
	ID      string `json:"Id"`
	Name    string // with a leading slash
	Created time.Time
	State   struct {
		Status    string
		OOMKilled bool
		StartedAt time.Time
	}
	Config struct {
		Labels map[string]string
	}
	HostConfig struct {
		Memory    int64
		NanoCpus  int64
		PidsLimit *int64
		Runtime   string
	}
}

// listed is what we read of one container in a listing.
type listed struct {
	ID      string `json:"Id"`
	Names   []string
	State   string
	Created int64 // seconds
	Labels  map[string]string
}

type volume struct {
	Name      string
	Labels    map[string]string
	CreatedAt time.Time
}

type volumeList struct {
	Volumes []volume
}

type image struct {
	ID     string `json:"Id"`
	Config struct {
		Labels map[string]string
	}
}

type network struct {
	Name     string
	Driver   string
	Internal bool
	Options  map[string]string
}

// progressLine is one line of a pull's answer.
type progressLine struct {
	ID             string `json:"id"`
	Status         string `json:"status"`
	Error          string `json:"error"`
	ProgressDetail struct {
		Current int64 `json:"current"`
		Total   int64 `json:"total"`
	} `json:"progressDetail"`
}

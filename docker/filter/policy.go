package filter

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A Policy says what the filter admits. It is plain data: written as JSON by
// [Policy.String], read back strictly by [ParsePolicy], compared by value.
//
// Names of objects are templates over their own labels, such as
// "shoal-{shoal.tenant}-{shoal.name}.{shoal.generation}". That binds a name to
// its labels, and a container to the volumes and networks of its own sandbox
// and generation.
type Policy struct {
	// MinAPI and MaxAPI bound the versions a path may name. Below 1.41 the
	// engine's defaults are weaker (host cgroup namespace, shareable IPC).
	MinAPI string `json:"minAPI"`
	MaxAPI string `json:"maxAPI"`
	// Prefix begins the name of every object. One of its characters must not
	// be a hex digit, so that no name can be taken for the prefix of an id.
	Prefix string `json:"prefix"`
	// MaxBody is the longest body, in bytes.
	MaxBody int64 `json:"maxBody"`
	// Calls names the admitted calls and the query keys that each may carry.
	Calls map[string][]string `json:"calls"`
	// Images are the references that may be used and pulled. One without tag
	// and digest admits every tag and digest of that repository.
	Images []string `json:"images"`
	// Labels gives the grammar of each label's value, a regular expression
	// that must match all of it.
	Labels map[string]string `json:"labels"`
	// RoleLabel is the label that names an object's role.
	RoleLabel string `json:"roleLabel"`
	// ListLabels are the labels that a list may be filtered by; the first one
	// must be there.
	ListLabels []string `json:"listLabels"`
	// Roles says what each role is.
	Roles map[string]Role `json:"roles"`
	// Networks are networks that the operator made: they may be inspected.
	Networks []string `json:"networks,omitempty"`
	// Exec says which programs may be started in a container.
	Exec ExecRule `json:"exec"`
	// InertKeys admits (and drops) the keys that the Docker client's own
	// structs write although unset.
	InertKeys bool `json:"inertKeys,omitzero"`

	labels map[string]*regexp.Regexp // by label
	names  map[string]*regexp.Regexp // by role
	images []imageRef
}

// A Role says how the objects of one role are named, labelled and made. At
// most one of Container, Volume and Network is set.
type Role struct {
	Name      string         `json:"name"` // template
	Rename    *RenameRule    `json:"rename,omitzero"`
	Labels    []string       `json:"labels"`        // all of them must be there, no others
	Keep      bool           `json:"keep,omitzero"` // never removed
	Container *ContainerRule `json:"container,omitzero"`
	Volume    *VolumeRule    `json:"volume,omitzero"`
	Network   *NetworkRule   `json:"network,omitzero"`
}

// A RenameRule says which containers of a role may get another name: those of
// which a label has one value. Their labels stay; their new name is the one that
// the role's template makes with other values of the free labels, of which Label
// is one and may not have Value again.
type RenameRule struct {
	Label string   `json:"label"`
	Value string   `json:"value"`
	Free  []string `json:"free"`
}

// A ContainerRule says what a container of one role may be made of. What it
// does not mention must be absent. Read-only root, CapDrop ALL, an init
// process, no-new-privileges and limits are required in any case.
type ContainerRule struct {
	User         string               `json:"user"`
	WorkingDir   string               `json:"workingDir,omitempty"`
	Cmd          []string             `json:"cmd,omitempty"`
	Entrypoint   []string             `json:"entrypoint,omitempty"`
	StopSignal   string               `json:"stopSignal,omitempty"`
	Healthcheck  []string             `json:"healthcheck,omitempty"`
	FreeEnv      bool                 `json:"freeEnv,omitzero"` // any environment; otherwise none
	Runtimes     []string             `json:"runtimes"`         // "" means absent
	IPC          []string             `json:"ipc"`              // "" means absent
	CapAdd       []string             `json:"capAdd,omitempty"` // exactly these
	MaxMemory    int64                `json:"maxMemory"`        // bytes
	MaxNanoCPUs  int64                `json:"maxNanoCPUs"`
	MaxPids      int64                `json:"maxPids"`
	MaxCPUShares int64                `json:"maxCPUShares,omitzero"` // 0: must be absent; otherwise from 1 to this
	Ulimits      map[string]int64     `json:"ulimits,omitempty"`     // name → highest hard limit
	Networks     []string             `json:"networks"`              // templates; the network mode is one of them
	Endpoints    []string             `json:"endpoints,omitempty"`   // templates; exactly these, without settings
	Tmpfs        map[string]TmpfsRule `json:"tmpfs,omitempty"`       // by target
	Mounts       []MountRule          `json:"mounts,omitempty"`      // exactly these
	Log          *LogRule             `json:"log,omitzero"`          // exactly this; nil: must be absent
}

// A MountRule is one volume at one place.
type MountRule struct {
	Source   string `json:"source"` // template
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitzero"`
}

// A TmpfsRule gives the options of a tmpfs, all of which must be sent, besides
// rw, nosuid and nodev.
type TmpfsRule struct {
	MaxSize int64    `json:"maxSize"` // bytes; the size may be less
	Mode    string   `json:"mode"`
	Flags   []string `json:"flags,omitempty"` // such as "noexec"
}

// A LogRule is a log configuration.
type LogRule struct {
	Type   string            `json:"type"`
	Config map[string]string `json:"config,omitempty"`
}

// A VolumeRule says how a volume may be made. With a Driver, that driver and
// its option "size" are admitted, otherwise neither.
type VolumeRule struct {
	Driver string `json:"driver,omitempty"`
}

// A NetworkRule says how a network must be made: a bridge with exactly these
// settings.
type NetworkRule struct {
	Internal bool                `json:"internal,omitzero"`
	Options  []map[string]string `json:"options"` // the sets of options, one of which must be sent
}

// An ExecRule says which programs may be started in a container.
type ExecRule struct {
	// Cmds are the admitted commands, word by word. Empty: any command.
	Cmds [][]string `json:"cmds,omitempty"`
	// Users are the admitted users; "" means absent.
	Users []string `json:"users"`
	// FreeEnv and FreeDir admit an environment and a working directory (never
	// one below /proc, /sys or /dev).
	FreeEnv bool `json:"freeEnv,omitzero"`
	FreeDir bool `json:"freeDir,omitzero"`
}

// ParsePolicy reads a policy from JSON. Unknown and doubled keys are errors, as
// is whatever [Policy.Validate] objects to.
func ParsePolicy(data []byte) (*Policy, error) {
	p := new(Policy)
	if err := json.Unmarshal(data, p, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

// LoadPolicy reads a policy from a file.
func LoadPolicy(name string) (*Policy, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return ParsePolicy(data)
}

// String is the policy as indented JSON.
func (p *Policy) String() string {
	out, err := json.Marshal(p, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return "policy: " + err.Error()
	}
	return string(out)
}

// A version of the engine's API, such as 1.44.
type apiVersion struct{ major, minor int }

func parseAPIVersion(s string) (apiVersion, error) {
	a, b, ok := strings.Cut(s, ".")
	if !ok || !isNumber(a) || !isNumber(b) {
		return apiVersion{}, fmt.Errorf("%q is no API version such as 1.44", s)
	}
	major, _ := strconv.Atoi(a)
	minor, _ := strconv.Atoi(b)
	return apiVersion{major, minor}, nil
}

// isNumber admits 1 to 4 digits without a leading zero.
func isNumber(s string) bool {
	return s != "" && len(s) <= 4 && only(s, isDigit) && (s == "0" || s[0] != '0')
}

func (v apiVersion) less(w apiVersion) bool {
	return v.major < w.major || v.major == w.major && v.minor < w.minor
}

// admitsVersion judges the version of a path.
func (p *Policy) admitsVersion(s string) bool {
	v, err := parseAPIVersion(s)
	if err != nil {
		return false
	}
	low, err1 := parseAPIVersion(p.MinAPI)
	high, err2 := parseAPIVersion(p.MaxAPI)
	return err1 == nil && err2 == nil && !v.less(low) && !high.less(v)
}

func (p *Policy) labelValueOK(key, value string) bool {
	re := p.labels[key]
	return re != nil && len(value) <= maxLabel && re.MatchString(value)
}

// sameSet reports whether a and b hold the same strings, each once.
func sameSet(a, b []string) bool {
	x, y := slices.Clone(a), slices.Clone(b)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

package filter

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
)

// maxOwned bounds how many containers and execs are remembered; what is
// forgotten is looked up again.
const maxOwned = 8192

// owners remembers which containers were made through this filter, and to which
// container an exec belongs. An exec has no name of its own, so without this an
// exec of any container could be started by its id.
type owners struct {
	mu    sync.Mutex
	seen  map[string]string // guarded by mu: exec id or container name → container name
	order []string          // guarded by mu: the keys of seen, oldest first
}

func (o *owners) remember(key, container string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[string]string{}
	}
	if _, ok := o.seen[key]; !ok {
		o.order = append(o.order, key)
	}
	o.seen[key] = container
	for len(o.order) > maxOwned {
		delete(o.seen, o.order[0])
		o.order = o.order[1:]
	}
}

// containerOf returns the container of ours that key stands for, or "".
func (o *owners) containerOf(key string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[key]
}

func (o *owners) forget(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.seen[key]; ok {
		o.seen[key] = "" // its place in order stays until it is the oldest
	}
}

// checkOwner refuses an exec in a container that is not ours, and the start and
// the inspection of an exec that belongs to such a one.
func (f *Filter) checkOwner(ctx context.Context, c *Call) *Refusal {
	switch c.Rule {
	case "exec.create":
		return f.checkContainer(ctx, c.version, c.Name, c.Name)
	case "exec.start", "exec.inspect":
		return f.checkExec(ctx, c.version, c.Name)
	}
	return nil
}

func (f *Filter) checkExec(ctx context.Context, version, id string) *Refusal {
	if f.owners.containerOf(id) != "" {
		return nil
	}
	var exec struct {
		ContainerID   string
		ProcessConfig struct {
			Privileged bool `json:"privileged"`
		}
	}
	status, err := f.getJSON(ctx, "/v"+version+"/exec/"+id+"/json", &exec)
	if r := lookupRefusal("exec instance: "+id, status, err); r != nil {
		return r
	}
	if exec.ProcessConfig.Privileged || !isExecID(exec.ContainerID) { // container ids look like exec ids
		return refuse("exec.owner", "the exec is not one that this filter admits")
	}
	return f.checkContainer(ctx, version, exec.ContainerID, id)
}

// checkContainer looks the container up by name or id and remembers key for it.
func (f *Filter) checkContainer(ctx context.Context, version, container, key string) *Refusal {
	if f.owners.containerOf(key) != "" {
		return nil
	}
	var inspected struct {
		ID     string `json:"Id"`
		Name   string
		Config struct{ Labels map[string]string }
	}
	status, err := f.getJSON(ctx, "/v"+version+"/containers/"+container+"/json", &inspected)
	if r := lookupRefusal("container: "+container, status, err); r != nil {
		return r
	}
	name := strings.TrimPrefix(inspected.Name, "/")
	if (container != name && container != inspected.ID) || !f.policy.owns(name, inspected.Config.Labels) {
		return refuse("exec.owner", "the container does not carry our name and labels")
	}
	f.owners.remember(key, name)
	return nil
}

func lookupRefusal(what string, status int, err error) *Refusal {
	switch {
	case err != nil || status != http.StatusOK && status != http.StatusNotFound:
		return &Refusal{"lookup", "the engine did not tell about " + what, http.StatusBadGateway}
	case status == http.StatusNotFound:
		return &Refusal{"lookup", "No such " + what, http.StatusNotFound}
	}
	return nil
}

// learn takes from an answer whom a container or an exec belongs to, and
// returns the body to be passed on.
func (f *Filter) learn(c *Call, resp *http.Response) (io.ReadCloser, error) {
	switch {
	case c.Rule == "container.create" && resp.StatusCode == http.StatusCreated:
		f.owners.remember(c.Name, c.Name)
	case c.Rule == "container.rename":
		f.owners.forget(c.Former) // the new name is looked up when it is used
	case c.Rule == "container.remove":
		f.owners.forget(c.Name)
	case c.Rule == "exec.create" && resp.StatusCode == http.StatusCreated:
		return f.learnExec(c, resp)
	}
	return resp.Body, nil
}

func (f *Filter) learnExec(c *Call, resp *http.Response) (io.ReadCloser, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	var made struct {
		ID string `json:"Id"`
	}
	if json.Unmarshal(body, &made) == nil && isExecID(made.ID) {
		f.owners.remember(made.ID, c.Name)
	}
	resp.ContentLength = int64(len(body))
	return io.NopCloser(bytes.NewReader(body)), nil
}

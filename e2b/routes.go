package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"
)

// envdPort is where the daemon in every sandbox listens.
const envdPort = "49983"

// The bounds of one listing; a page holds what was asked for or less.
const (
	maxPages = 200
	pageSize = 100
)

// idPattern is what the server makes and accepts; anything else must not reach
// a path or a host name.
var idPattern = regexp.MustCompile(`^[a-z0-9]{1,64}(-[a-z0-9]{1,64})?$`)

// newSandbox is the body of a create. Everything that has a default is said
// all the same: defaults are "kill at the end" and "no token".
type newSandbox struct {
	TemplateID string `json:"templateID"`
	Timeout    int    `json:"timeout"` // seconds
	// AutoPause pauses at the end of the time instead of killing.
	AutoPause  bool `json:"autoPause"`
	AutoResume struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	// Secure asks for an access token. Version 2 of the route has no such
	// field and always gives one; that it ignores the field is unverified.
	Secure              bool              `json:"secure"`
	AllowInternetAccess bool              `json:"allow_internet_access"`
	Network             *network          `json:"network,omitempty"`
	Metadata            map[string]string `json:"metadata"`
}

// network is E2B's firewall as a create names it.
type network struct {
	AllowOut []string `json:"allowOut,omitempty"`
	DenyOut  []string `json:"denyOut,omitempty"`
	// AllowPublicTraffic false closes the sandbox's ports to the internet;
	// envd's own is exempt.
	AllowPublicTraffic bool `json:"allowPublicTraffic"`
}

// networkUpdate replaces all of a running sandbox's egress.
type networkUpdate struct {
	AllowOut            []string `json:"allowOut"`
	DenyOut             []string `json:"denyOut"`
	AllowInternetAccess bool     `json:"allow_internet_access"`
}

// access is the answer of create and connect.
type access struct {
	SandboxID   string  `json:"sandboxID"`
	EnvdVersion string  `json:"envdVersion"`
	AccessToken Secret  `json:"envdAccessToken"`
	Domain      *string `json:"domain"`
}

// The states a listing knows. A sandbox that is being paused reads as paused,
// one that is being killed is not shown.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

// detail is a sandbox as a listing or a get shows it; a listing has neither
// token, domain nor life cycle.
type detail struct {
	SandboxID   string            `json:"sandboxID"`
	State       string            `json:"state"`
	Metadata    map[string]string `json:"metadata"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int               `json:"memoryMB"`
	DiskSizeMB  int               `json:"diskSizeMB"`
	AccessToken Secret            `json:"envdAccessToken"`
	Domain      *string           `json:"domain"`
	Lifecycle   *struct {
		OnTimeout string `json:"onTimeout"`
	} `json:"lifecycle"`
}

func (c *client) create(ctx context.Context, body newSandbox) (access, error) {
	var out access
	err := versions("/sandboxes", func(path string) error {
		out = access{}
		_, _, err := c.do(ctx, call{
			name: "create sandbox", method: http.MethodPost, path: path,
			body: body, out: &out, timeout: slowCall, once: true,
		})
		return err
	})
	if err == nil && !idPattern.MatchString(out.SandboxID) {
		return access{}, &apiError{Call: "create sandbox", cause: errors.New("the answer holds no valid sandbox id")}
	}
	return out, err
}

// connect brings a sandbox to running and pushes its end back to at least
// timeout seconds from now. It reports whether the sandbox was resumed (201)
// rather than found running (200). With coldBoot a paused sandbox boots from
// disk, where the server supports it.
func (c *client) connect(ctx context.Context, id string, timeout int, coldBoot bool) (a access, resumed bool, err error) {
	body := struct {
		Timeout int   `json:"timeout"`
		Memory  *bool `json:"memory,omitempty"`
	}{Timeout: timeout}
	if coldBoot {
		body.Memory = new(bool)
	}
	err = versions("/sandboxes/"+id+"/connect", func(path string) error {
		a = access{}
		status, _, err := c.do(ctx, call{
			name: "connect sandbox", method: http.MethodPost, path: path,
			body: body, out: &a, timeout: slowCall, settles: true,
		})
		resumed = status == http.StatusCreated
		return err
	})
	if err == nil && a.SandboxID != id {
		return access{}, false, &apiError{Call: "connect sandbox", cause: errors.New("the answer speaks of another sandbox")}
	}
	return a, resumed, err
}

// versions tries the route that every known server has, and its second version
// where the first is unknown. That any server lacks the first is unverified.
func versions(path string, try func(path string) error) error {
	err := try(path)
	if e := asAPI(err); e != nil && e.noRoute() {
		if second := try("/v2" + path); second == nil || asAPI(second) == nil || !asAPI(second).noRoute() {
			return second
		}
	}
	return err
}

func (c *client) get(ctx context.Context, id string) (detail, error) {
	var out detail
	_, _, err := c.do(ctx, call{
		name: "get sandbox", method: http.MethodGet, path: "/sandboxes/" + id, out: &out, timeout: quickCall,
	})
	if err == nil && out.SandboxID != id {
		return detail{}, &apiError{Call: "get sandbox", cause: errors.New("the answer speaks of another sandbox")}
	}
	return out, err
}

// list returns the sandboxes, running and paused, that carry all of filter.
func (c *client) list(ctx context.Context, filter map[string]string) ([]detail, error) {
	query := url.Values{
		"metadata": {encodeMetadata(filter)},
		"state":    {stateRunning + "," + statePaused},
		"limit":    {strconv.Itoa(pageSize)},
	}
	var all []detail
	for range maxPages {
		var page []detail
		_, header, err := c.do(ctx, call{
			name: "list sandboxes", method: http.MethodGet, path: "/v2/sandboxes", query: query,
			out: &page, timeout: quickCall, limit: maxListPage,
		})
		if err != nil {
			return nil, err
		}
		if len(page) > pageSize {
			return nil, &apiError{Call: "list sandboxes", cause: fmt.Errorf("a page of %d sandboxes, %d were asked for", len(page), pageSize)}
		}
		for _, d := range page {
			if matches(d.Metadata, filter) && idPattern.MatchString(d.SandboxID) {
				all = append(all, d)
			}
		}
		next := header.Get("X-Next-Token")
		if next == "" {
			return all, nil
		}
		if next == query.Get("nextToken") {
			return nil, &apiError{Call: "list sandboxes", cause: errors.New("the server names the same page again")}
		}
		query.Set("nextToken", next)
	}
	return nil, &apiError{Call: "list sandboxes", cause: fmt.Errorf("more than %d pages", maxPages)}
}

// encodeMetadata applies two levels of query encoding to keys and values; the
// query itself adds the third. The server undoes all three.
func encodeMetadata(m map[string]string) string {
	v := url.Values{}
	for k, val := range m {
		v.Set(url.QueryEscape(k), url.QueryEscape(val))
	}
	return v.Encode() // sorted, so that requests are the same each time
}

// matches repeats the server's filter: a server that ignores it must not make
// us take foreign sandboxes for ours.
func matches(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func (c *client) pause(ctx context.Context, id string, memory bool) error {
	_, _, err := c.do(ctx, call{
		name: "pause sandbox", method: http.MethodPost, path: "/sandboxes/" + id + "/pause",
		body: map[string]bool{"memory": memory}, timeout: slowCall,
	})
	return err
}

func (c *client) remove(ctx context.Context, id string) error {
	_, _, err := c.do(ctx, call{
		name: "delete sandbox", method: http.MethodDelete, path: "/sandboxes/" + id, timeout: slowCall, settles: true,
	})
	return err
}

// refresh pushes the end of a running sandbox back to at least duration from
// now. It never shortens it and never resumes.
func (c *client) refresh(ctx context.Context, id string, duration time.Duration) error {
	_, _, err := c.do(ctx, call{
		name: "refresh sandbox", method: http.MethodPost, path: "/sandboxes/" + id + "/refreshes",
		body: map[string]int{"duration": min(int(duration/time.Second), 3600)}, timeout: quickCall,
	})
	return err
}

func (c *client) setNetwork(ctx context.Context, id string, n networkUpdate) error {
	_, _, err := c.do(ctx, call{
		name: "set network", method: http.MethodPut, path: "/sandboxes/" + id + "/network", body: n, timeout: quickCall,
	})
	return err
}

package filter

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth bounds the nesting of a body; the deepest that we admit has six.
const maxDepth = 12

// decodeStrict decodes exactly one JSON object: exact keys, no duplicates,
// valid UTF-8, nothing behind it, no unknown key, bounded depth.
//
// The engine decodes with encoding/json, which folds case by Unicode, lets the
// last duplicate win, merges objects and reuses array elements; none of that
// can differ from what is understood here, as the engine gets our own writing.
func decodeStrict(body []byte, into any) *Refusal {
	if r := checkDepth(body); r != nil {
		return r
	}
	if err := json.Unmarshal(body, into, json.RejectUnknownMembers(true)); err != nil {
		return refuse("json.strict", "the JSON has an unknown, doubled or wrongly typed member")
	}
	return nil
}

func checkDepth(body []byte) *Refusal {
	d := jsontext.NewDecoder(bytes.NewReader(body))
	if d.PeekKind() != '{' {
		return malformed("json.object", "the JSON must be one object")
	}
	for {
		if _, err := d.ReadToken(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return malformed("json.syntax", "the JSON is malformed")
		}
		if d.StackDepth() > maxDepth {
			return refuse("json.depth", "the JSON is nested more than %d deep", maxDepth)
		}
	}
}

// encode writes a body anew. The structs hold nothing that cannot be written.
func encode(v any) ([]byte, *Refusal) {
	out, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return nil, malformed("json.write", "the body cannot be written")
	}
	return out, nil
}

// checkInert judges the members that a struct does not name. With inertKeys
// they may be those that the Docker client's own structs always write, with
// exactly the value that means "not set". They are dropped, never forwarded.
func checkInert(extra map[string]jsontext.Value, inertKeys bool, known map[string]string) *Refusal {
	for key, value := range extra {
		want, ok := known[key]
		if !ok || !inertKeys {
			return refuse("json.key", "the body has a key that is not admitted")
		}
		if err := value.Compact(); err != nil || string(value) != want {
			return refuse("json.inert", "%s may only be sent with the value that leaves it unset", key)
		}
	}
	return nil
}

// The members that container.Config and container.HostConfig of the Docker
// client write although unset. MaskedPaths and ReadonlyPaths are dangerous as
// [] (nothing masked) and harmless as null, so values are compared exactly.
var (
	inertConfig = map[string]string{
		"Hostname": `""`, "Domainname": `""`, "AttachStdin": `false`, "AttachStdout": `false`, "AttachStderr": `false`,
		"Tty": `false`, "OpenStdin": `false`, "StdinOnce": `false`, "Volumes": `null`, "OnBuild": `null`,
	}
	inertHost = map[string]string{
		"Binds": `null`, "ContainerIDFile": `""`, "PortBindings": `null`,
		"RestartPolicy": `{"Name":"","MaximumRetryCount":0}`, "AutoRemove": `false`, "VolumeDriver": `""`,
		"VolumesFrom": `null`, "ConsoleSize": `[0,0]`, "CgroupnsMode": `""`, "Dns": `null`, "DnsOptions": `null`,
		"DnsSearch": `null`, "ExtraHosts": `null`, "GroupAdd": `null`, "Cgroup": `""`, "Links": `null`,
		"OomScoreAdj": `0`, "PidMode": `""`, "Privileged": `false`, "PublishAllPorts": `false`, "UTSMode": `""`,
		"UsernsMode": `""`, "ShmSize": `0`, "Isolation": `""`, "CgroupParent": `""`, "BlkioWeight": `0`,
		"BlkioWeightDevice": `null`, "BlkioDeviceReadBps": `null`, "BlkioDeviceWriteBps": `null`,
		"BlkioDeviceReadIOps": `null`, "BlkioDeviceWriteIOps": `null`, "CpuPeriod": `0`, "CpuQuota": `0`,
		"CpuRealtimePeriod": `0`, "CpuRealtimeRuntime": `0`, "CpusetCpus": `""`, "CpusetMems": `""`, "Devices": `null`,
		"DeviceCgroupRules": `null`, "DeviceRequests": `null`, "MemoryReservation": `0`, "MemorySwappiness": `null`,
		"OomKillDisable": `null`, "CpuCount": `0`, "CpuPercent": `0`, "IOMaximumIOps": `0`, "IOMaximumBandwidth": `0`,
		"MaskedPaths": `null`, "ReadonlyPaths": `null`,
	}
	inertExec = map[string]string{
		"Privileged": `false`, "DetachKeys": `""`, "Detach": `false`,
	}
)

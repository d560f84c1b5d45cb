package filter

type volumeBody struct {
	Name       string            `json:"Name"`
	Driver     string            `json:"Driver,omitempty"`
	DriverOpts map[string]string `json:"DriverOpts,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

// judgeVolume judges the body of a volume create and writes it anew. With the
// options of the local driver a volume would be a bind mount of the host.
func judgeVolume(p *Policy, c *Call, body []byte) *Refusal {
	var b volumeBody
	if r := decodeStrict(body, &b); r != nil {
		return r
	}
	role, r := p.judgeObject(b.Name, b.Labels)
	if r != nil {
		return r
	}
	if role.Volume == nil {
		return refuse("label.role", "the role is not that of a volume")
	}
	if b.Driver != role.Volume.Driver && b.Driver != "" {
		return refuse("volume.driver", "the driver is not the configured one")
	}
	for key, value := range b.DriverOpts {
		if _, ok := parseSize(value); key != "size" || !ok || b.Driver == "" {
			return refuse("volume.options", "the only option is size, with the configured driver")
		}
	}
	c.Name = b.Name
	c.Body, r = encode(b)
	return r
}

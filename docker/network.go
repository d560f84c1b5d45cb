package docker

import (
	"context"
	"net/http"
)

// optionICC is the bridge driver's option for traffic between containers.
const optionICC = "com.docker.network.bridge.enable_icc"

// checkNetwork makes sure that the network for open egress is a bridge of the
// operator's on which sandboxes cannot reach each other.
func (p *Provider) checkNetwork(ctx context.Context) error {
	name := p.conf.Network
	var n network
	err := p.engine.call(ctx, quickCall, request{method: http.MethodGet, path: "/networks/" + name}, &n)
	switch {
	case isNoNetwork(err):
		return engineFault("the network %s does not exist; make it: docker network create -o %s=false %s", name, optionICC, name).Wrap(err)
	case err != nil:
		return err
	case n.Name != name || n.Driver != "bridge" || n.Internal:
		return engineFault("the network %s is not a bridge with a way out", name)
	case n.Options[optionICC] != "false":
		return engineFault("on the network %s sandboxes could reach each other; make it anew: docker network create -o %s=false %s", name, optionICC, name)
	}
	return nil
}

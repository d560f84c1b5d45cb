package docker

import (
	"context"
	"net/http"

	"shoal/sandbox"
)

// EngineID implements [sandbox.Provider]: the random id on a volume of the
// engine's, which is made at the first call. All workers read the same one, as
// the engine creates a volume once and then answers with the existing one.
func (p *Provider) EngineID(ctx context.Context) (string, error) {
	const op = "identify the engine"
	name := p.conf.Prefix + "engine"
	var v volume
	err := p.engine.call(ctx, quickCall, request{method: http.MethodGet, path: "/volumes/" + name}, &v)
	if isNoVolume(err) {
		err = p.engine.call(ctx, quickCall, request{
			method: http.MethodPost, path: "/volumes/create",
			body: volumeCreate{Name: name, Labels: map[string]string{LabelRole: roleEngine, LabelEngine: sandbox.NewID()}},
		}, &v)
	}
	if err != nil {
		return "", translate(op, err)
	}
	id := v.Labels[LabelEngine]
	if v.Labels[LabelRole] != roleEngine || sandbox.ValidateID("engine", id) != nil {
		return "", engineFault("could not %s: its volume %s was not made by Shoal; remove it or choose another prefix", op, name)
	}
	return id, nil
}

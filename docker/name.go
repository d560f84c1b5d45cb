package docker

import (
	"strconv"
	"strings"

	"shoal/sandbox"
)

// The labels of every object. Nothing that callers write freely is in them.
const (
	LabelFleet      = "shoal.fleet"
	LabelTenant     = "shoal.tenant"
	LabelName       = "shoal.name"
	LabelGeneration = "shoal.generation"
	LabelRole       = "shoal.role"
	LabelBucket     = "shoal.bucket"
	LabelDisk       = "shoal.disk"   // Limits.DiskMB; the engine shows it nowhere else
	LabelEngine     = "shoal.engine" // the marker's random id
)

// The values of [LabelRole].
const (
	roleSandbox   = "sandbox"
	roleWorkspace = "workspace"
	roleSkills    = "skills"
	roleEngine    = "engine"
)

// identity is what the names and labels of a sandbox's objects say.
type identity struct {
	tenant     sandbox.Tenant
	name       sandbox.Name
	generation string
	// pool is the name that the sandbox was made under in the warm pool; "" = it
	// was made under its own.
	pool sandbox.Name
}

func identityOf(h sandbox.Handle) (identity, error) {
	id := identity{h.Tenant, h.Name, h.Generation, h.Pool}
	return id, id.validate()
}

func (id identity) validate() error {
	if err := id.tenant.ValidateAny(); err != nil {
		return err
	}
	if err := id.name.Validate(); err != nil {
		return err
	}
	if id.pool != "" {
		if err := id.pool.Validate(); err != nil {
			return err
		}
	}
	return sandbox.ValidateID("generation", id.generation)
}

// made is the identity that id's labels and volumes have.
func (id identity) made() identity {
	if id.pool == "" {
		return id
	}
	return identity{tenant: sandbox.PoolTenant, name: id.pool, generation: id.generation}
}

// container is shoal-<tenant>-<name>.<generation>. A tenant has no '-' and a
// generation no '.', so no two identities share a name.
func (p *Provider) container(id identity) string {
	return p.conf.Prefix + string(id.tenant) + "-" + string(id.name) + "." + id.generation
}

func (p *Provider) workspace(id identity) string { return p.container(id.made()) + "-workspace" }
func (p *Provider) skills(id identity) string    { return p.container(id.made()) + "-skills" }

// object is the name that a role of id has.
func (p *Provider) object(id identity, role string) string {
	switch role {
	case roleWorkspace:
		return p.workspace(id)
	case roleSkills:
		return p.skills(id)
	}
	return p.container(id)
}

func (p *Provider) labels(spec *sandbox.Spec, role string) map[string]string {
	return map[string]string{
		LabelFleet: p.conf.Fleet, LabelTenant: string(spec.Tenant), LabelName: string(spec.Name),
		LabelGeneration: spec.Generation, LabelRole: role, LabelBucket: spec.Bucket,
		LabelDisk: strconv.Itoa(spec.Limits.DiskMB),
	}
}

// parse reads an object's labels. They are believed only when they agree with
// the object's name and carry our fleet: anybody may label objects.
func (p *Provider) parse(object string, labels map[string]string) (id identity, role string, ok bool) {
	id = identity{tenant: sandbox.Tenant(labels[LabelTenant]), name: sandbox.Name(labels[LabelName]), generation: labels[LabelGeneration]}
	role = labels[LabelRole]
	switch role {
	case roleSandbox, roleWorkspace, roleSkills:
	default:
		return identity{}, "", false
	}
	if labels[LabelFleet] != p.conf.Fleet || id.validate() != nil {
		return identity{}, "", false
	}
	object = strings.TrimPrefix(object, "/")
	if object != p.object(id, role) && role == roleSandbox && id.tenant == sandbox.PoolTenant {
		id, ok = p.renamed(object, id)
		return id, role, ok
	}
	return id, role, object == p.object(id, role)
}

// renamed reads the name of a container that was made as member and claimed
// since: labels cannot change.
func (p *Provider) renamed(object string, member identity) (id identity, ok bool) {
	rest, ours := strings.CutPrefix(object, p.conf.Prefix)
	rest, same := strings.CutSuffix(rest, "."+member.generation)
	tenant, name, whole := strings.Cut(rest, "-")
	id = identity{sandbox.Tenant(tenant), sandbox.Name(name), member.generation, member.name}
	return id, ours && same && whole && id.tenant.Validate() == nil && id.validate() == nil
}

package margo

import (
	"net/url"
	"slices"
	"strings"
	"time"
)

// Bounds of an ApplicationDeployment.
const (
	MaxDeploymentBytes = 256 << 10
	MaxComponents      = 64
	MaxParameters      = 1024
	maxDeploymentNodes = 16 << 10
)

// DeploymentType says how the components of a deployment are packaged.
type DeploymentType string

// The types of the specification (A-31 for custom). The parser lets others pass, to be reported.
const (
	Compose DeploymentType = "compose"
	Helm    DeploymentType = "helm"
	Custom  DeploymentType = "custom"
)

// Deployment is an ApplicationDeployment: one application as it shall be on one device.
type Deployment struct {
	ID            string // UUID as the document spells it; compare with SameID
	Name          string // metadata.name, the source of deployment-level errors (ST-08)
	DeviceID      string // the target with its hierarchy; empty in older documents: the client's own device
	ApplicationID string
	Labels        map[string]string
	Type          DeploymentType
	Components    []Component // in the order of processing (AD-13)
	Parameters    []Parameter // in the order of the document
	Constraints   *DeviceConstraints
	// Sandbox: the document is of the kind served by the Margo sandbox's WFM, which knows the
	// states of rc.1 by capitalised names.
	Sandbox bool

	// Ignored are unknown members without effect (EXT-01).
	Ignored Errors
	// Foreign are unknown members that change what the deployment means: a device must not run
	// it. The parser lets them pass, so that what already runs goes on.
	Foreign Errors
}

// Component is one package of a deployment.
type Component struct {
	Name string
	// Repository ("oci://...") and Revision are the coordinates since late rc.2.
	Repository, Revision string
	// PackageLocation and KeyLocation are the older coordinates; a component has one pair or
	// both.
	PackageLocation, KeyLocation string
	Wait                         bool          // finish this component before the next one starts (AD-06); default true
	Timeout                      time.Duration // of the installation (AD-08); 0: none given
}

// ParseDeployment reads an ApplicationDeployment of any published revision. If the document is
// refused, what could be read of it is returned beside the error (or nil), since the report of
// the refusal has to name the deployment and its components (ST-05, ST-08).
func ParseDeployment(body []byte) (d *Deployment, err error) {
	_, err = accept("application deployment", parseYAML, body, deploymentLimits(), func(r *reader, n node) *Deployment {
		if d = r.deployment(n); d != nil {
			d.Ignored, d.Foreign = r.ignored, r.foreign
		}
		return d
	})
	return d, err
}

func deploymentLimits() limits {
	return limits{bytes: MaxDeploymentBytes, depth: 32, nodes: maxDeploymentNodes}
}

func (r *reader) deployment(n node) *Deployment {
	if !r.is(object, "AD-01", n) {
		return nil
	}
	r.closed(n, "apiVersion", "kind", "id", "metadata", "spec")
	metadata, spec := n.member("metadata"), n.member("spec")
	annotations := metadata.member("annotations")
	d := &Deployment{}

	// Documents before rc.3 are Kubernetes resources.
	kind := n.member("kind")
	if kind.given() {
		switch r.word("A-12", kind) {
		case deploymentKind:
		case sandboxKind:
			d.Sandbox = true
		default:
			r.refuse("A-12", kind, "must be %s if present", deploymentKind)
		}
	}

	d.ID = r.documentID(n)

	if r.is(object, "ST-08", metadata) {
		d.Name = r.objectName(metadata.member("name"))
		d.DeviceID = r.target(metadata)
		d.Labels = r.labels(metadata.member("labels"))
	}

	if !r.is(object, "AD-03", spec) {
		return d
	}
	r.closed(spec, "applicationId", "deploymentProfile", "parameters")
	application := r.moved("A-60", spec.member("applicationId"), annotations.member("applicationId"))
	// Before rc.3, WFMs in the field leave it out.
	if application.given() || !kind.given() && !n.member("apiVersion").given() {
		d.ApplicationID = r.word("A-60", application)
	}
	if d.ApplicationID != "" && !isName(d.ApplicationID) {
		r.refuse("A-60", application, "must be 1 to 200 lowercase letters, digits and dashes, is %.80q", d.ApplicationID)
	}

	profile := spec.member("deploymentProfile")
	if r.is(object, "AD-03", profile) {
		r.closed(profile, "type", "components", "deviceConstraints")
		d.Type = r.deploymentType(profile.member("type"))
		d.Components = r.components(profile.member("components"))
		d.Constraints = r.constraints(profile.member("deviceConstraints"))
	}
	d.Parameters = r.parameters(spec.member("parameters"))
	return d
}

// The kinds of an ApplicationDeployment: that of the standard before rc.3, and the sandbox's.
const (
	deploymentKind = "ApplicationDeployment"
	sandboxKind    = "ApplicationDeploymentManifest"
)

// documentID reads the deployment's id, which has been in several places.
func (r *reader) documentID(n node) string {
	metadata := n.member("metadata")
	place := r.moved("AD-02", n.member("id"), metadata.member("annotations").member("id"), metadata.member("id"))
	id := r.deploymentID("AD-02", place)
	if id != "" && !IsDeploymentID(id) {
		r.refuse("AD-02", place, "must be a UUID, or 1 to %d letters, digits and . _ ~ -, is %.80q", maxDeploymentID, id)
	}
	return id
}

// moved gives the member at its present place, else where other revisions have it. Places
// that contradict each other refuse the document: neither is known to be meant.
func (r *reader) moved(requirement string, present node, others ...node) node {
	found := present
	for _, place := range others {
		switch {
		case !place.given():
		case !found.given():
			found = place
		case found.kind != place.kind || !strings.EqualFold(found.literal, place.literal): // ids are the same in any case
			r.refuse(requirement, place, "contradicts %s", found.path)
		}
	}
	return found
}

// closed notes an object's unknown members. They are ignored, since they must not fail the import
// (EXT-01), except those of drafts that are known to change what the deployment means.
func (r *reader) closed(n node, known ...string) { r.members(n, known, false) }

// exact is closed for objects whose members all matter: every unknown one is foreign.
func (r *reader) exact(n node, known ...string) { r.members(n, known, true) }

func (r *reader) members(n node, known []string, exact bool) {
	n.eachMember(func(name string, value node) {
		switch {
		case slices.Contains(known, name), !value.given(), isExtension(name):
		case exact, name == "valueFrom", name == "requiredCapabilities":
			r.foreign.add("", value.path, "is not known to this device, and changes what the deployment means")
		default:
			r.ignored.add("EXT-01", value.path, "is unknown")
		}
	})
}

func (r *reader) objectName(n node) string {
	name := r.word("ST-08", n)
	// It only labels errors: an invalid one does no harm.
	if len(name) > maxName || !isPrintable(name) {
		r.refuse("ST-08", n, "must be the name of a Kubernetes object")
		name = Shown(name, maxName)
	}
	return name
}

// target reads the device that the deployment is for. Before rc.2 there was none (the client's
// own device is meant), and a later revision may call it targetName.
func (r *reader) target(metadata node) string {
	n := r.moved("AD-14", metadata.member("deviceId"), metadata.member("targetName"))
	if !n.given() {
		return ""
	}
	id := r.word("AD-14", n)
	if id != "" && !isTarget(id) {
		r.refuse("AD-14", n, "must be a device id, is %.80q", id)
	}
	return id
}

func (r *reader) labels(n node) map[string]string {
	if !r.isOptional(object, "A-60", n) {
		return nil
	}
	labels := make(map[string]string, len(n.members))
	n.eachMember(func(name string, value node) {
		switch value.kind {
		case text:
			labels[name] = value.literal
		case number, boolean:
			labels[name] = value.written
		}
	})
	return labels
}

// deploymentType reads the type, which had other names before rc.3.
func (r *reader) deploymentType(n node) DeploymentType {
	switch name := r.word("AD-03", n); name {
	case "docker-compose":
		return Compose
	case "helm.v3":
		return Helm
	default:
		return DeploymentType(Shown(name, 80))
	}
}

func (r *reader) components(n node) []Component {
	if !r.is(list, "AD-13", n) {
		return nil
	}
	if len(n.items) == 0 || len(n.items) > MaxComponents {
		r.refuse("AD-13", n, "must have 1 to %d entries, has %d", MaxComponents, len(n.items))
		return nil
	}
	components := make([]Component, 0, len(n.items))
	seen := make(map[string]bool, len(n.items))
	n.each(func(n node) {
		c := r.component(n)
		if c.Name == "" { // already refused, and nothing to report on
			return
		}
		if seen[c.Name] {
			r.refuse("ST-05", n.member("name"), "%.80q occurs twice", c.Name)
			return
		}
		seen[c.Name] = true
		components = append(components, c)
	})
	return components
}

func (r *reader) component(n node) Component {
	if !r.is(object, "AD-04", n) {
		return Component{}
	}
	r.closed(n, "name", "properties")
	c := Component{Name: r.word("ST-05", n.member("name")), Wait: true}
	if c.Name != "" && !isName(c.Name) {
		r.refuse("ST-05", n.member("name"), "must be at most 200 lowercase letters, digits and dashes, is %.80q", c.Name)
		c.Name = Shown(c.Name, 200)
	}
	properties := n.member("properties")
	if !r.is(object, "AD-04", properties) {
		return c
	}
	r.closed(properties, "repository", "revision", "packageLocation", "keyLocation", "wait", "timeout")
	r.coordinates(&c, properties)
	c.Wait = r.wait(properties.member("wait"))
	c.Timeout = r.timeout(properties.member("timeout"))
	return c
}

// coordinates reads where a component's package is: an OCI repository and tag (AD-04), or a URL
// in documents before late rc.2 (PKG-15).
func (r *reader) coordinates(c *Component, n node) {
	if location := n.member("packageLocation"); location.given() {
		if location.kind == text && strings.HasPrefix(location.literal, "oci://") {
			r.reference(c, location, n.member("revision"))
			return
		}
		c.PackageLocation = r.location(location)
		if key := n.member("keyLocation"); key.given() {
			c.KeyLocation = r.location(key)
		}
		if !n.member("repository").given() {
			return
		}
	}
	repository, revision := n.member("repository"), n.member("revision")
	c.Repository = r.word("AD-04", repository)
	if c.Repository != "" && !isRepository(c.Repository) {
		r.refuse("AD-04", repository, "must begin with oci:// and be printable ASCII, is %.80q", c.Repository)
	}
	c.Revision = r.word("AD-04", revision)
	if c.Revision != "" && !isRevision(c.Revision) {
		r.refuse("AD-04", revision, "must be a Semantic Version without v and with _ for +, is %.80q", c.Revision)
	}
}

// reference reads the OCI reference that some WFMs write in place of a URL: a repository with its
// tag, or with the tag beside it.
func (r *reader) reference(c *Component, n, revision node) {
	c.Repository = n.literal
	if i := strings.LastIndexByte(n.literal, ':'); i > strings.LastIndexByte(n.literal, '/') {
		c.Repository, c.Revision = n.literal[:i], n.literal[i+1:]
	} else if revision.given() {
		c.Revision = r.word("AD-04", revision)
	}
	if !isRepository(c.Repository) || !isTag(c.Revision) {
		r.refuse("PKG-15", n, "must be oci://REGISTRY/REPOSITORY:TAG, is %.80q", n.literal)
	}
}

// location reads an absolute URL of a package or a key (PKG-15).
func (r *reader) location(n node) string {
	s := r.word("PKG-15", n)
	u, err := url.Parse(s)
	if s != "" && (err != nil || !isPrintable(s) || u.Scheme != "https" && u.Scheme != "http" || u.Host == "") {
		r.refuse("PKG-15", n, "must be an absolute http or https URL")
	}
	return s
}

// wait reads whether the next component waits (AD-06), in older documents a string.
func (r *reader) wait(n node) bool {
	if !n.given() {
		return true
	}
	if n.kind == text && (n.literal == "true" || n.literal == "false") {
		return n.literal == "true"
	}
	return r.is(boolean, "AD-06", n) && n.literal == "true"
}

// timeout reads how long the installation may take (AD-08). Positive durations in units other
// than minutes and seconds are tolerated.
func (r *reader) timeout(n node) time.Duration {
	if !n.given() {
		return 0
	}
	s := strings.TrimSpace(r.word("AD-08", n))
	timeout, err := time.ParseDuration(s)
	if err != nil || timeout <= 0 {
		r.refuse("A-29", n, "must be a positive time such as 5m0s, is %.80q", s)
		return 0
	}
	return timeout
}

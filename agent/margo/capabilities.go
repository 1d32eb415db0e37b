package margo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// MaxCapabilitiesBytes bounds a capabilities document.
const MaxCapabilitiesBytes = 256 << 10

// Capabilities is the DeviceCapabilitiesManifest: what a device is and offers.
type Capabilities struct {
	Properties Properties
	Labels     map[string]any             // as YAML and JSON decoders deliver them (CAP-09)
	Extensions map[string]json.RawMessage // x-<name>-extensions with a JSON object each (EXT-02)
}

// Properties describe the device. All four strings are required (CAP-02).
type Properties struct {
	ID           string `json:"id"` // with hierarchy for a child device (CAP-07)
	Vendor       string `json:"vendor"`
	ModelNumber  string `json:"modelNumber"`
	SerialNumber string `json:"serialNumber"`
	*Hosting            // nil: the device hosts no workloads (CAP-08)
}

// Hosting is what a device that hosts workloads offers them exclusively (CAP-04, CAP-05).
type Hosting struct {
	CPUs            []CPU            `json:"cpus"`
	Memory          Quantity         `json:"memory"`
	Storage         Quantity         `json:"storage"`
	Peripherals     []Peripheral     `json:"peripherals"`
	Interfaces      []Interface      `json:"interfaces"`
	OTelCollector   bool             `json:"otelCollector"`     // must be true
	Runtimes        []string         `json:"supportedRuntimes"` // oci, custom
	DeploymentTypes []DeploymentType `json:"supportedDeploymentTypes"`
}

// CPU is one set of cores that a single workload can be placed on (CAP-12).
type CPU struct {
	Cores        float64 `json:"cores"`
	Architecture string  `json:"architecture,omitempty"` // see Architecture; empty for one without a name
}

// Peripheral is a device attached to the device.
type Peripheral struct {
	Type         string `json:"type"` // gpu, display, camera, microphone, speaker
	Manufacturer string `json:"manufacturer,omitempty"`
	Model        string `json:"model,omitempty"`
}

// Interface is a kind of communication interface.
type Interface struct {
	Type string `json:"type"` // ethernet, wifi, cellular, bluetooth, usb, canbus, rs232
}

// Architecture gives the wire's name of an architecture from its Go or kernel name, or "" if it
// has none: such a CPU is reported without architecture.
func Architecture(name string) string {
	switch name {
	case "amd64", "x86_64":
		return "amd64"
	case "arm64", "aarch64":
		return "arm64"
	case "arm", "armv6l", "armv7l", "armv8l":
		return "arm"
	}
	return ""
}

func hostingMembers() []string {
	return []string{"cpus", "memory", "storage", "peripherals", "interfaces", "otelCollector", "supportedRuntimes", "supportedDeploymentTypes"}
}

// Marshal validates the capabilities as strictly as a WFM may and writes their rc.3 body. The
// same capabilities give the same bytes, so that a digest tells whether they have to be reported
// again (CAP-03).
func (c Capabilities) Marshal() ([]byte, error) { return c.MarshalFor(RC3) }

// MarshalFor is Marshal for any revision. Bodies before rc.3 name their kind (CAP-13) and have no
// labels and nothing custom; rc.1 has another form of what a device offers (CAP-15). Three
// indistinguishable forms of rc.2 are in use: that of rc.1, one with "cpu" in place of "cpus",
// and that of rc.3. Its body has all of them, and a WFM reads its own. What an older form has no
// place for is left out; a device that then offers nothing to run on is an error.
func (c Capabilities) MarshalFor(revision Revision) ([]byte, error) {
	data, err := c.marshal()
	if err == nil && revision != RC3 {
		data, err = c.marshalOlder(revision)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot marshal device capabilities for %s: %w", revision, err)
	}
	return data, nil
}

func (c Capabilities) marshal() ([]byte, error) {
	root := map[string]any{"properties": c.Properties.body()}
	if len(c.Labels) > 0 {
		root["labels"] = c.Labels
	}
	for name, extension := range c.Extensions {
		if !isExtension(name) {
			return nil, Errors{{"EXT-02", "/" + pathName(name), "is not the name of an extension"}}
		}
		root[name] = extension
	}
	data, err := marshalJSON(root)
	if err != nil {
		return nil, err
	}
	_, err = ParseCapabilities(data)
	return data, err
}

// body is a copy with all lists present: a device that hosts workloads omits nothing (CAP-04).
func (p Properties) body() Properties {
	if p.Hosting != nil {
		h := *p.Hosting
		h.CPUs = append([]CPU{}, h.CPUs...)
		h.Peripherals = append([]Peripheral{}, h.Peripherals...)
		h.Interfaces = append([]Interface{}, h.Interfaces...)
		h.Runtimes = append([]string{}, h.Runtimes...)
		h.DeploymentTypes = append([]DeploymentType{}, h.DeploymentTypes...)
		p.Hosting = &h
	}
	return p
}

// olderProperties are those of rc.1, and of rc.2 beside the later ones.
type olderProperties struct {
	Properties
	CPU       []CPU           `json:"cpu,omitempty"` // rc.2
	Roles     []string        `json:"roles"`
	Resources *olderResources `json:"resources,omitempty"`
}

type olderResources struct {
	CPU         CPU          `json:"cpu"`
	Memory      string       `json:"memory"`
	Storage     string       `json:"storage"`
	Peripherals []Peripheral `json:"peripherals"`
	Interfaces  []Interface  `json:"interfaces"`
}

func (c Capabilities) marshalOlder(revision Revision) ([]byte, error) {
	root := map[string]any{"apiVersion": capabilityVersion, "kind": capabilityKind}
	properties := c.Properties.body()
	if h := properties.Hosting; h != nil {
		h.Runtimes = slices.DeleteFunc(h.Runtimes, func(r string) bool { return r != "oci" })
		h.DeploymentTypes = slices.DeleteFunc(h.DeploymentTypes, func(t DeploymentType) bool { return t != Helm && t != Compose })
		if len(h.Runtimes) == 0 || len(h.DeploymentTypes) == 0 || len(h.CPUs) == 0 {
			return nil, Errors{{"CAP-14", "/properties", "has only custom runtimes or deployment types, which exist since rc.3"}}
		}
	}
	older := properties.older()
	root["properties"] = &older
	if revision == RC1 {
		older.Hosting, older.CPU = nil, nil
		return marshalJSON(root)
	}
	for name, extension := range c.Extensions {
		root[name] = extension
	}
	return marshalJSON(root)
}

// older is the form of rc.1. It has room for whole cores and one set of them: the largest, since
// a workload has to fit into one (CAP-12).
func (p Properties) older() olderProperties {
	older := olderProperties{Properties: p, Roles: []string{"Gateway"}}
	if h := p.Hosting; h != nil {
		cpu := slices.MaxFunc(h.CPUs, func(a, b CPU) int { return cmp.Compare(a.Cores, b.Cores) })
		cpu.Cores = max(math.Floor(cpu.Cores), 1)
		older.CPU, older.Roles = h.CPUs, []string{"Standalone Device"}
		older.Resources = &olderResources{
			CPU:         cpu,
			Memory:      spaced(h.Memory.String()),
			Storage:     spaced(h.Storage.String()),
			Peripherals: h.Peripherals,
			Interfaces:  h.Interfaces,
		}
	}
	return older
}

// spaced writes a quantity as in all published documents of rc.1.
func spaced(quantity string) string {
	unit := len(quantity) - len("Gi")
	return quantity[:unit] + " " + quantity[unit:]
}

// ParseCapabilities reads a capabilities document as strictly as a WFM has to: only quantities
// may be written in more than one way.
func ParseCapabilities(body []byte) (*Capabilities, error) {
	return accept("device capabilities", parseJSON, body, limits{bytes: MaxCapabilitiesBytes, depth: 32, nodes: 16 << 10}, (*reader).capabilities)
}

func (r *reader) capabilities(n node) *Capabilities {
	if !r.is(object, "CAP-13", n) {
		return nil
	}
	c := &Capabilities{}
	n.eachMember(func(name string, value node) {
		switch {
		case name == "properties" || name == "labels":
		case !isExtension(name):
			r.refuse("CAP-13", value, "is not allowed")
		case r.is(object, "EXT-02", value):
			if c.Extensions == nil {
				c.Extensions = map[string]json.RawMessage{}
			}
			c.Extensions[name] = value.json()
		}
	})
	properties, labels := n.member("properties"), n.member("labels")
	if r.is(object, "CAP-02", properties) {
		c.Properties = r.properties(properties)
	}
	if labels.kind != absent && r.is(object, "CAP-09", labels) {
		c.Labels = make(map[string]any, len(labels.members))
		labels.eachMember(func(name string, value node) {
			c.Labels[name] = r.label(value)
		})
	}
	if h := c.Properties.Hosting; h != nil && len(c.Labels) == 0 &&
		(slices.Contains(h.Runtimes, "custom") || slices.Contains(h.DeploymentTypes, Custom)) {
		r.refuse("CAP-10", labels, "is required with a custom runtime or deployment type")
	}
	return c
}

func (r *reader) properties(n node) (p Properties) {
	r.deviceID("CAP-07", n.member("id"))
	for _, name := range []string{"vendor", "modelNumber", "serialNumber"} {
		r.text("CAP-02", n.member(name))
	}
	hosts := false
	n.eachMember(func(name string, value node) {
		switch {
		case slices.Contains(hostingMembers(), name):
			hosts = true
		case !slices.Contains([]string{"id", "vendor", "modelNumber", "serialNumber"}, name):
			r.refuse("CAP-13", value, "is not allowed")
		}
	})
	if hosts {
		r.hosting(n)
	}
	if len(r.refused) == 0 {
		if err := json.Unmarshal(n.json(), &p); err != nil {
			r.refuse("CAP-14", n, "cannot be read: %s", err)
		}
	}
	return p
}

func (r *reader) hosting(n node) {
	for _, name := range []string{"memory", "storage"} {
		if quantity := n.member(name); r.is(text, "CAP-11", quantity) {
			if _, err := ParseQuantity(quantity.literal); err != nil {
				r.refuse("CAP-11", quantity, "%s", err)
			}
		}
	}
	runtimes := n.member("supportedRuntimes")
	r.list(runtimes, 1, func(n node) { r.oneOf("CAP-14", n, "oci", "custom") })
	r.list(n.member("supportedDeploymentTypes"), 1, func(n node) { r.oneOf("CAP-14", n, "helm", "compose", "custom") })
	// A published example of a device with nothing but a custom runtime has no CPUs.
	hostsOCI := slices.ContainsFunc(runtimes.items, func(t tree) bool { return t.literal == "oci" })
	if cpus := n.member("cpus"); cpus.kind != absent || hostsOCI {
		r.list(cpus, 1, r.cpu)
	}
	r.list(n.member("peripherals"), 0, func(n node) {
		r.oneOf("CAP-14", n.member("type"), "gpu", "display", "camera", "microphone", "speaker")
	})
	r.list(n.member("interfaces"), 0, func(n node) {
		r.oneOf("CAP-14", n.member("type"), "ethernet", "wifi", "cellular", "bluetooth", "usb", "canbus", "rs232")
	})
	if collector := n.member("otelCollector"); r.is(boolean, "CAP-04", collector) && collector.literal != "true" {
		r.refuse("CAP-04", collector, "must be true on a device that hosts workloads")
	}
}

// list reads a list that a hosting device must have (CAP-04).
func (r *reader) list(n node, atLeast int, f func(node)) {
	if r.is(list, "CAP-04", n) && len(n.items) < atLeast {
		r.refuse("CAP-04", n, "must have at least %d entry", atLeast)
	}
	n.each(f)
}

func (r *reader) cpu(n node) {
	if cores := n.member("cores"); r.float("CAP-12", cores) <= 0 && cores.kind == number {
		r.refuse("CAP-12", cores, "must be more than 0")
	}
	if architecture := n.member("architecture"); architecture.kind != absent {
		r.oneOf("CAP-14", architecture, "amd64", "arm64", "arm")
	}
}

// label reads a string, a number, a boolean, or an array of strings or of numbers (CAP-09).
func (r *reader) label(n node) json.RawMessage {
	switch n.kind {
	case text, number, boolean:
	case list:
		n.each(func(item node) {
			if item.kind != text && item.kind != number || item.kind != n.items[0].kind {
				r.refuse("CAP-09", item, "must be a string or a number like the elements before it, is %s", item.kind)
			}
		})
	default:
		r.refuse("CAP-09", n, "must be a string, a number, a boolean or an array of strings or numbers, is %s", n.kind)
	}
	return n.json()
}

package policy

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-units"
)

// maxRefusals bounds the refusals of one deployment.
const maxRefusals = 64

// Allow is what workloads may ask for. The zero value allows nothing of it; see DefaultAllow.
type Allow struct {
	Privileged bool `yaml:"privileged"`
	// Namespaces of the device that may be joined: network, pid, ipc, uts, cgroup.
	Namespaces map[string]bool `yaml:"namespaces" names:"namespaces"`
	// Mounts says how paths on the device, and everything below them, may be mounted; the longest
	// matching path decides. A directory that contains a forbidden path may not be mounted itself,
	// unless it has an entry.
	Mounts map[string]MountAccess `yaml:"mounts" names:"mount" is:"access"`
	// Devices are path.Match patterns of device paths, of directories of devices and of CDI names,
	// and device rules without permissions such as "c 188:*". "*" matches everything else. An entry
	// for exactly this device decides, otherwise the longest match. A directory that contains a
	// forbidden device may not be used itself, unless it has an entry.
	Devices map[string]bool `yaml:"devices" names:"device"`
	// Capabilities that may be added, such as NET_ADMIN, or ALL for all at once; "*" matches
	// everything else. Those of an ordinary container are always allowed.
	Capabilities map[string]bool `yaml:"capabilities" names:"capability"`
	// Unconfined names protections that may be switched off: seccomp, apparmor, systempaths.
	Unconfined map[string]bool `yaml:"unconfined" names:"unconfined"`
	// Shared names volumes, networks and containers open to every deployment; "*": all.
	Shared []string `yaml:"shared" is:"shared" most:"256"`
	// Ports of the device that may be published.
	Ports []PortRange `yaml:"ports" most:"64"`
	// Registries that images may come from, as host[:port]; "*": all.
	Registries []string `yaml:"registries" is:"registry" most:"64"`
	// Tags allows images named by a tag without a digest.
	Tags bool `yaml:"tags"`
	// Unsigned allows unsigned packages, and UnsignedImages unsigned images.
	Unsigned       bool `yaml:"unsigned"`
	UnsignedImages bool `yaml:"unsignedImages"`
	// CPUs (cores), Memory and Storage (bytes) bound all reservations; 0: what the device has.
	CPUs    float64 `yaml:"cpus"`
	Memory  int64   `yaml:"memory"`
	Storage int64   `yaml:"storage"`
}

// Ask is what a deployment asks of the device.
type Ask struct {
	Services []ServiceAsk
	// Held is what the other deployments have reserved.
	Held Resources
	// Device is what the device has.
	Device Resources
	// Own are the paths of the agent's own state, which must not be mounted.
	Own []string
	// Locks is a directory among them; empty: none. A deployment may mount Locks/ITS-ID; anything
	// else in it needs an entry in Allow.Mounts, since those locks delay other deployments.
	Locks string
}

// Resources are shares of the device. 0 for the device itself: unknown.
type Resources struct {
	CPUs            float64 // cores
	Memory, Storage int64   // bytes
}

// ServiceAsk is what one service asks for.
type ServiceAsk struct {
	Component, Service string

	Privileged   bool
	Namespaces   []string // of the device
	Mounts       []MountAsk
	Devices      []string // paths on the device, CDI names, and rules such as "c 188:* rwm"
	Capabilities []string // added ones such as CAP_NET_ADMIN, or ALL
	Unconfined   []string // seccomp, apparmor, systempaths
	Shared       []string // volumes, networks and containers of others
	Ports        []PortRange
	Image        string // normalised reference
	Registry     string // of the image, host[:port]
	Pinned       bool   // the image is named by its digest
	Signed       bool   // the package of its component was signed
	Unsigned     string // why the image counts as unsigned; empty: signed, or not checked
	Reserved     Resources
}

// MountAsk is a path of the device that a service mounts.
type MountAsk struct {
	Path     string // absolute and clean, links resolved as far as they exist
	ReadOnly bool
}

// Refusal is one rule that a deployment breaks.
type Refusal struct {
	// Rule is the configuration key that would allow it, such as policy.allow.privileged.
	Rule string
	// Component and Service are empty if it is about the whole deployment.
	Component string
	Service   string
	Text      string // what is asked for, for people: "joins the pid namespace of the device"
}

// Admit returns the rules, the same for all deployments, that this one breaks; none: admitted.
func (g *Gate) Admit(deployment string, ask Ask) []Refusal {
	a := admission{gate: g, allow: &g.o.Allow, ask: &ask, deployment: deployment}
	for i := range ask.Services {
		a.judge(&ask.Services[i])
	}
	a.resources()
	return a.refusals
}

type admission struct {
	gate  *Gate
	allow *Allow
	ask   *Ask

	deployment string
	// What is being judged; empty: the deployment as a whole.
	component, service string
	refusals           []Refusal
}

// refuse records the rule and its entry, which is empty for rules without entries.
func (a *admission) refuse(rule, entry, format string, args ...any) {
	if entry != "" {
		rule = entryKey(rule, entry)
	}
	r := Refusal{"policy.allow." + rule, a.component, a.service, clip(fmt.Sprintf(format, args...), 2*maxWords)}
	if len(a.refusals) < maxRefusals && !slices.Contains(a.refusals, r) {
		a.refusals = append(a.refusals, r)
	}
}

// entryKey spells the key of an entry as configuration errors do.
func entryKey(rule, entry string) string {
	word := !strings.ContainsFunc(entry, func(r rune) bool { return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') })
	if word {
		return rule + "." + entry
	}
	return rule + "[" + strings.Trim(strconv.Quote(entry), `"`) + "]"
}

func (a *admission) judge(s *ServiceAsk) {
	a.component, a.service = s.Component, s.Service
	if s.Privileged && !a.allow.Privileged {
		a.refuse("privileged", "", "is privileged")
	}
	for _, n := range s.Namespaces {
		if !a.allow.Namespaces[n] {
			a.refuse("namespaces", n, "joins the %s namespace of the device", n)
		}
	}
	for _, m := range s.Mounts {
		a.mount(m)
	}
	for _, d := range s.Devices {
		if entry, why, ok := a.gate.device(d); !ok {
			a.refuse("devices", entry, "uses device %s%s", d, why)
		}
	}
	for _, c := range s.Capabilities {
		if name := strings.TrimPrefix(strings.ToUpper(c), "CAP_"); !a.capability(name) {
			a.refuse("capabilities", name, "adds capability %s", name)
		}
	}
	for _, u := range s.Unconfined {
		if !a.allow.Unconfined[u] {
			a.refuse("unconfined", u, "switches %s off", u)
		}
	}
	for _, name := range s.Shared {
		if !slices.Contains(a.allow.Shared, "*") && !slices.Contains(a.allow.Shared, name) {
			a.refuse("shared", "", "shares %s with others", name)
		}
	}
	for _, p := range s.Ports {
		if !a.port(p) {
			a.refuse("ports", "", "publishes port %s", p)
		}
	}
	if s.Image != "" {
		a.image(s)
	}
	if !s.Signed && !a.allow.Unsigned {
		a.service = ""
		a.refuse("unsigned", "", "comes in an unsigned package")
	}
}

func (a *admission) capability(name string) bool {
	if allowed, ok := a.allow.Capabilities[name]; ok || name == "ALL" {
		return allowed
	}
	return slices.Contains(ordinary, name) || a.allow.Capabilities["*"]
}

// port reports whether every port of a range may be published. Port 0: the device chooses one.
func (a *admission) port(p PortRange) bool {
	if p.First == 0 {
		return p.Last == 0 && len(a.allow.Ports) > 0
	}
	for at := uint32(p.First); at <= uint32(p.Last); {
		end := uint32(0)
		for _, r := range a.allow.Ports {
			if uint32(r.First) <= at && at <= uint32(r.Last) {
				end = max(end, uint32(r.Last))
			}
		}
		if end == 0 {
			return false
		}
		at = end + 1
	}
	return true
}

func (a *admission) image(s *ServiceAsk) {
	fits := func(r string) bool { return r == "*" || strings.EqualFold(r, s.Registry) }
	if !slices.ContainsFunc(a.allow.Registries, fits) {
		a.refuse("registries", "", "takes image %s from registry %s", s.Image, s.Registry)
	}
	if !s.Pinned && !a.allow.Tags {
		a.refuse("tags", "", "names image %s without a digest", s.Image)
	}
	if s.Unsigned != "" && !a.allow.UnsignedImages {
		a.refuse("unsignedImages", "", "runs image %s: %s", s.Image, s.Unsigned)
	}
}

// resources refuses reservations that do not fit beside those of others.
func (a *admission) resources() {
	a.component, a.service = "", ""
	asked := Reserved(a.ask.Services)
	all, has := asked.Plus(a.ask.Held), a.ask.Device
	cores := func(n float64) string { return strconv.FormatFloat(milli(n), 'f', -1, 64) }
	for _, r := range []struct {
		rule, of                 string
		asked, all, allowed, has float64
		text                     func(float64) string
	}{
		{"cpus", "cores", milli(asked.CPUs), milli(all.CPUs), milli(a.allow.CPUs), milli(has.CPUs), cores},
		{"memory", "of memory", float64(asked.Memory), float64(all.Memory), float64(a.allow.Memory), float64(has.Memory), units.BytesSize},
		{"storage", "of storage", float64(asked.Storage), float64(all.Storage), float64(a.allow.Storage), float64(has.Storage), units.BytesSize},
	} {
		most, whose := r.allowed, "the configured limit"
		if most <= 0 {
			most, whose = r.has, "all that the device has"
		}
		if r.asked > 0 && most > 0 && r.all > most { // otherwise the amount is unknown
			a.refuse(r.rule, "", "reserves %s %s; with the %s of other deployments that exceeds %s, %s",
				r.text(r.asked), r.of, r.text(r.all-r.asked), r.text(most), whose)
		}
	}
}

// Reserved returns the total reservations of services.
func Reserved(services []ServiceAsk) (all Resources) {
	for _, s := range services {
		all = all.Plus(s.Reserved)
	}
	return all
}

// Plus adds resources; the numbers may be arbitrary.
func (r Resources) Plus(o Resources) Resources {
	add := func(a, b int64) int64 {
		a, b = max(a, 0), max(b, 0)
		return a + min(b, math.MaxInt64-a)
	}
	cpus := r.CPUs
	if o.CPUs > 0 { // and not NaN
		cpus += o.CPUs
	}
	return Resources{cpus, add(r.Memory, o.Memory), add(r.Storage, o.Storage)}
}

// milli rounds cores to thousandths, the finest useful reservation.
func milli(cores float64) float64 { return math.Round(cores*1000) / 1000 }

func (a *admission) mount(m MountAsk) {
	how := "mounts " + m.Path
	if !path.IsAbs(m.Path) {
		a.refuse("mounts", "", "%s, which is not an absolute path", how)
		return
	}
	at, top := place(m.Path), "/"
	if locks := place(a.ask.Locks); a.ask.Locks != "" && within(at, locks) {
		if own := path.Join(locks, a.deployment); own != locks && within(at, own) {
			return
		}
		how, top = how+", whose locks hold up other deployments", locks
	}
	for _, own := range a.ask.Own {
		if top == "/" && within(at, place(own)) {
			a.refuse("mounts", "", "%s, where margolite keeps its own state; this is never allowed", how)
			return
		}
	}
	if why, ok := a.gate.mount(at, top, m.ReadOnly, a.ask.Own); !ok {
		a.refuse("mounts", at, "%s%s", how, why)
	}
}

package agent

import (
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/port"
)

const (
	maxDifferences = 400 // lines of one change, in all
	maxShown       = 200 // bytes of one value
)

// stagedRevision is a revision as it would run; the zero value: nothing.
type stagedRevision struct {
	doc        *margo.Deployment
	components []stagedComponent // in the order of the document
	parameters map[string]string
	secrets    []string // values that must not be shown anywhere
	unread     []string // parameters that no service reads
}

type stagedComponent struct {
	name    string
	signed  bool
	project *runtime.Project
	images  map[string]digest.Digest // by reference; of a staged revision, the digests known so far
}

// differ collects the changes to a deployment, as far as there is room.
type differ struct {
	Services   []control.ServiceChange `json:"services,omitempty"`
	Parameters []control.ValueChange   `json:"parameters,omitempty"`
	Cut        bool                    `json:"cut,omitempty"` // there was more

	left    int // lines
	secrets []string
}

// difference describes what changes when one revision replaces another, for the person who
// approves it. size gives the bytes of an image.
func difference(from, to stagedRevision, size func(ref string, d digest.Digest) int64) differ {
	d := differ{left: maxDifferences, secrets: slices.Concat(from.secrets, to.secrets)}
	d.Parameters = d.values(from.parameters, to.parameters)
	done := map[string]bool{}
	for _, c := range slices.Concat(to.components, from.components) { // first those that stay or come
		name := c.name
		if done[name] {
			continue
		}
		done[name] = true
		a, b := from.component(name).views(), to.component(name).views()
		for _, service := range slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))))) {
			c := d.service(a[service], b[service])
			if c == nil {
				continue
			}
			if d.Cut {
				return d
			}
			c.Component, c.Service = name, service
			if i := c.Image; i != nil && i.ToDigest != "" {
				i.Bytes = size(b[service].service.Image, digest.Digest(i.ToDigest))
			}
			d.Services = append(d.Services, *c)
		}
	}
	return d
}

func (r stagedRevision) component(name string) stagedComponent {
	i := slices.IndexFunc(r.components, func(c stagedComponent) bool { return c.name == name })
	if i < 0 {
		return stagedComponent{}
	}
	return r.components[i]
}

// view is a service in the form in which it is compared.
type view struct {
	service                    *compose.Service
	image                      string
	digest                     digest.Digest
	ports, volumes, privileges []string
	keys                       map[string][]any // everything else, by the key of a Compose file
}

func (c stagedComponent) views() map[string]*view {
	if c.project == nil {
		return nil
	}
	read, views := filesRead(c.project), map[string]*view{}
	for _, a := range asksOf(c) {
		s := c.project.Compose.Services[a.Service]
		v := &view{service: s, image: familiar(s.Image), digest: c.images[s.Image], keys: otherKeys(c.project, s)}
		for _, p := range s.Ports {
			for _, on := range c.project.Compose.PortAddresses(s, p) {
				v.ports = append(v.ports, portShown(p, on))
			}
		}
		for _, m := range s.Mounts {
			v.volumes = append(v.volumes, mountShown(c.project, m))
		}
		for _, t := range s.Tmpfs {
			v.volumes = append(v.volumes, strings.TrimSuffix("tmpfs:"+t.Target+":"+strings.Join(t.Options, ","), ":"))
		}
		v.privileges = privilegesShown(a, s, read)
		for _, at := range s.Attached { // names of its own choice, which others may have as well
			if n := c.project.Compose.Networks[at.Network]; n != nil && !n.External && !mayBeOf(n.Name, c.project.Labels[labelDeployment]) {
				v.privileges = append(v.privileges, "shared "+n.Name)
			}
		}
		views[a.Service] = v
	}
	return views
}

func (d *differ) service(a, b *view) *control.ServiceChange {
	c := control.ServiceChange{Change: "changed"}
	switch {
	case a == nil:
		a, c.Change = &view{}, "added"
	case b == nil:
		b, c.Change = &view{}, "removed"
	}
	if a.image != b.image || a.digest != b.digest {
		c.Image = &control.ImageChange{From: a.image, To: b.image, FromDigest: a.digest.String(), ToDigest: b.digest.String()}
	}
	if c.Change != "removed" {
		c.Ports, c.Volumes, c.Privileges = d.list(a.ports, b.ports), d.list(a.volumes, b.volumes), d.list(a.privileges, b.privileges)
	}
	if c.Change == "changed" {
		c.Environment = d.values(a.service.Environment, b.service.Environment)
		for _, key := range slices.Sorted(maps.Keys(b.keys)) {
			said := (key == "volumes" || key == "tmpfs") && c.Volumes != nil || key == "ports" && c.Ports != nil ||
				c.Privileges != nil && slices.Contains(privilegeKeys, key)
			if !said && !reflect.DeepEqual(a.keys[key], b.keys[key]) {
				c.Other = append(c.Other, key)
			}
		}
		if reflect.DeepEqual(c, control.ServiceChange{Change: "changed"}) {
			return nil
		}
	}
	d.line()
	return &c
}

func (d *differ) line() bool {
	d.left--
	d.Cut = d.Cut || d.left < 0
	return d.left >= 0
}

func (d *differ) values(from, to map[string]string) []control.ValueChange {
	names := map[string]string{}
	maps.Copy(names, from)
	maps.Copy(names, to)
	var changes []control.ValueChange
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, was := from[name]
		b, is := to[name]
		if was == is && a == b {
			continue
		}
		if !d.line() {
			break
		}
		c := control.ValueChange{Name: shortened(name, maxShown)}
		hidden := d.isSecret(name, a) || d.isSecret(name, b)
		if was {
			c.From = valueShown(a, hidden)
		}
		if is {
			c.To = valueShown(b, hidden)
		}
		changes = append(changes, c)
	}
	return changes
}

func valueShown(value string, hidden bool) *string {
	if hidden {
		value = control.Hidden
	}
	value = shortened(value, maxShown)
	return &value
}

// list compares lists regardless of order; nil: they are the same.
func (d *differ) list(from, to []string) *control.ListChange {
	var c control.ListChange
	missing := func(in, of []string) (missing []string) {
		for _, entry := range slices.Compact(slices.Sorted(slices.Values(of))) {
			if slices.Contains(in, entry) {
				continue
			}
			if !d.line() {
				break
			}
			missing = append(missing, shortened(entry, maxShown))
		}
		return missing
	}
	c.Removed, c.Added = missing(to, from), missing(from, to)
	if len(c.Removed)+len(c.Added) == 0 {
		return nil
	}
	return &c
}

var (
	// secretWords are parts of the names of values that only their users may see.
	secretWords   = []string{"pass", "pwd", "token", "key", "secret", "credential", "auth", "cookie", "private", "signature", "salt", "pin", "dsn"}
	passwordInURL = regexp.MustCompile(`://[^/@\s]*:[^/@\s]*@`)
)

// isSecret guesses by name and form whether a value must not be shown.
func isSecret(name, value string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(secretWords, func(word string) bool { return strings.Contains(name, word) }) ||
		passwordInURL.MatchString(value) || strings.Contains(value, "PRIVATE KEY-----")
}

func (d *differ) isSecret(name, value string) bool {
	return isSecret(name, value) || slices.ContainsFunc(d.secrets, func(secret string) bool { return strings.Contains(value, secret) })
}

func familiar(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	return reference.FamiliarString(named)
}

func portShown(p compose.Port, on netip.Addr) string {
	host := "any"
	if p.HostPort != 0 {
		host = strconv.Itoa(int(p.HostPort))
		if p.LastPort > p.HostPort {
			host += "-" + strconv.Itoa(int(p.LastPort))
		}
	}
	return port.Text(on, host, p.ContainerPort, p.Protocol)
}

// mountShown is a mount in the short form of a Compose file.
func mountShown(p *runtime.Project, m compose.Mount) string {
	source := sourceShown(p, m)
	if v := p.Compose.Volumes[m.Volume]; m.Volume != "" && v != nil && v.Type != "" {
		source += " (" + v.Type + " " + v.Device + ")" // without the options: one may be a password
	}
	var options []string
	if m.ReadOnly {
		options = append(options, "ro")
	}
	if m.Propagation != "" {
		options = append(options, m.Propagation)
	}
	shown := m.Target
	if source != "" {
		shown = source + ":" + m.Target
	}
	if len(options) > 0 {
		shown += ":" + strings.Join(options, ",")
	}
	return shown
}

// sourceShown is the source of a mount. Files of the package have their Compose names, since
// their paths change with each package.
func sourceShown(p *runtime.Project, m compose.Mount) string {
	switch {
	case m.Volume != "":
		return m.Volume
	case m.Path == "":
		return ""
	}
	if within(p.Directory, m.Path) {
		if rel, err := filepath.Rel(p.Compose.WorkingDir, m.Path); err == nil {
			if filepath.IsLocal(rel) && rel != "." {
				rel = "./" + rel
			}
			return rel
		}
	}
	return m.Path
}

var privilegeKeys = []string{
	"privileged", "network_mode", "pid", "ipc", "uts", "cgroup", "devices", "device_cgroup_rules", "gpus",
	"cap_add", "security_opt", "post_start", "pre_stop",
}

// privilegesShown are a service's asks other than ports and volumes, as in a Compose file.
func privilegesShown(a policy.ServiceAsk, s *compose.Service, files []string) []string {
	var all []string
	add := func(key string, values ...string) {
		for _, v := range values {
			all = append(all, key+" "+v)
		}
	}
	if a.Privileged && !s.Privileged {
		all = append(all, "privileged hook")
	} else if a.Privileged {
		all = append(all, "privileged")
	}
	namespaces := namespacesOf(s)
	for _, kind := range slices.Sorted(maps.Keys(namespaces)) {
		n := namespaces[kind]
		switch {
		case n.Mode == compose.ModeContainer && slices.Contains(a.Shared, n.Of):
			add(kind, "container:"+n.Of)
		case n.Mode == compose.ModeHost:
			add(kind, "host")
		case slices.Contains(a.Namespaces, kind): // macvlan and ipvlan
			add(kind, "via an interface of the device")
		}
	}
	add("shared", a.Shared...)
	for _, d := range s.Devices { // as written; a.Devices also has what they lead to
		add("device", d.Path)
	}
	add("device", s.CDI...)
	for _, rule := range s.DeviceRules {
		add("device_cgroup_rules", rule)
	}
	for _, name := range a.Capabilities {
		add("cap_add", strings.TrimPrefix(name, "CAP_"))
	}
	for _, kind := range a.Unconfined {
		custom := kind == "seccomp" && s.Seccomp.Profile != nil || kind == "apparmor" && s.AppArmor != "unconfined"
		if custom {
			add("security_opt", kind+" (custom)")
		} else {
			add("security_opt", kind+"=unconfined")
		}
	}
	add("file", files...)
	return all
}

// otherKeys are the remaining values of a service by the keys in their tags, for comparison
// alone. Fields without a tag are compared elsewhere or irrelevant.
func otherKeys(p *runtime.Project, s *compose.Service) map[string][]any {
	keys := map[string][]any{}
	compared := *s
	compared.Devices, compared.Mounts = slices.Clone(s.Devices), slices.Clone(s.Mounts)
	for i := range compared.Devices {
		compared.Devices[i].Real = "" // changes with what is plugged in
	}
	for i := range compared.Mounts {
		m := &compared.Mounts[i]
		if v := p.Compose.Volumes[m.Volume]; v != nil {
			volume := *v
			volume.Real = ""
			keys["volumes"] = append(keys["volumes"], volume)
		}
		if m.Path != "" && within(p.Directory, m.Path) {
			keys["files of the package"] = []any{p.Digest}
		}
		m.Path, m.Real = sourceShown(p, *m), ""
	}
	for _, a := range s.Attached {
		if n := p.Compose.Networks[a.Network]; n != nil {
			keys["networks"] = append(keys["networks"], *n)
		}
	}
	fields := reflect.ValueOf(compared)
	for i := range fields.NumField() {
		name, key, f := fields.Type().Field(i).Name, fields.Type().Field(i).Tag.Get("key"), fields.Field(i)
		if key == "" {
			continue
		}
		value := f.Interface()
		if (f.Kind() == reflect.Slice || f.Kind() == reflect.Map) && f.Len() == 0 && name != "Command" && name != "Entrypoint" {
			value = nil // none and an empty list are the same
		}
		keys[key] = append(keys[key], value)
	}
	return keys
}

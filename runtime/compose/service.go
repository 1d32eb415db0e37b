package compose

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/distribution/reference"
)

const (
	maxServices = 64
	maxMounts   = 128  // of one service
	maxName     = 128  // bytes of the name of a project, service, container or volume
	maxLabel    = 4096 // bytes of key and value; what containerd accepts
)

// reservedLabels are read back to learn what runs; a project cannot set them.
var reservedLabels = []string{"com.docker.compose.", "containerd.io/", "io.containerd.", "margolite/", "nerdctl/"}

// isProjectName tells names that Compose accepts for a project.
func isProjectName(s string) bool {
	return isResourceName(s) && strings.ToLower(s) == s && !strings.Contains(s, ".")
}

// isResourceName tells names that may become names of files on the device.
func isResourceName(s string) bool {
	if s == "" || len(s) > maxName || strings.ContainsRune("_.-", rune(s[0])) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_.-", r)
	})
}

// resolve fills p.Services from the model and finds values that this runtime
// does not do.
func (l *loading) resolve(p *Project, env types.Mapping) {
	if len(p.Compose.Services) == 0 || len(p.Compose.Services) > maxServices {
		l.findings.add("", "services", "are %d; a project has at least 1 and at most %d", len(p.Compose.Services), maxServices)
		return
	}
	volumes := l.volumes(p.Compose)
	for name := range p.Compose.Services {
		r := &resolver{loading: l, service: name}
		p.Services[name] = r.resolve(p.Compose.Services[name], volumes, env)
	}
	l.checkDependencies(p)
	l.checkPorts(p)
	l.checkContainerNames(p)
}

// volumes gives the volumes their names within the project.
func (l *loading) volumes(project *types.Project) map[string]string {
	names := map[string]string{}
	taken := map[string]string{}
	for _, key := range project.VolumeNames() {
		v := project.Volumes[key]
		name := cmp.Or(v.Name, key)
		switch other, conflict := taken[name]; {
		case !isResourceName(key), !isResourceName(name):
			l.findings.add("", "volumes."+key, "has a name that is not letters, digits, _, . and -")
		case conflict:
			l.findings.add("", "volumes."+key, "has the name of volume %q", other)
		case v.Driver != "" && v.Driver != "local":
			l.findings.add("", "volumes."+key+".driver", "%q is not supported, only local", v.Driver)
		}
		taken[name] = key
		names[key] = name
	}
	return names
}

// resolver resolves one service.
type resolver struct {
	*loading
	service string
}

func (r *resolver) refuse(key, format string, args ...any) {
	r.findings.add(r.service, key, format, args...)
}

func (r *resolver) resolve(c types.ServiceConfig, volumes map[string]string, env types.Mapping) *Service {
	if !isResourceName(r.service) {
		r.refuse("services", "has a name that is not letters, digits, _, . and -")
	}
	s := &Service{
		Name:          r.service,
		ContainerName: c.ContainerName,
		Image:         r.image(c.Image),
		Entrypoint:    c.Entrypoint,
		Command:       c.Command,
		Environment:   r.environment(c, env),
		WorkingDir:    c.WorkingDir,
		User:          c.User,
		Labels:        r.labels(c.Labels),
		Mounts:        r.mounts(c.Volumes, volumes),
		Tmpfs:         r.tmpfs(c.Tmpfs),
		Ports:         r.ports(c.Ports),
		ReadOnly:      c.ReadOnly,
		Restart:       r.restart(c.Restart),
		DependsOn:     r.dependsOn(c.DependsOn),
	}
	s.Memory, s.NanoCPUs = r.limits(c)
	if c.ContainerName != "" && !isResourceName(c.ContainerName) {
		r.refuse("container_name", "is not letters, digits, _, . and -")
	}
	if c.WorkingDir != "" && !path.IsAbs(c.WorkingDir) {
		r.refuse("working_dir", "%q is not absolute", c.WorkingDir)
	}
	targets := map[string]bool{}
	for _, m := range s.Mounts {
		if targets[m.Target] {
			r.refuse("volumes", "mount %s twice", m.Target)
		}
		targets[m.Target] = true
	}
	for _, t := range s.Tmpfs {
		if targets[t.Target] {
			r.refuse("tmpfs", "mounts %s, where something else is mounted", t.Target)
		}
		targets[t.Target] = true
	}
	return s
}

func (r *resolver) image(written string) string {
	if written == "" {
		r.refuse("image", "is missing")
		return ""
	}
	ref, err := reference.ParseDockerRef(written)
	if err != nil {
		r.refuse("image", "%q is not an image reference: %s", written, err)
		return ""
	}
	return ref.String()
}

// environment takes, from least to most important, the files of env_file in
// order and the entries of environment; entries without a value take it from env.
func (r *resolver) environment(c types.ServiceConfig, env types.Mapping) map[string]string {
	resolved := map[string]string{}
	written := c.Environment.Resolve(env.Resolve)
	lookup := func(name string) (string, bool) {
		if value, ok := env.Resolve(name); ok {
			return value, true
		}
		if value := written[name]; value != nil {
			return *value, true
		}
		value, ok := resolved[name]
		return value, ok
	}
	for _, file := range c.EnvFiles {
		abs, err := r.files.allowed(r.files.dir, file.Path)
		if err != nil {
			if len(r.findings) == 0 { // it was said in the words of the file before
				r.refuse("env_file", "%q %s", file.Path, err)
			}
			continue
		}
		if _, err := r.files.stat(abs); err != nil && !bool(file.Required) {
			continue
		}
		vars, err := r.files.readEnv(abs, r.in, lookup)
		if err != nil {
			r.failures = append(r.failures, fmt.Errorf("service %q: env_file: %w", r.service, err))
			continue
		}
		for name, value := range vars {
			resolved[name] = value
		}
	}
	for name, value := range written {
		if value != nil {
			resolved[name] = *value
			continue
		}
		delete(resolved, name)
		r.warn("service %q: environment names %q without a value and nothing sets it; it is left out", r.service, name)
	}
	for name, value := range resolved {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			r.refuse("environment", "has a malformed entry %q", name)
		}
	}
	return resolved
}

func (r *resolver) labels(labels types.Labels) map[string]string {
	for key, value := range labels {
		for _, prefix := range reservedLabels {
			if strings.HasPrefix(key, prefix) {
				r.refuse("labels", "cannot have %q: names that begin with %s are reserved", key, prefix)
			}
		}
		if key == "" || len(key)+len(value) > maxLabel {
			r.refuse("labels", "have an entry that is empty or has more than %d bytes", maxLabel)
		}
	}
	return labels
}

func (r *resolver) mounts(configs []types.ServiceVolumeConfig, volumes map[string]string) []Mount {
	var mounts []Mount
	if len(configs) > maxMounts {
		r.refuse("volumes", "are %d, at most %d are mounted into a container", len(configs), maxMounts)
		return nil
	}
	for _, c := range configs {
		m := Mount{Target: r.target("volumes", c.Target), ReadOnly: c.ReadOnly}
		switch {
		case c.Type == types.VolumeTypeBind:
			if !filepath.IsAbs(c.Source) {
				r.refuse("volumes", "has source %q, which is not a path", c.Source)
			}
			m.Path = filepath.Clean(c.Source)
			m.Create = c.Bind == nil || bool(c.Bind.CreateHostPath)
			if c.Bind != nil && c.Bind.Propagation != "" {
				if m.Propagation = c.Bind.Propagation; !isPropagation(m.Propagation) {
					r.refuse("volumes.bind.propagation", "%q is not supported", m.Propagation)
				}
			}
		case c.Type == types.VolumeTypeVolume && c.Source == "":
			r.refuse("volumes", "mounts a volume without a name at %s; give it one, or its data is not found again", c.Target)
		case c.Type == types.VolumeTypeVolume:
			name, defined := volumes[c.Source]
			if !defined {
				r.refuse("volumes", "names %q, which is not defined under the top-level volumes", c.Source)
			}
			m.Volume = name
			m.NoCopy = c.Volume != nil && c.Volume.NoCopy
		case c.Type == types.VolumeTypeTmpfs:
			r.refuse("volumes.type", "tmpfs is not supported; use tmpfs")
		default:
			r.refuse("volumes.type", "%q is not supported", c.Type)
		}
		mounts = append(mounts, m)
	}
	slices.SortFunc(mounts, func(a, b Mount) int { return cmp.Compare(a.Target, b.Target) })
	return mounts
}

// target is a place in the container where something is mounted.
func (r *resolver) target(key, written string) string {
	target := path.Clean(written)
	if !path.IsAbs(written) || target == "/" || strings.ContainsRune(written, 0) {
		r.refuse(key, "has target %q, which is not an absolute path below /", written)
	}
	return target
}

func (r *resolver) tmpfs(written []string) []Tmpfs {
	var all []Tmpfs
	for _, w := range written {
		target, options, _ := strings.Cut(w, ":")
		t := Tmpfs{Target: r.target("tmpfs", target)}
		for option := range strings.SplitSeq(options, ",") {
			if option == "" {
				continue
			}
			if !isTmpfsOption(option) {
				r.refuse("tmpfs", "has option %q, which is not supported", option)
			}
			t.Options = append(t.Options, option)
		}
		slices.Sort(t.Options)
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b Tmpfs) int { return cmp.Compare(a.Target, b.Target) })
	return all
}

func isTmpfsOption(option string) bool {
	name, value, assigned := strings.Cut(option, "=")
	switch name {
	case "rw", "ro", "exec", "noexec", "suid", "nosuid", "dev", "nodev", "noatime":
		return !assigned
	case "size", "nr_inodes":
		_, err := strconv.ParseUint(strings.TrimRight(value, "kKmMgG%"), 10, 62)
		return err == nil
	case "uid", "gid":
		_, err := strconv.ParseUint(value, 10, 32)
		return err == nil
	case "mode":
		_, err := strconv.ParseUint(value, 8, 12)
		return err == nil
	}
	return false
}

func (r *resolver) ports(configs []types.ServicePortConfig) []Port {
	var ports []Port
	for _, c := range configs {
		p := Port{Protocol: strings.ToLower(cmp.Or(c.Protocol, "tcp"))}
		if p.Protocol != "tcp" && p.Protocol != "udp" {
			r.refuse("ports", "has protocol %q, only tcp and udp are supported", c.Protocol)
		}
		if c.Target < 1 || c.Target > math.MaxUint16 {
			r.refuse("ports", "has target %d, which is not a port", c.Target)
			continue
		}
		p.ContainerPort = uint16(c.Target)
		host, err := strconv.ParseUint(c.Published, 10, 16)
		switch {
		case c.Published == "", err == nil && host == 0:
			r.refuse("ports", "publishes %d without a port of the device; write \"%d:%d\"", c.Target, c.Target, c.Target)
		case err != nil:
			r.refuse("ports", "publishes %d as %q, which is not one port", c.Target, c.Published)
		}
		p.HostPort = uint16(host)
		if c.HostIP != "" {
			if p.HostIP, err = netip.ParseAddr(c.HostIP); err != nil || p.HostIP.Zone() != "" {
				r.refuse("ports", "has host_ip %q, which is not an address", c.HostIP)
			}
		}
		ports = append(ports, p)
	}
	slices.SortFunc(ports, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.HostPort, b.HostPort), cmp.Compare(a.Protocol, b.Protocol),
			a.HostIP.Compare(b.HostIP), cmp.Compare(a.ContainerPort, b.ContainerPort))
	})
	return slices.Compact(ports)
}

func (r *resolver) restart(written string) Restart {
	mode, retries, bounded := strings.Cut(cmp.Or(written, string(RestartNo)), ":")
	restart := Restart{Mode: RestartMode(mode)}
	switch restart.Mode {
	case RestartNo, RestartAlways, RestartUnlessStopped:
		if !bounded {
			return restart
		}
	case RestartOnFailure:
		if !bounded {
			return restart
		}
		n, err := strconv.ParseInt(retries, 10, 32)
		if err == nil && n >= 0 {
			restart.MaxRetries = int(n)
			return restart
		}
	}
	r.refuse("restart", "%q is not no, always, unless-stopped, on-failure or on-failure:<number>", written)
	return restart
}

func (r *resolver) dependsOn(d types.DependsOnConfig) []string {
	var names []string
	for name, dependency := range d {
		if dependency.Condition != types.ServiceConditionStarted {
			r.refuse("depends_on."+name+".condition", "%q is not supported, only service_started", dependency.Condition)
		}
		if !dependency.Required {
			r.refuse("depends_on."+name+".required", "false is not supported")
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// limits takes the limits from the keys of a service or of its deploy section.
func (r *resolver) limits(c types.ServiceConfig) (memory, nanoCPUs int64) {
	memory, nanoCPUs = int64(c.MemLimit), r.nanoCPUs("cpus", c.CPUS)
	if c.Deploy == nil || c.Deploy.Resources.Limits == nil {
		return r.memory("mem_limit", memory), nanoCPUs
	}
	limits := c.Deploy.Resources.Limits
	if other := int64(limits.MemoryBytes); other != 0 {
		if memory != 0 && memory != other {
			r.refuse("mem_limit", "differs from deploy.resources.limits.memory")
		}
		memory = r.memory("deploy.resources.limits.memory", other)
	}
	if other := r.nanoCPUs("deploy.resources.limits.cpus", float32(limits.NanoCPUs)); other != 0 {
		if nanoCPUs != 0 && nanoCPUs != other {
			r.refuse("cpus", "differs from deploy.resources.limits.cpus")
		}
		nanoCPUs = other
	}
	return r.memory("mem_limit", memory), nanoCPUs
}

func (r *resolver) memory(key string, bytes int64) int64 {
	const least = 6 << 20 // less does not start a container
	if bytes != 0 && bytes < least {
		r.refuse(key, "is %d bytes, at least 6m are needed", bytes)
	}
	return bytes
}

// nanoCPUs is exact for what people write: 0.1 is not quite 0.1 as a float32.
func (r *resolver) nanoCPUs(key string, cpus float32) int64 {
	exact, err := strconv.ParseFloat(strconv.FormatFloat(float64(cpus), 'f', -1, 32), 64)
	if err != nil || math.IsNaN(exact) || exact < 0 || exact > 4096 || exact > 0 && exact < 0.001 {
		r.refuse(key, "%v is not a number of CPUs", cpus)
		return 0
	}
	return int64(math.Round(exact * 1e9))
}

// checkDependencies finds dependencies on nothing and in circles.
func (l *loading) checkDependencies(p *Project) {
	const (
		visiting = 1
		visited  = 2
	)
	state := map[string]int{}
	var visit func(name string, way []string)
	visit = func(name string, way []string) {
		way = append(way, name)
		switch state[name] {
		case visited:
			return
		case visiting:
			l.findings.add(name, "depends_on", "goes in a circle: %s", strings.Join(way[slices.Index(way, name):], " -> "))
			return
		}
		state[name] = visiting
		for _, dependency := range p.Services[name].DependsOn {
			if p.Services[dependency] == nil {
				l.findings.add(name, "depends_on", "names %q, which is not a service", dependency)
				continue
			}
			visit(dependency, way)
		}
		state[name] = visited
	}
	for _, name := range p.names() {
		visit(name, nil)
	}
}

// checkPorts finds ports of the device that are published twice.
func (l *loading) checkPorts(p *Project) {
	type use struct {
		Port
		service string
	}
	taken := map[string][]use{}
	for _, name := range p.names() {
		for _, port := range p.Services[name].Ports {
			key := fmt.Sprintf("%d/%s", port.HostPort, port.Protocol)
			for _, other := range taken[key] {
				if port.overlaps(other.Port) {
					l.findings.add(name, "ports", "publishes port %s of the device, which service %q publishes as well", key, other.service)
				}
			}
			taken[key] = append(taken[key], use{port, name})
		}
	}
}

// overlaps compares the addresses of two published ports.
func (p Port) overlaps(other Port) bool {
	a, b := p.HostIP, other.HostIP
	switch {
	case !a.IsValid() || !b.IsValid() || a == b:
		return true
	case a.Is4() != b.Is4():
		return false
	}
	return a.IsUnspecified() || b.IsUnspecified()
}

func (l *loading) checkContainerNames(p *Project) {
	taken := map[string]string{}
	for _, name := range p.names() {
		container := p.Services[name].ContainerName
		if container == "" {
			continue
		}
		if other, conflict := taken[container]; conflict {
			l.findings.add(name, "container_name", "%q is that of service %q", container, other)
		}
		taken[container] = name
	}
}

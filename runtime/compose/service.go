package compose

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"

	"github.com/margolite/margolite/runtime/platform"
)

const (
	maxServices = 64
	maxReplicas = 64   // of one service, as checkKeys has it
	maxMounts   = 128  // of one service
	maxName     = 128  // bytes of the name of a project, service, container or volume
	maxLabel    = 4096 // bytes of key and value; what containerd accepts
)

// reservedLabels are read back to learn what runs; a project cannot set them.
var reservedLabels = []string{"com.docker.compose.", "containerd.io/", "io.containerd.", "margolite/", "nerdctl/"}

func isProjectName(s string) bool {
	return ValidName(s) && strings.ToLower(s) == s && !strings.Contains(s, ".")
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// ValidName tells whether s may become a file name on the device.
func ValidName(s string) bool { return len(s) <= maxName && validName.MatchString(s) }

// isWord tells whether s may stand, unquoted, in resolv.conf, a hosts file or a rule.
func isWord(s string) bool {
	return s != "" && len(s) <= 255 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' })
}

// resolve fills p from the model and finds unsupported values. written is the untyped model.
func (l *loading) resolve(p *Project, written map[string]any, env types.Mapping, o Options) {
	if len(p.Compose.Services) == 0 && len(p.Compose.DisabledServices) > 0 {
		l.findings.add("", "services", "all belong to inactive profiles")
		return
	}
	if len(p.Compose.Services) == 0 || len(p.Compose.Services) > maxServices {
		l.findings.add("", "services", "are %d; a project needs 1 to %d", len(p.Compose.Services), maxServices)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(o.Scale)) {
		if _, ok := p.Compose.Services[name]; !ok {
			l.findings.add(name, "scale", "is selected, but there is no such service")
		} else if n := o.Scale[name]; n < 0 || n > maxReplicas {
			l.findings.add(name, "scale", "is %d, which is not between 0 and %d", n, maxReplicas)
		}
	}
	r := &resolver{loading: l, project: p, env: env, scale: o.Scale, moved: l.movable(p.Compose, o.Ports), contents: map[string][]byte{}, claimed: map[string]string{}}
	r.volumes = r.volumesByKey()
	r.networks = r.networksByKey()
	services := mappings(written["services"])
	for _, name := range p.Compose.ServiceNames() {
		r.service, r.written = name, services[name]
		p.Services[name] = r.resolve(p.Compose.Services[name])
	}
	l.mountsFrom(p)
	_, circles := p.order(p.names())
	for _, circle := range circles {
		l.findings.add(circle[0], "depends_on", "is circular: %s", strings.Join(circle, " -> "))
	}
	l.checkPorts(p)
	l.checkPools(p)
}

type resolver struct {
	*loading
	project  *Project
	env      types.Mapping
	scale    map[string]int
	moved    map[string]string   // Options.Ports, those that are published once
	volumes  map[string]*Volume  // by key
	networks map[string]*Network // by key
	contents map[string][]byte   // of configs and secrets, by section and name
	held     int                 // bytes of files that stay in memory
	claimed  map[string]string   // see claim

	service string
	written map[string]any // the service before it got Go types
}

func (r *resolver) refuse(key, format string, args ...any) {
	r.findings.add(r.service, key, format, args...)
}

// claim notes who uses something exclusive; taken: former has claimed it before.
func (r *resolver) claim(by, format string, args ...any) (former string, taken bool) {
	what := fmt.Sprintf(format, args...)
	former, taken = r.claimed[what]
	r.claimed[what] = by
	return former, taken
}

// variable looks up a variable of the project and notes its use.
func (r *resolver) variable(name string) (string, bool) {
	r.in.read[name] = true
	return r.env.Resolve(name)
}

func (r *resolver) note(key, format string, args ...any) {
	r.warnings.add(r.service, key, format, args...)
}

func (r *resolver) resolve(c types.ServiceConfig) *Service {
	if !ValidName(r.service) {
		r.refuse("services", "has an invalid name: use letters, digits, _, . and -")
	}
	c.Deploy = cmp.Or(c.Deploy, &types.DeployConfig{})
	s := &Service{
		Name:          r.service,
		ContainerName: c.ContainerName,
		Image:         r.image(c),
		Platform:      r.platform(c.Platform),
		PullPolicy:    r.pullPolicy(c),
		Replicas:      r.replicas(c),
		Labels:        r.labels("labels", r.labelsOf(c)),
		Annotations:   r.labels("annotations", c.Annotations),
		Entrypoint:    c.Entrypoint,
		Command:       c.Command,
		Environment:   r.environment(c),
		WorkingDir:    c.WorkingDir,
		User:          c.User,
		ReadOnly:      c.ReadOnly,
		DependsOn:     r.dependsOn(c),
	}
	if c.ContainerName != "" {
		r.containerName(c.ContainerName, s.Replicas)
	}
	r.process(s, c)
	r.namespaces(s, c)
	r.resources(s, c)
	r.devices(s, c)
	r.storage(s, c)
	r.attach(s, c)
	r.names(s, c)
	r.ports(s, c)
	r.security(s, c)
	r.lifecycle(s, c)
	r.logging(s, c.Logging)
	return s
}

func (r *resolver) containerName(name string, replicas int) {
	if replicas > 1 {
		r.refuse("container_name", "is one name for %d replicas", replicas)
	}
	if other, taken := r.claim(r.service, "container %s", name); taken {
		r.refuse("container_name", "%q is already that of service %q", name, other)
	}
}

func (r *resolver) image(c types.ServiceConfig) string {
	switch ref, err := reference.ParseDockerRef(c.Image); {
	case c.Image == "" && c.Build != nil:
		r.refuse("build", "is not supported: a device does not build images; name an image")
	case c.Image == "":
		r.refuse("image", "is missing")
	case err != nil:
		r.refuse("image", "%q is not an image reference: %s", c.Image, err)
	default:
		return ref.String()
	}
	return ""
}

func (r *resolver) platform(written string) string {
	if written == "" {
		return ""
	}
	p, err := platform.Parse(written)
	if err != nil || len(written) > maxName {
		r.refuse("platform", "%.80q is not a platform such as linux/arm/v7", written)
		return ""
	}
	if p.OS != "linux" {
		r.refuse("platform", "%q is not a Linux platform", written)
	}
	return platforms.Format(p)
}

func (r *resolver) pullPolicy(c types.ServiceConfig) PullPolicy {
	switch c.PullPolicy { // the schema has no others
	case "", types.PullPolicyMissing, types.PullPolicyIfNotPresent:
	case types.PullPolicyAlways:
		return PullAlways
	case types.PullPolicyNever:
		return PullNever
	case types.PullPolicyBuild:
		r.refuse("pull_policy", "%q is not supported: a device does not build images", c.PullPolicy)
	default:
		r.note("pull_policy", "%q is treated as missing: images are pulled only once", c.PullPolicy)
	}
	return PullMissing
}

// environment merges env_file and environment, which wins; missing values are the project's.
func (r *resolver) environment(c types.ServiceConfig) map[string]string {
	resolved := map[string]string{}
	given := r.given("environment", c.Environment)
	lookup := func(name string) (string, bool) {
		if value, ok := r.variable(name); ok {
			return value, true
		}
		if value, ok := given[name]; ok {
			return value, true
		}
		value, ok := resolved[name]
		return value, ok
	}
	r.readFiles(resolved, "env_file", c.EnvFiles, lookup)
	for name := range c.Environment {
		delete(resolved, name)
	}
	maps.Copy(resolved, given)
	r.checkEnvironment("environment", resolved)
	return resolved
}

// given are the entries of an environment with a value, their own or from the project's variables.
func (r *resolver) given(key string, written types.MappingWithEquals) map[string]string {
	given := map[string]string{}
	for name, value := range written.Resolve(r.variable) {
		if value == nil {
			r.note(key, "names %q without a value and nothing sets it; leaving it out", name)
			continue
		}
		given[name] = *value
	}
	return given
}

func (r *resolver) checkEnvironment(key string, environment map[string]string) {
	for name, value := range environment {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			r.refuse(key, "has a malformed entry %q", name)
		}
	}
}

// readFiles reads files of variables in order; one that is not required may be missing.
func (r *resolver) readFiles(into map[string]string, key string, files []types.EnvFile, lookup template.Mapping) {
	for _, file := range files {
		parse := r.in.parseEnvFile
		if file.Format == "raw" {
			parse = parseRaw
		}
		vars, err := r.files.readEnv(file.Path, parse, lookup)
		if err != nil && (bool(file.Required) || !isMissing(err)) {
			r.failures = append(r.failures, fmt.Errorf("service %q: %s: %w", r.service, key, err))
		}
		maps.Copy(into, vars)
	}
}

// labelsOf merges label_file files in order and labels, which win.
func (r *resolver) labelsOf(c types.ServiceConfig) map[string]string {
	var files []types.EnvFile
	for _, path := range c.LabelFiles {
		files = append(files, types.EnvFile{Path: path, Required: true})
	}
	labels := map[string]string{}
	r.readFiles(labels, "label_file", files, types.Mapping{}.Resolve)
	maps.Copy(labels, c.Labels)
	return labels
}

func (r *resolver) labels(section string, labels map[string]string) map[string]string {
	for key, value := range labels {
		for _, prefix := range reservedLabels {
			if strings.HasPrefix(key, prefix) {
				r.refuse(section, "cannot have %q: names starting with %s are reserved", key, prefix)
			}
		}
		if key == "" || len(key)+len(value) > maxLabel {
			r.refuse(section, "have an entry that is empty or has more than %d bytes", maxLabel)
		}
	}
	return labels
}

package container

import (
	"cmp"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/network"
)

const (
	// groupAnnotation makes the containers of one project share a shim.
	groupAnnotation = "io.containerd.runc.v2.group"

	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	softFiles   = 1024
	openFiles   = 524288

	// initPath is where the small process 1 is in a container, as with Docker.
	initPath = "/sbin/docker-init"

	// The size of a terminal without a viewer.
	terminalHeight, terminalWidth = 24, 80
)

// Config is everything that decides how a container runs.
type Config struct {
	Labels     Labels // Create adds what follows from Service and Image
	Service    *compose.Service
	Image      v1.ImageConfig
	ImageName  string                     // name in containerd's image store
	Sandbox    network.Paths              // the network namespace to join, and its files
	Volumes    map[string]*compose.Volume // those that Service mounts, by name; nil: a directory of ours
	WorkingDir string                     // of the project
}

type placing struct {
	*paths
	id      string
	user    specs.User
	cgroup  string // path of the control group
	volumes mountedVolumes
}

// newSpec builds the OCI specification of a container: Docker's defaults with the service's
// settings on top. Whatever depends on present devices is left to complete.
func newSpec(c Config, h Host, at placing) (*specs.Spec, error) {
	args, err := processArgs(c.Service, c.Image)
	if err != nil {
		return nil, err
	}
	mounts, err := allMounts(c, h, at)
	if err != nil {
		return nil, err
	}
	limits, err := rlimits(c.Service, h)
	if err != nil {
		return nil, err
	}
	resources, err := resources(c.Service, h, func(text string) {
		at.o.Logger.Warn(text, "container", at.id, "service", c.Service.Name)
	})
	if err != nil {
		return nil, err
	}
	resources.Devices = rules(c.Service)
	oom := 0 // otherwise it inherits this process's, which may be protected
	if c.Service.OOMScoreAdj != nil {
		oom = *c.Service.OOMScoreAdj
	}

	spec := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Terminal:    c.Service.TTY,
			User:        at.user,
			Args:        args,
			Env:         processEnv(c, at.o.environment(c.Service)),
			Cwd:         path.Join("/", cmp.Or(c.Service.WorkingDir, c.Image.WorkingDir)),
			Rlimits:     limits,
			OOMScoreAdj: &oom,
		},
		Root:        &specs.Root{Path: "rootfs", Readonly: c.Service.ReadOnly},
		Mounts:      mounts,
		Annotations: annotations(c),
		Linux: &specs.Linux{
			CgroupsPath:       at.cgroup,
			Namespaces:        namespaces(c, h),
			Sysctl:            sysctls(c.Service, h),
			Resources:         resources,
			RootfsPropagation: rootPropagation(c.Service.Mounts),
		},
	}
	if c.Service.TTY {
		spec.Process.ConsoleSize = &specs.Box{Height: terminalHeight, Width: terminalWidth}
	}
	if c.Service.UTS.Mode != compose.ModeHost {
		spec.Hostname = c.Labels.Sandbox.Hostname
	}
	// A foreign shim whose output goes to a log program passes on no input, except a terminal's.
	holdsInput := at.o.LogKeeper != "" && c.Service.StdinOpen && !c.Service.TTY
	if c.Service.Init || holdsInput {
		if err := addInit(spec, at.o.Init, holdsInput); err != nil {
			return nil, err
		}
	}
	if err := confine(spec, c.Service, h, at.user); err != nil {
		return nil, err
	}
	return spec, nil
}

// addInit adds a process 1 that passes on signals, reaps orphans and may hold input open.
func addInit(spec *specs.Spec, program string, holdsInput bool) error {
	args := []string{initPath, "--"}
	if holdsInput {
		args = []string{initPath, "-i", "--"}
	}
	if program == "" {
		return errors.New("init: the program margolite-init is missing on this device; install it beside the shim")
	}
	spec.Process.Args = slices.Concat(args, spec.Process.Args)
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: initPath, Type: "bind", Source: program, Options: []string{"bind", "ro", "rprivate"},
	})
	return nil
}

// annotations returns the service's annotations without those for the shim.
func annotations(c Config) map[string]string {
	all := make(map[string]string)
	maps.Copy(all, c.Service.Annotations)
	all[groupAnnotation] = c.Labels.Project
	return all
}

func processArgs(s *compose.Service, image v1.ImageConfig) ([]string, error) {
	entrypoint, command := image.Entrypoint, image.Cmd
	if s.Entrypoint != nil {
		entrypoint, command = s.Entrypoint, nil
	}
	if s.Command != nil {
		command = s.Command
	}
	args := slices.Concat(entrypoint, command)
	if len(args) == 0 || args[0] == "" {
		return nil, errors.New("neither image nor Compose file names a command")
	}
	return args, nil
}

// processEnv merges defaults, the device's, the image's and the service's variables; the last
// one wins. The device's are not part of the configuration's hash: they recreate nothing.
func processEnv(c Config, device []string) []string {
	env := []string{"PATH=" + defaultPath, "HOSTNAME=" + c.Labels.Sandbox.Hostname}
	if c.Service.TTY {
		env = append(env, "TERM=xterm")
	}
	env = append(env, device...)
	for _, entry := range c.Image.Env {
		if strings.IndexByte(entry, '=') > 0 {
			env = setEnv(env, entry)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Service.Environment)) {
		env = setEnv(env, name+"="+c.Service.Environment[name])
	}
	return env
}

// setEnv adds an entry to an environment, replacing one of the same name.
func setEnv(env []string, entry string) []string {
	name, _, _ := strings.Cut(entry, "=")
	i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	if i < 0 {
		return append(env, entry)
	}
	env = slices.Clone(env)
	env[i] = entry
	return env
}

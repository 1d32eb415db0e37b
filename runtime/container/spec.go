package container

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/network"
)

const (
	// groupAnnotation makes the containers of one project share a shim.
	groupAnnotation = "io.containerd.runc.v2.group"

	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	shmSize     = "65536k"
	cpuPeriod   = 100_000 // microseconds
	softFiles   = 1024
	openFiles   = 524288
)

// Config is everything that decides how a container runs.
type Config struct {
	Labels     Labels // which container and where; Create adds what Service and Image say
	Service    *compose.Service
	Image      v1.ImageConfig
	ImageName  string        // record in containerd's image store
	Sandbox    network.Paths // the network namespace to join, and its files
	WorkingDir string        // of the project
}

// placing is what a specification needs to know beside configuration and host.
type placing struct {
	user        User
	cgroup      string // path of the control group
	volume      func(name string) string
	groupedShim bool
}

// newSpec builds the OCI specification of a container: what Docker gives a
// container by default, with what the service asks for on top.
func newSpec(c Config, h Host, at placing) (*specs.Spec, error) {
	args, err := processArgs(c.Service, c.Image)
	if err != nil {
		return nil, err
	}
	mounts, err := allMounts(c, h, at.volume)
	if err != nil {
		return nil, err
	}
	oom := 0 // else the container inherits that of this process, which may be protected
	files := min(uint64(openFiles), h.OpenFiles)

	spec := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			User:         specs.User{UID: at.user.UID, GID: at.user.GID, AdditionalGids: at.user.Groups},
			Args:         args,
			Env:          processEnv(c),
			Cwd:          workingDir(c),
			Capabilities: capabilities(at.user),
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: min(softFiles, files), Hard: files}},
			OOMScoreAdj:  &oom,
		},
		Root:     &specs.Root{Path: "rootfs", Readonly: c.Service.ReadOnly},
		Hostname: c.Labels.Hostname,
		Mounts:   mounts,
		Linux: &specs.Linux{
			CgroupsPath:   at.cgroup,
			Namespaces:    namespaces(c, h),
			Resources:     resources(c.Service),
			MaskedPaths:   slices.Clone(maskedPaths),
			ReadonlyPaths: slices.Clone(readonlyPaths),
		},
	}
	if at.groupedShim {
		spec.Annotations = map[string]string{groupAnnotation: c.Labels.Project}
	}
	if h.UnprivilegedPorts {
		// The namespace is the container's own: whoever it runs as may listen
		// on port 80, as with Docker since 20.10.
		spec.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	}
	spec.Linux.RootfsPropagation = rootPropagation(c.Service.Mounts)
	if h.Seccomp {
		spec.Linux.Seccomp = seccomp.DefaultProfile(spec)
	}
	return spec, nil
}

// processArgs merges image and service as Compose does: an entrypoint in the
// file also clears the command of the image.
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
		return nil, errors.New("neither image nor Compose file says which command to run")
	}
	return args, nil
}

// processEnv is the environment: defaults, the image's, the service's; later
// ones replace earlier ones in place.
func processEnv(c Config) []string {
	env := []string{"PATH=" + defaultPath, "HOSTNAME=" + c.Labels.Hostname}
	set := func(entry string) {
		name, _, _ := strings.Cut(entry, "=")
		i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		if i < 0 {
			env = append(env, entry)
		} else {
			env[i] = entry
		}
	}
	for _, entry := range c.Image.Env {
		if strings.IndexByte(entry, '=') > 0 {
			set(entry)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Service.Environment)) {
		set(name + "=" + c.Service.Environment[name])
	}
	return env
}

func workingDir(c Config) string {
	return path.Join("/", cmp.Or(c.Service.WorkingDir, c.Image.WorkingDir))
}

func namespaces(c Config, h Host) []specs.LinuxNamespace {
	list := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace, Path: c.Sandbox.NetNS},
	}
	// As Docker: on v1 the container sees its real place, on v2 a root of its own.
	if h.Cgroups == CgroupsV2 && h.CgroupNamespace {
		list = append(list, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return list
}

// resources are the limits, and the devices that every container may use.
func resources(s *compose.Service) *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: slices.Clone(deviceRules)}
	if s.Memory > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &s.Memory}
	}
	if s.NanoCPUs > 0 {
		period := uint64(cpuPeriod)
		quota := max(s.NanoCPUs/(1e9/cpuPeriod), 1000) // the kernel's least is a millisecond
		r.CPU = &specs.LinuxCPU{Period: &period, Quota: &quota}
	}
	return r
}

// allMounts are those that every container has and those of the service, parents
// before children. A mount of the service replaces one of ours at the same place.
func allMounts(c Config, h Host, volume func(string) string) ([]specs.Mount, error) {
	own, err := serviceMounts(c.Service, volume)
	if err != nil {
		return nil, err
	}
	targets := make(map[string]bool, len(own))
	for _, m := range own {
		if targets[m.Destination] {
			return nil, fmt.Errorf("two mounts at %s", m.Destination)
		}
		targets[m.Destination] = true
	}
	mounts := slices.DeleteFunc(slices.Concat(kernelMounts(h), sandboxMounts(c)), func(m specs.Mount) bool {
		return targets[m.Destination]
	})
	mounts = append(mounts, own...)
	slices.SortStableFunc(mounts, func(a, b specs.Mount) int {
		return cmp.Compare(strings.Count(a.Destination, "/"), strings.Count(b.Destination, "/"))
	})
	return mounts, nil
}

// kernelMounts are the file systems of the kernel and of memory.
func kernelMounts(h Host) []specs.Mount {
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=" + shmSize}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
	if h.MessageQueues {
		mounts = append(mounts, specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}})
	}
	if h.Cgroups != CgroupsNone {
		mounts = append(mounts, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev"}})
	}
	return mounts
}

// sandboxMounts are the files of the sandbox; writable, as with Docker, unless
// everything else is read-only too.
func sandboxMounts(c Config) []specs.Mount {
	options := []string{"bind", "rprivate"}
	if c.Service.ReadOnly {
		options = append(options, "ro")
	}
	var mounts []specs.Mount
	for _, file := range []struct{ source, target string }{
		{c.Sandbox.ResolvConf, "/etc/resolv.conf"},
		{c.Sandbox.Hostname, "/etc/hostname"},
		{c.Sandbox.Hosts, "/etc/hosts"},
	} {
		if file.source != "" {
			mounts = append(mounts, specs.Mount{Destination: file.target, Type: "bind", Source: file.source, Options: slices.Clone(options)})
		}
	}
	return mounts
}

// serviceMounts are the volumes, directories and file systems in memory that
// the Compose file asks for.
func serviceMounts(s *compose.Service, volume func(string) string) ([]specs.Mount, error) {
	mounts := make([]specs.Mount, 0, len(s.Mounts)+len(s.Tmpfs))
	for _, m := range s.Mounts {
		if err := checkTarget(m.Target); err != nil {
			return nil, err
		}
		source, propagation := m.Path, cmp.Or(m.Propagation, "rprivate")
		if m.Volume != "" {
			source, propagation = volume(m.Volume), "rprivate"
		}
		options := []string{"rbind", propagation}
		if m.ReadOnly {
			options = append(options, "ro")
		}
		mounts = append(mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: source, Options: options})
	}
	for _, t := range s.Tmpfs {
		if err := checkTarget(t.Target); err != nil {
			return nil, err
		}
		mounts = append(mounts, specs.Mount{
			Destination: t.Target, Type: "tmpfs", Source: "tmpfs",
			Options: slices.Concat([]string{"nosuid", "nodev", "noexec"}, t.Options), // the last word wins
		})
	}
	return mounts, nil
}

func checkTarget(target string) error {
	if !path.IsAbs(target) || path.Clean(target) != target || target == "/" {
		return fmt.Errorf("cannot mount at %.80q: want a clean absolute path below /", target)
	}
	return nil
}

// rootPropagation lets mounts pass between host and container where a bind mount asks for it.
func rootPropagation(mounts []compose.Mount) string {
	propagation := ""
	for _, m := range mounts {
		switch m.Propagation {
		case "shared", "rshared":
			return "shared"
		case "slave", "rslave":
			propagation = "rslave"
		}
	}
	return propagation
}

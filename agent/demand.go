package agent

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/distribution/reference"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/port"
	"github.com/margolite/margolite/store"
)

const (
	maxNamed   = 16  // in an error
	maxRefusal = 160 // bytes of each refusal's text
	maxNodes   = 256 // device nodes asked for one by one of a directory
)

// asksOf is what the services of a component ask of the device. It is read from the runtime's
// model, so that no key of a Compose file gets around it, and leaves out what belongs to the
// component: the files of its package, its volumes in directories of ours, runtime networks.
func asksOf(c stagedComponent) []policy.ServiceAsk {
	p := c.project
	read := filesRead(p)
	asks := make([]policy.ServiceAsk, 0, len(p.Compose.Services))
	for _, name := range slices.Sorted(maps.Keys(p.Compose.Services)) {
		s := p.Compose.Services[name]
		a := policy.ServiceAsk{
			Component: c.name, Service: name, Signed: c.signed,
			Privileged:   s.Privileged || slices.ContainsFunc(slices.Concat(s.PostStart, s.PreStop), func(h compose.Hook) bool { return h.Privileged }),
			Namespaces:   namespacesAsked(p, s),
			Devices:      devicesAsked(s),
			Capabilities: s.CapAdd,
			Unconfined:   unconfinedAsked(s),
			Shared:       sharedAsked(p, s),
			Ports:        portsAsked(s),
			Image:        s.Image,
			Reserved:     reserved(s),
		}
		if named, err := reference.ParseNormalizedNamed(s.Image); err == nil {
			a.Registry = reference.Domain(named)
			_, a.Pinned = named.(reference.Digested)
		}
		for _, m := range s.Mounts {
			v := p.Compose.Volumes[m.Volume]
			switch {
			case m.Path != "":
				a.Mounts = append(a.Mounts, policy.MountAsk{
					Path: cmp.Or(m.Real, container.Real(m.Path)), ReadOnly: m.ReadOnly && m.Below != compose.BelowWritable,
				})
			case m.Volume != "" && v != nil:
				askForVolume(&a, v)
			}
		}
		for _, file := range read {
			a.Mounts = append(a.Mounts, policy.MountAsk{Path: file, ReadOnly: true})
		}
		a.Mounts = tidy(a.Mounts, p.Directory)
		asks = append(asks, a)
	}
	return asks
}

func packageAsk(c margo.Component) policy.ServiceAsk {
	a := policy.ServiceAsk{Component: c.Name, Signed: true, Pinned: true, Image: cmp.Or(strings.TrimPrefix(c.Repository, "oci://"), c.PackageLocation)}
	if c.Repository != "" {
		a.Registry, _, _ = strings.Cut(a.Image, "/")
	} else if u, err := url.Parse(c.PackageLocation); err == nil {
		a.Registry = u.Host
	}
	return a
}

// namespacesAsked are the device's namespaces that a service joins, including that of the network
// when it uses an interface of the device.
func namespacesAsked(p *runtime.Project, s *compose.Service) []string {
	var joined []string
	for kind, n := range namespacesOf(s) {
		if n.Mode == compose.ModeHost {
			joined = append(joined, kind)
		}
	}
	for _, a := range s.Attached {
		n := p.Compose.Networks[a.Network]
		if n != nil && (n.Driver == "macvlan" || n.Driver == "ipvlan") {
			joined = append(joined, "network")
		}
	}
	slices.Sort(joined)
	return slices.Compact(joined)
}

func namespacesOf(s *compose.Service) map[string]compose.Namespace {
	return map[string]compose.Namespace{"network": s.Network, "pid": s.PID, "ipc": s.IPC, "uts": s.UTS, "cgroup": s.Cgroup}
}

// sharedAsked are external volumes and networks, and foreign containers with shared namespaces.
func sharedAsked(p *runtime.Project, s *compose.Service) []string {
	var names []string
	for _, m := range s.Mounts {
		if v := p.Compose.Volumes[m.Volume]; v != nil && v.External {
			names = append(names, v.Name)
		}
	}
	for _, a := range s.Attached {
		if n := p.Compose.Networks[a.Network]; n != nil && n.External {
			names = append(names, n.Name)
		}
	}
	for _, n := range namespacesOf(s) {
		named := func(own *compose.Service) bool { return own.ContainerName == n.Of }
		if n.Mode == compose.ModeContainer && !slices.ContainsFunc(slices.Collect(maps.Values(p.Compose.Services)), named) {
			names = append(names, n.Of)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return mayBeOf(name, p.Labels[labelDeployment]) })
	slices.Sort(names)
	return slices.Compact(names)
}

// devicesAsked are device nodes by the service's name for them and, for a link, by its target;
// for a directory also its content.
func devicesAsked(s *compose.Service) []string {
	var devices []string
	for _, d := range s.Devices {
		devices = append(devices, nodesAsked(d.Path, cmp.Or(d.Real, container.Real(d.Path)))...)
	}
	devices = slices.Concat(devices, s.CDI, s.DeviceRules)
	slices.Sort(devices)
	return slices.Compact(devices)
}

func nodesAsked(path, found string) []string {
	nodes := []string{path, found}
	if info, err := os.Stat(found); err != nil || !info.IsDir() {
		return nodes
	}
	// What cannot be read is not there for the container either.
	_ = filepath.WalkDir(found, func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err == nil && len(nodes) >= maxNodes:
			return fs.SkipAll
		case err == nil && entry.Type()&fs.ModeDevice != 0:
			nodes = append(nodes, at)
		}
		return nil
	})
	return nodes
}

// unconfinedAsked is what of the device's confinement a service replaces: nobody can tell what a
// filter or profile of its own lets through.
func unconfinedAsked(s *compose.Service) []string {
	var kinds []string
	if s.Seccomp.Unconfined || s.Seccomp.Profile != nil {
		kinds = append(kinds, "seccomp")
	}
	if s.AppArmor != "" {
		kinds = append(kinds, "apparmor")
	}
	if s.UnmaskedPaths {
		kinds = append(kinds, "systempaths")
	}
	return kinds
}

func portsAsked(s *compose.Service) []policy.PortRange {
	var ports []policy.PortRange
	for _, p := range s.Ports {
		r := policy.PortRange{First: p.HostPort, Last: max(p.HostPort, p.LastPort)}
		if p.HostPort == 0 {
			r = policy.PortRange{First: port.FirstFree, Last: port.LastFree}
		}
		if !slices.Contains(ports, r) {
			ports = append(ports, r)
		}
	}
	return ports
}

// reserved is what all replicas of a service reserve. Limits reserve nothing: together they
// usually exceed the device. Nothing in a Compose file reserves storage.
func reserved(s *compose.Service) (all policy.Resources) {
	one := policy.Resources{CPUs: float64(s.Resources.CPUReservation) / 1e9, Memory: s.Resources.MemoryReservation}
	for range s.Replicas {
		all = all.Plus(one)
	}
	return all
}

var (
	// remoteFileSystems have their content elsewhere, or in memory.
	remoteFileSystems = []string{"nfs", "nfs4", "cifs", "smb3", "ceph", "tmpfs", "ramfs"}
	diskFileSystems   = []string{
		"btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jffs2",
		"msdos", "ntfs3", "squashfs", "ubifs", "udf", "vfat", "xfs",
	}
)

// askForVolume adds what a volume with a file system exposes of the device. It is read-only only
// if mounted so for all: others may use it as external.
func askForVolume(a *policy.ServiceAsk, v *compose.Volume) {
	switch {
	case v.Type == "", slices.Contains(remoteFileSystems, v.Type):
	case v.Type == "none", v.Type == "bind":
		a.Mounts = append(a.Mounts, policy.MountAsk{Path: cmp.Or(v.Real, container.Real(v.Device)), ReadOnly: slices.Contains(v.Options, "ro")})
	case slices.Contains(diskFileSystems, v.Type):
		paths := []string{v.Device}
		for _, o := range v.Options {
			if _, value, _ := strings.Cut(o, "="); filepath.IsAbs(value) { // as device= of btrfs
				paths = append(paths, value)
			}
		}
		for _, path := range paths {
			a.Devices = append(a.Devices, path)
			if filepath.IsAbs(path) {
				a.Devices = append(a.Devices, container.Real(path))
			}
		}
		slices.Sort(a.Devices)
		a.Devices = slices.Compact(a.Devices)
	default: // proc, overlay, fuse, ...: may expose any of the device
		a.Mounts = append(a.Mounts, policy.MountAsk{Path: "/"})
	}
}

// tidy removes duplicates and the package's own paths.
func tidy(mounts []policy.MountAsk, pkg string) []policy.MountAsk {
	if pkg != "" {
		pkg = container.Real(pkg)
	}
	mounts = slices.DeleteFunc(mounts, func(m policy.MountAsk) bool { return within(pkg, m.Path) })
	sort.SliceStable(mounts, func(i, j int) bool {
		a, b := mounts[i], mounts[j]
		if a.Path != b.Path {
			return a.Path < b.Path
		}
		return !a.ReadOnly && b.ReadOnly // a writable mount first, so that it stays
	})
	return slices.CompactFunc(mounts, func(a, b policy.MountAsk) bool { return a.Path == b.Path })
}

// within says that path is dir or lies in it; an empty dir contains nothing.
func within(dir, path string) bool {
	if dir == "" {
		return false
	}
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// filesRead are the files outside its package that a project was read from. Their content may
// reach any of its containers, as configs, secrets or variables.
func filesRead(p *runtime.Project) []string {
	return slices.DeleteFunc(slices.Clone(p.Compose.Outside), func(file string) bool {
		return p.Directory != "" && within(container.Real(p.Directory), file)
	})
}

// admit refuses what a workload may not ask of this device, before its images are fetched. The
// error is a *fault of codeNotAllowed.
func (r *reconciler) admit(ctx context.Context, id string, asks []policy.ServiceAsk) error {
	run := container.Real(r.runDir)
	ask := policy.Ask{Services: asks, Own: []string{container.Real(r.stateDir), run}, Locks: filepath.Join(run, "locks")}
	if policy.Reserved(asks) != (policy.Resources{}) { // otherwise other reservations do not matter
		facts := r.settings.Load().Device.Offer.Of(look(r.facts, r.logger))
		ask.Device = policy.Resources{CPUs: float64(facts.CPU.Cores), Memory: int64(facts.Memory), Storage: int64(facts.Storage)}
		var err error
		if ask.Held, err = r.heldBeside(ctx, id); err != nil {
			return err
		}
	}
	return notAllowed(r.settings.Load().Gate.Admit(id, ask))
}

// admitRevision asks the rules, which may have changed, again about the staged desired revision.
// The error is a *fault, ctx's, or one of the device.
func (r *reconciler) admitRevision(ctx context.Context, d *store.Deployment) error {
	rev, err := r.loadRevision(ctx, d.ID, &d.Desired, true)
	if err != nil {
		return err
	}
	asks, held := rev.asks(), d.Desired.Summary
	if now := store.Resources(policy.Reserved(asks)); held != nil && held.Reserved != now { // files outside its packages have changed
		summary := *held
		summary.Reserved = now
		if err := r.ledger.step(d, "reserved", func(d *store.Deployment) { d.Desired.Summary = &summary }); err != nil {
			return err
		}
	}
	return r.judge(ctx, d.ID, rev.doc, asks, rev.components, nil)
}

func notAllowed(refusals []policy.Refusal) error {
	if len(refusals) == 0 {
		return nil
	}
	component := refusals[0].Component
	var said []string
	for n, refusal := range refusals {
		if refusal.Component != component {
			component = "" // the deployment as a whole
		}
		if n < maxNamed {
			said = append(said, refusal.Rule+": "+about(refusal)+shortened(refusal.Text, maxRefusal))
		}
	}
	if more := len(refusals) - len(said); more > 0 {
		said = append(said, fmt.Sprintf("and %d more", more))
	}
	return &fault{code: codeNotAllowed, component: component, err: fmt.Errorf("this device does not allow it: %s", strings.Join(said, "; "))}
}

func about(r policy.Refusal) string {
	switch {
	case r.Service != "" && r.Component != "":
		return r.Component + "/" + r.Service + ": "
	case r.Component != "":
		return r.Component + ": "
	}
	return ""
}

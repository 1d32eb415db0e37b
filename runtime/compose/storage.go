package compose

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

func (r *resolver) storage(s *Service, c types.ServiceConfig) {
	r.mounts(s, c.Volumes)
	r.tmpfs(s, c.Tmpfs)
	r.fileObjects(s, c)
}

func (r *resolver) mounts(s *Service, configs []types.ServiceVolumeConfig) {
	for _, c := range configs {
		switch c.Type {
		case types.VolumeTypeBind:
			s.Mounts = append(s.Mounts, r.bind(c))
		case types.VolumeTypeVolume:
			s.Mounts = append(s.Mounts, r.volumeMount(c))
		case types.VolumeTypeTmpfs:
			s.Tmpfs = append(s.Tmpfs, r.tmpfsMount(c))
		}
	}
	sortMounts(s.Mounts)
}

func sortMounts(mounts []Mount) {
	sortBy(mounts, func(a, b Mount) int { return cmp.Compare(a.Target, b.Target) })
}

func (r *resolver) bind(c types.ServiceVolumeConfig) Mount {
	bind := cmp.Or(c.Bind, &types.ServiceVolumeBind{CreateHostPath: true})
	m := Mount{
		Path:        filepath.Clean(c.Source),
		Target:      r.target("volumes", c.Target),
		ReadOnly:    c.ReadOnly,
		Create:      bool(bind.CreateHostPath),
		Propagation: bind.Propagation,
	}
	if !filepath.IsAbs(c.Source) || strings.ContainsRune(c.Source, 0) {
		r.refuse("volumes", "has source %q, which is not a path", c.Source)
	}
	if c.Volume != nil && c.Volume.Subpath != "" {
		r.refuse("volumes.volume.subpath", "applies to volumes; %s is a path of the device", c.Source)
	}
	switch bind.Recursive { // a word of the schema
	case "disabled":
		m.NotBelow = true
	case BelowWritable, BelowReadOnly:
		if m.ReadOnly {
			m.Below = bind.Recursive
		} else if bind.Recursive == BelowReadOnly {
			r.refuse("volumes.bind.recursive", "readonly needs read_only: true")
		}
	}
	return m
}

func (r *resolver) volumeMount(c types.ServiceVolumeConfig) Mount {
	m := Mount{Target: r.target("volumes", c.Target), ReadOnly: c.ReadOnly, Anonymous: c.Source == ""}
	if c.Source != "" {
		volume := r.volumes[c.Source]
		if volume == nil {
			r.refuse("volumes", "names %q, which is not defined under the top-level volumes", c.Source)
		} else {
			m.Volume = volume.Name
			r.project.Volumes[volume.Name] = volume
		}
	}
	volume := cmp.Or(c.Volume, &types.ServiceVolumeVolume{})
	m.NoCopy = volume.NoCopy
	if sub := volume.Subpath; sub != "" {
		if m.Subpath = path.Clean(sub); !filepath.IsLocal(sub) || strings.ContainsRune(sub, 0) {
			r.refuse("volumes.volume.subpath", "%q leads out of the volume", sub)
		}
	}
	return m
}

// target checks a mount point in the container, which must be unique.
func (r *resolver) target(key, written string) string {
	target := path.Clean(written)
	if !path.IsAbs(written) || target == "/" || strings.ContainsRune(written, 0) {
		r.refuse(key, "has target %q, which is not an absolute path below /", written)
	}
	if _, taken := r.claim(r.service, "mount at %s of %s", target, r.service); taken {
		r.refuse(key, "has target %q, which is already a mount point", target)
	}
	return target
}

// tmpfsMount resolves the long form; the short form has all of its options.
func (r *resolver) tmpfsMount(c types.ServiceVolumeConfig) Tmpfs {
	t := Tmpfs{Target: r.target("volumes", c.Target)}
	if c.Source != "" {
		r.refuse("volumes", "has source %q, but a tmpfs has none", c.Source)
	}
	if c.ReadOnly {
		t.Options = append(t.Options, "ro")
	}
	tmpfs := cmp.Or(c.Tmpfs, &types.ServiceVolumeTmpfs{})
	if tmpfs.Mode > 0o7777 {
		r.refuse("volumes.tmpfs.mode", "is 0%o, which is not a file mode", tmpfs.Mode)
	} else if tmpfs.Mode != 0 {
		t.Options = append(t.Options, fmt.Sprintf("mode=%o", tmpfs.Mode))
	}
	if tmpfs.Size != 0 {
		t.Options = append(t.Options, fmt.Sprintf("size=%d", tmpfs.Size))
	}
	slices.Sort(t.Options)
	return t
}

func (r *resolver) tmpfs(s *Service, written []string) {
	for _, w := range written {
		target, options, _ := strings.Cut(w, ":")
		t := Tmpfs{Target: r.target("tmpfs", target)}
		for option := range strings.SplitSeq(options, ",") {
			if option == "" {
				continue
			}
			if !tmpfsOption.MatchString(option) {
				r.refuse("tmpfs", "has option %q, which is not supported", option)
			}
			t.Options = append(t.Options, option)
		}
		slices.Sort(t.Options)
		s.Tmpfs = append(s.Tmpfs, t)
	}
	sortBy(s.Tmpfs, func(a, b Tmpfs) int { return cmp.Compare(a.Target, b.Target) })
}

var tmpfsOption = regexp.MustCompile(`^(r[ow]|(no)?(exec|suid|dev)|noatime|(size|nr_inodes)=[0-9]{1,18}[kKmMgG%]?|[ug]id=[0-9]{1,10}|mode=0?[0-7]{1,4})$`)

// mountsFrom applies volumes_from, transitively, where services mount nothing themselves.
func (l *loading) mountsFrom(p *Project) {
	for _, name := range p.Order() {
		s := p.Services[name]
		taken := map[string]bool{}
		for _, m := range s.Mounts {
			taken[m.Target] = true
		}
		for _, t := range s.Tmpfs {
			taken[t.Target] = true
		}
		for _, from := range p.Compose.Services[name].VolumesFrom {
			of, mode, _ := strings.Cut(from, ":")
			switch {
			case of == "container":
				l.findings.add(name, "volumes_from", "%q is not supported: use the volumes of a service of the project", from)
				continue
			case mode != "" && mode != "ro" && mode != "rw":
				l.findings.add(name, "volumes_from", "%q has a mode other than ro or rw", from)
				continue
			case p.Services[of] == nil:
				continue // said by dependsOn
			}
			for _, m := range p.Services[of].Mounts {
				if taken[m.Target] || len(s.Mounts) > maxMounts {
					continue
				}
				taken[m.Target] = true
				m.ReadOnly = m.ReadOnly || mode == "ro"
				if m.Anonymous {
					m.Of = cmp.Or(m.Of, of)
				}
				s.Mounts = append(s.Mounts, m)
			}
		}
		if len(s.Mounts) > maxMounts {
			l.findings.add(name, "volumes_from", "results in %d volumes; a container can have at most %d", len(s.Mounts), maxMounts)
		}
		sortMounts(s.Mounts)
	}
}

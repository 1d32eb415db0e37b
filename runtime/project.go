package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/runtime/tree"
)

// Source is a Compose project as it arrives.
type Source struct {
	Project string   // name to run under; lower case letters, digits, - and _
	Package []byte   // a tar.gz archive or a YAML file ...
	File    string   // ... or a Compose file on this device
	Files   []string // more of them, merged over File in this order
	// Directory is the base of relative paths; default: that of the first file.
	Directory string
	Contents  map[string][]byte // of those files that are not to be read from the device, by their paths
	Profiles  []string          // that are active; "*": all
	Scale     map[string]int    // replicas, by service
	// Strict demands the layout of components: one top-level directory with a compose.yaml (PKG-06).
	Strict      bool
	Environment map[string]string // for interpolation, over .env
	Ports       map[string]string // of the device by container port, as 80/tcp; see compose.Options
	// Labels are for new containers only: they are not part of the configuration.
	Labels map[string]string
}

// Project is a loaded, supported Compose project.
type Project struct {
	Name    string
	Compose *compose.Project
	Digest  digest.Digest // of the package; empty for a File
	Labels  map[string]string
	// Directory is where the package was extracted; empty for a File.
	Directory string
	// Joins judges whether the project may join another's network of a name it defines; nil: yes.
	Joins func(network, of string) error

	pins   map[string]digest.Digest // by Stage or Pin
	looked map[string]image.Looked  // by Unsigned
	loaded int                      // the count of loads when it was
	size   int64                    // of the package
}

// Services are the names of the services in dependency order.
func (p *Project) Services() []string { return p.Compose.Order() }

// Images returns the image references, normalised and sorted, each once.
func (p *Project) Images() []string {
	var refs []string
	for _, i := range p.Compose.Images() {
		refs = append(refs, i.Ref)
	}
	return slices.Compact(refs)
}

// Warnings are about probable mistakes in the project.
func (p *Project) Warnings() []string { return p.Compose.Warnings }

// Pin makes p run images staged before, as returned by Stage. It does not check them: Apply
// fails with NotFound if a new container needs one that is gone.
func (p *Project) Pin(images map[string]digest.Digest) { p.pins = maps.Clone(images) }

// Sources returns the host paths that p mounts or opens, and where each led when p was loaded.
func (p *Project) Sources() map[string]string { return container.Sources(p.Compose) }

// PinSources makes p mount what its paths led to earlier, as returned by Sources, which is
// what was judged then. Other paths lead where they did when p was loaded.
func (p *Project) PinSources(sources map[string]string) {
	if len(sources) > 0 {
		container.FindSources(p.Compose, sources)
	}
}

// Load parses and validates a project and refuses what this runtime does not support. A
// package is extracted to StateDir/projects/<project>/<digest> for bind mounts; those of
// former packages go once the project was applied. Referenced files are read from the
// package itself: workloads may write to the extracted ones.
func (e *Engine) Load(ctx context.Context, s Source) (*Project, error) {
	if !compose.ValidName(s.Project) {
		return nil, &Error{Code: InvalidPackage, Object: s.Project, Err: fmt.Errorf("%.80q is not a valid project name", s.Project)}
	}
	p := &Project{Name: s.Project, Labels: maps.Clone(s.Labels), size: int64(len(s.Package))}
	file := s.File
	var extracted *compose.Package
	if file == "" {
		unlock, err := e.packages.lock(ctx, s.Project)
		if err != nil {
			return nil, fail(Internal, s.Project, err)
		}
		defer unlock()
		p.Digest = digest.FromBytes(s.Package)
		dir := e.packages.at(s.Project, p.Digest)
		p.Directory = dir
		e.projects.with(s.Project, func(known *project) {
			e.projects.count++
			p.loaded, known.loads[dir] = e.projects.count, e.projects.count
		})
		if extracted, err = compose.Extract(s.Package, dir, s.Strict); err != nil {
			return nil, fail(Internal, s.Project, err)
		}
		file = extracted.File
	}
	loaded, err := compose.Load(ctx, compose.Options{
		ProjectName: s.Project,
		Files:       append([]string{file}, s.Files...),
		WorkingDir:  s.Directory,
		Contents:    s.Contents,
		Profiles:    s.Profiles,
		Scale:       s.Scale,
		Environment: s.Environment,
		Ports:       s.Ports,
		Strict:      s.Strict,
		Package:     extracted,
		Logs:        compose.Logging{MaxSize: e.o.LogKeep.MaxSize, MaxFile: e.o.LogKeep.MaxFile},
	})
	if err != nil {
		return nil, fail(Internal, s.Project, err)
	}
	container.FindSources(loaded, nil)
	p.Compose = loaded
	p.warnOfVolumes(e.containers)
	return p, nil
}

// warnOfVolumes warns of names of another project's volumes: in Docker they would be one volume.
func (p *Project) warnOfVolumes(containers *container.Containers) {
	for _, key := range p.Compose.Compose.VolumeNames() {
		v := p.Compose.Compose.Volumes[key]
		if v.Name == "" || bool(v.External) {
			continue
		}
		// A valid name has no wildcard, and a failed warning is no error.
		dirs, _ := filepath.Glob(containers.VolumeDir("*", v.Name))
		for _, dir := range dirs {
			if dir != containers.VolumeDir(p.Name, v.Name) {
				p.Compose.Warnings = append(p.Compose.Warnings, fmt.Sprintf("volumes.%s.name: %s is another volume with that name: unlike with Docker, each project has its own; to share one, declare it external", key, dir))
			}
		}
	}
}

type blueprint struct {
	p       *Project
	service *compose.Service
	pin     digest.Digest
	hash    string
	found   *image.Image // by the first container that has to be made
}

// blueprint needs no image to be present: if nothing has to be made, none is needed.
func (p *Project) blueprint(service string) (*blueprint, error) {
	s := p.Compose.Services[service]
	pin, ok := p.pins[s.Image]
	if !ok {
		return nil, &Error{Code: NotFound, Object: s.Image, Err: errors.New("the image is not staged")}
	}
	hash, err := p.Compose.ConfigHash(service, pin)
	if err != nil {
		return nil, fail(Internal, service, err)
	}
	return &blueprint{p: p, service: s, pin: pin, hash: hash}, nil
}

type planned struct {
	Replica
	*blueprint
}

// replicas returns all replicas of p in dependency order.
func (p *Project) replicas() ([]planned, error) {
	var all []planned
	for _, name := range p.Compose.Order() {
		b, err := p.blueprint(name)
		if err != nil {
			return nil, err
		}
		for n := 1; n <= b.service.Replicas; n++ {
			all = append(all, planned{Replica{name, n}, b})
		}
	}
	return all, nil
}

func (r planned) id() string { return container.ID(r.p.Name, r.Service, r.Number, r.hash) }

func (b *blueprint) config(ctx context.Context, e *Engine, s seat) (container.Config, error) {
	if b.found == nil {
		if err := container.CheckPlatform(b.service.Platform); err != nil {
			return container.Config{}, &Error{Code: Unsupported, Object: s.Service, Err: err}
		}
		found, err := e.images.Get(ctx, b.service.Image, b.pin, b.service.Platform)
		if err != nil {
			return container.Config{}, fail(Internal, b.service.Image, err)
		}
		b.found = found
	}
	return container.Config{
		Labels: container.Labels{
			Project: s.project, Service: s.Service, Number: s.Number,
			Hash: b.hash, Root: b.found.ChainID.String(), Caller: b.p.Labels,
			Details: container.Details{Seat: s.Seat, Healthcheck: health.CheckOf(b.service.Healthcheck, b.found.Health)},
		},
		Service:    b.service,
		Image:      b.found.Config.Config,
		ImageName:  b.found.Name,
		Sandbox:    e.networks.Paths(s.Sandbox),
		Volumes:    b.p.Compose.Volumes,
		WorkingDir: b.p.Compose.WorkingDir,
	}, nil
}

type packages struct {
	dir string
	locks
	projects *projects
}

func (p *packages) of(project string) string { return filepath.Join(p.dir, project) }

func (p *packages) at(project string, d digest.Digest) string {
	return filepath.Join(p.of(project), d.Encoded())
}

// forget removes packages that by replaced, but none loaded later, which are about to be applied.
func (p *packages) forget(ctx context.Context, by *Project) error {
	entries, err := os.ReadDir(p.of(by.Name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		dir := filepath.Join(p.of(by.Name), entry.Name())
		stays := by.Digest != "" && dir == p.at(by.Name, by.Digest)
		p.projects.with(by.Name, func(known *project) {
			if stays = stays || known.loads[dir] > by.loaded; !stays {
				delete(known.loads, dir)
			}
		})
		if !stays {
			err = errors.Join(err, tree.Remove(ctx, dir)) // workloads that mount it may have filled it
		}
	}
	if err != nil {
		return fail(Internal, by.Name, err)
	}
	return nil
}

// remove removes a project's packages, durably: nothing would look for them after a power cut.
func (p *packages) remove(ctx context.Context, name string) error {
	if err := tree.Remove(ctx, p.of(name)); err != nil {
		return fail(Internal, name, err)
	}
	p.projects.with(name, func(known *project) { clear(known.loads) })
	err := tree.Sync(p.dir) // also where a killed agent had no time for it
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(Internal, name, fmt.Errorf("cannot sync directory of packages: %w", err))
	}
	return nil
}

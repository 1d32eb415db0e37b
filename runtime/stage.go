package runtime

import (
	"context"
	"errors"
	"maps"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/image"
)

// maxPackage is how large a package may be: Compose files and what they mount.
const maxPackage = 64 << 20

// Progress is how much of one object is on the device; Total is 0 while unknown.
type Progress = image.Progress

// PackageRef says where a package is: an OCI artifact or a URL.
type PackageRef struct {
	Repository string // registry[:port]/path of an OCI artifact ...
	Revision   string // ... and its tag or digest
	Location   string // or the http(s) URL of a legacy package (PKG-15)
}

// Package is a fetched package.
type Package struct {
	Digest digest.Digest // of Data
	Data   []byte
	Origin digest.Digest // of the OCI manifest, if any
}

// FetchPackage downloads a package. Nothing is kept in containerd.
func (e *Engine) FetchPackage(ctx context.Context, ref PackageRef, progress func(Progress)) (*Package, error) {
	ctx = e.within(ctx)
	limits := image.ArtifactLimits{Size: maxPackage}
	var p Package
	var err error
	object := ref.Location
	switch {
	case ref.Repository != "":
		object = ref.Repository + ":" + ref.Revision
		p.Data, p.Origin, err = e.images.Artifact(ctx, ref.Repository, ref.Revision, limits, progress)
	case ref.Location != "":
		p.Data, err = e.images.Location(ctx, ref.Location, limits, progress)
	default:
		return nil, &Error{Code: InvalidPackage, Object: "package", Err: errors.New("neither repository nor location is given")}
	}
	if err != nil {
		return nil, failImage(object, err)
	}
	p.Digest = digest.FromBytes(p.Data)
	return &p, nil
}

// Stage makes every image of p present, unpacked and on the medium, and returns
// the digest of each by its reference; p remembers them. An image named in pins
// is taken by that digest; what is present needs no network.
func (e *Engine) Stage(ctx context.Context, p *Project, pins map[string]digest.Digest, progress func(Progress)) (map[string]digest.Digest, error) {
	ctx = e.within(ctx)
	staged := make(map[string]digest.Digest)
	for _, ref := range p.Images() {
		pulled, err := e.images.Pull(ctx, ref, pins[ref], progress)
		if err != nil {
			return nil, failImage(ref, err)
		}
		staged[ref] = pulled.Digest
	}
	// containerd syncs its metadata, not the files of layers: after a power
	// cut these could be empty. One sync for all of them is cheaper.
	if err := image.Sync(e.o.StateDir); err != nil {
		return nil, fail(Internal, p.Name, err)
	}
	p.pins = maps.Clone(staged)
	return staged, nil
}

// Prune removes the images that no container uses and no keep names (reference
// -> digest), and returns their names. The space comes free soon after.
func (e *Engine) Prune(ctx context.Context, keep ...map[string]digest.Digest) ([]string, error) {
	ctx = e.within(ctx)
	kept := make(map[string]bool)
	for _, pins := range keep {
		for ref, pin := range pins {
			name, err := image.Name(ref, pin)
			if err != nil {
				return nil, failImage(ref, err)
			}
			kept[name] = true
		}
	}
	all, err := e.containers.List(ctx)
	if err != nil {
		return nil, fail(Internal, "images", err)
	}
	for _, c := range all {
		kept[c.Image] = true
	}
	removed, err := e.images.Prune(ctx, kept)
	if err != nil {
		return removed, failImage("images", err)
	}
	return removed, nil
}

package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/image"
)

// maxPackage is how large a package may be: Compose files and what they mount.
const maxPackage = 64 << 20

// Progress is how many bytes of one object are present; Total is 0 while unknown.
type Progress = image.Progress

type stager struct {
	namespace
	o          Options
	images     *image.Images
	containers *container.Containers
}

// PackageRef says where a package is: an OCI artifact or a URL.
type PackageRef struct {
	Repository string       // registry[:port]/path of an OCI artifact ...
	Revision   string       // ... and its tag or digest
	Location   string       // or the http(s) URL of a legacy package (PKG-15) ...
	Key        string       // ... and of the OpenPGP keys by one of which it has to be signed; "": by none
	Trust      *image.Trust // of an OCI artifact; nil: no signature is required
}

// Package is a fetched package.
type Package struct {
	Digest digest.Digest // of Data
	Data   []byte
	Origin digest.Digest // of the OCI manifest, if any
	Signed bool          // as it has to be
}

// FetchPackage downloads a package, verified by digests or signature. containerd keeps nothing of it.
func (s *stager) FetchPackage(ctx context.Context, ref PackageRef, progress func(Progress)) (*Package, error) {
	ctx = s.within(ctx)
	limits := image.ArtifactLimits{Size: maxPackage}
	var p Package
	var err error
	object := ref.Location
	switch {
	case ref.Repository != "":
		object = ref.Repository + ":" + ref.Revision
		limits.Trust = ref.Trust
		p.Data, p.Origin, err = s.images.Artifact(ctx, ref.Repository, ref.Revision, limits, progress)
		p.Signed = ref.Trust != nil
	case ref.Location != "":
		p.Data, err = s.images.Location(ctx, image.Source{Package: ref.Location, Keys: ref.Key}, limits, progress)
		p.Signed = ref.Key != "" || len(s.o.Images.Keys) > 0
	default:
		return nil, &Error{Code: InvalidPackage, Object: "package", Err: errors.New("neither repository nor location is set")}
	}
	if err != nil {
		return nil, fail(Internal, object, err)
	}
	p.Digest = digest.FromBytes(p.Data)
	return &p, nil
}

// Unsigned returns the images of p, by reference, that none of their public keys has signed,
// and why; p remembers the digests it found, so that Stage brings just those. Digests are
// looked up as by Stage, and nothing of the images is downloaded. An image on the device
// that was found signed before needs no network.
func (s *stager) Unsigned(ctx context.Context, p *Project, pins map[string]digest.Digest, keys image.Keyring) (map[string]string, error) {
	ctx = s.within(ctx)
	looked, unsigned := make(map[string]image.Looked), make(map[string]string)
	for _, w := range wantsOf(p, pins) {
		if _, known := looked[w.Ref]; known { // for another platform
			continue
		}
		l, err := s.images.Look(ctx, w, keys)
		if err != nil {
			return nil, p.failImages(err)
		}
		looked[w.Ref] = l
		if l.Signer == "" {
			unsigned[w.Ref] = l.Why
		}
	}
	p.looked = looked
	return unsigned, nil
}

// Stage makes every image of p present, unpacked and durable, and returns the digests by
// reference; p remembers them. An image in pins is taken by that digest. Images on the
// device or in the preload directory need no network. Nothing is downloaded or written
// unless all of it fits and leaves the reserve free; Persists tells cheaply when it is worth
// another attempt.
func (s *stager) Stage(ctx context.Context, p *Project, pins map[string]digest.Digest, progress func(Progress)) (map[string]digest.Digest, error) {
	ctx = s.within(ctx)
	wants := wantsOf(p, pins)
	pulled, err := s.images.Pull(ctx, wants, progress)
	if err != nil {
		return nil, p.failImages(err)
	}
	staged := make(map[string]digest.Digest)
	for n, w := range wants {
		if d := pulled[n].Digest; staged[w.Ref] == "" {
			staged[w.Ref] = d
		} else if staged[w.Ref] != d {
			return nil, &Error{Code: Unreachable, Object: w.Ref, Err: errors.New("the tag moved while its platforms were looked up")}
		}
	}
	p.pins = maps.Clone(staged)
	return staged, nil
}

// Complete tells whether Stage would need no registry: all is on the device or preloaded.
func (s *stager) Complete(ctx context.Context, p *Project, pins map[string]digest.Digest) (bool, error) {
	complete, err := s.images.Complete(s.within(ctx), wantsOf(p, pins))
	if err != nil {
		return false, p.failImages(err)
	}
	return complete, nil
}

// wantsOf returns the images of a project, sorted by name.
func wantsOf(p *Project, pins map[string]digest.Digest) []image.Want {
	var wants []image.Want
	for _, i := range p.Compose.Images() {
		wants = append(wants, image.Want{
			Ref: i.Ref, Pin: pins[i.Ref], Platform: i.Platform,
			Policy: cmp.Or(image.Policy(i.Policy), image.Missing), For: p.Name,
			Beside: p.size, // the package is kept
			Looked: p.looked[i.Ref],
		})
	}
	return wants
}

// failImages names the services that need the image of an error.
func (p *Project) failImages(err error) error {
	err = fail(Internal, p.Name, err)
	var failed *Error
	if !errors.As(err, &failed) {
		return err
	}
	var services []string
	for _, name := range p.Compose.Order() {
		if p.Compose.Services[name].Image == failed.Object {
			services = append(services, name)
		}
	}
	if len(services) == 0 {
		return err
	}
	return &Error{Code: failed.Code, Object: failed.Object, Err: fmt.Errorf("cannot get the image of %s: %w", strings.Join(services, ", "), failed.Err)}
}

// Downloaded is the bytes of images and packages downloaded since this process started.
func (s *stager) Downloaded() int64 { return s.images.Downloaded() }

// Keep is what Prune leaves.
type Keep struct {
	Images   []map[string]digest.Digest // reference -> digest, as Stage returned them
	Fetching []string                   // projects whose images are still to be staged: what has come of them stays
}

// Prune removes images that neither a container uses nor a revision in keep needs, and
// downloads that nothing waits for, and returns their names. The space is freed soon after.
// Images of others are never touched.
func (s *stager) Prune(ctx context.Context, keep Keep) ([]string, error) {
	ctx = s.within(ctx)
	kept, err := s.keptImages(ctx, keep)
	if err != nil {
		return nil, err
	}
	fetching := make(map[string]bool)
	for _, project := range keep.Fetching {
		fetching[project] = true
	}
	removed, err := s.images.Prune(ctx, kept, fetching)
	if err != nil {
		return removed, fail(Internal, "images", err)
	}
	if err := s.containers.RemoveLeftovers(ctx); err != nil { // volumes take space, too
		s.o.Logger.Warn("cannot remove leftovers", "error", err)
	}
	return removed, nil
}

func (s *stager) keptImages(ctx context.Context, keep Keep) (map[string]bool, error) {
	kept := make(map[string]bool)
	for _, pins := range keep.Images {
		for ref, pin := range pins {
			name, err := image.Name(ref, pin)
			if err != nil {
				return nil, fail(Internal, ref, err)
			}
			kept[name] = true
		}
	}
	all, err := s.containers.Recorded(ctx)
	if err != nil {
		return nil, fail(Internal, "images", err)
	}
	for _, c := range all {
		kept[c.Image] = true
	}
	return kept, nil
}

package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/platform"
)

// Policy says when the registry is asked for the digest of a tag.
type Policy string

// The policies; empty is Missing.
const (
	Missing Policy = "missing" // when the device has no such tag; "latest" always, as the Compose Specification says
	Always  Policy = "always"  // each time
	Never   Policy = "never"   // not at all: the image is on the device or in the preload directory
)

// Want is a wanted image.
type Want struct {
	Ref      string
	Pin      digest.Digest // digest of an earlier lookup of the tag; may be empty
	Platform string        // as linux/arm/v7; empty: this machine's
	Policy   Policy
	For      string // the project that wants it; Prune keeps what it has begun to download
	Looked   Looked // result of an earlier Look; may be empty
	Beside   int64  // bytes that the agent keeps in its own records because of it, and of all that are pulled with it
}

// tagsLabel of an image record has the tags by which it was found, separated by spaces.
const tagsLabel = "margolite/tags"

type target struct {
	platforms.MatchComparer        // what it runs, the best first
	name                    string // for errors
	architecture            string // of which alone images are taken; "": of any that it runs
}

// Match tells whether an image of the described platform is suitable.
func (t target) Match(described v1.Platform) bool {
	return t.MatchComparer.Match(described) && (t.architecture == "" || t.architecture == platforms.Normalize(described).Architecture)
}

// targetOf is the platform of a name; "": this machine and all it runs. A name also covers its lesser
// variants, as arm/v7 covers arm/v6, but no other architecture.
func targetOf(name string) (target, error) {
	if name == "" {
		host := platforms.Normalize(platforms.DefaultSpec())
		return target{MatchComparer: platforms.Only(host), name: "this machine (" + platforms.Format(host) + ")"}, nil
	}
	p, err := platform.Parse(name)
	if err != nil {
		return target{}, &fault.Error{Code: fault.Unsupported, Err: fmt.Errorf("cannot read platform %q: %w", name, err)}
	}
	return target{platforms.Only(p), platforms.Format(p), p.Architecture}, nil
}

type found struct {
	reference.Canonical        // repository@digest
	tag                 string // that was asked for, to be remembered; empty: none, or it was not asked for
}

type asker func(context.Context, reference.Named) (digest.Digest, error)

// errAsks says that a registry would have to be asked, and may not be.
var errAsks = errors.New("a registry would have to be asked")

func nobody(context.Context, reference.Named) (digest.Digest, error) { return "", errAsks }

func (i *Images) find(ctx context.Context, w Want, ask asker) (f found, err error) {
	named, err := parse(w.Ref)
	if err != nil {
		return f, bad(err)
	}
	d := w.Pin
	if canonical, ok := named.(reference.Canonical); ok && d == "" {
		d = canonical.Digest()
	}
	if d == "" {
		f.tag = named.(reference.Tagged).Tag()
		if d, err = i.findTag(ctx, w, named, f.tag == "latest", ask); err != nil {
			return f, err
		}
	}
	if err := d.Validate(); err != nil {
		return f, bad(err)
	}
	f.Canonical, err = reference.WithDigest(reference.TrimNamed(named), d)
	return f, err
}

// findTag returns the digest of a tag. latest: it is looked up even if known on this device.
func (i *Images) findTag(ctx context.Context, w Want, named reference.Named, latest bool, ask asker) (digest.Digest, error) {
	if w.Looked.Digest != "" {
		return w.Looked.Digest, nil
	}
	if w.Policy == Always {
		return ask(ctx, named)
	}
	here, err := i.findHere(ctx, named)
	switch {
	case w.Policy == Never && err == nil && here == "":
		return "", errNever
	case w.Policy == Never, !latest && (err != nil || here != ""):
		return here, err
	}
	d, err := ask(ctx, named)
	if err == nil || here == "" || errors.Is(err, errAsks) || ctx.Err() != nil {
		return d, err
	}
	i.o.Logger.Debug("registry failed; using the image on this device", "image", w.Ref, "error", err)
	return here, nil
}

var errNever = &fault.Error{
	Code: fault.NotFound,
	Err:  errors.New("not on this device, and its pull policy is never"),
}

// findHere looks for a tag among local and preloaded images; "": it is unknown.
func (i *Images) findHere(ctx context.Context, named reference.Named) (digest.Digest, error) {
	records, err := i.tagged(ctx, named.Name(), named.(reference.Tagged).Tag())
	if err != nil {
		return "", err
	}
	if len(records) > 0 {
		newest := slices.MaxFunc(records, func(a, b images.Image) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
		return newest.Target.Digest, nil
	}
	root, err := i.preload.archives().Resolve(ctx, named)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	return root.Digest, err
}

func (i *Images) tagged(ctx context.Context, repository, tag string) ([]images.Image, error) {
	records, err := i.records(ctx)
	return slices.DeleteFunc(records, func(r images.Image) bool {
		return !strings.HasPrefix(r.Name, repository+"@") || !slices.Contains(strings.Fields(r.Labels[tagsLabel]), tag)
	}), err
}

// tag records that a tag now stands for what was found, and for no other record of the repository.
func (i *Images) tag(ctx context.Context, f found) error {
	held, err := i.tagged(ctx, f.Name(), f.tag)
	if err != nil {
		return err
	}
	if err := i.mark(ctx, f.String(), tagsLabel, f.tag, true); err != nil {
		return err
	}
	for _, r := range held {
		if r.Name == f.String() {
			continue
		}
		if err := i.mark(ctx, r.Name, tagsLabel, f.tag, false); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// maxMarks is the maximum number of words in a label, whose length containerd bounds.
const maxMarks = 16

// mark adds a word to a label of a record, keeping the latest, or removes it.
func (i *Images) mark(ctx context.Context, name, label, word string, in bool) error {
	record, err := i.o.Client.ImageService().Get(ctx, name)
	if err != nil {
		return fmt.Errorf("cannot label image: %w", err)
	}
	words := strings.Fields(record.Labels[label])
	if record.Labels[ownLabel] == "" || slices.Contains(words, word) == in {
		return nil
	}
	if words = slices.DeleteFunc(words, func(w string) bool { return w == word }); in {
		words = append(words, word)
	}
	record.Labels[label] = strings.Join(words[max(0, len(words)-maxMarks):], " ")
	if _, err := i.o.Client.ImageService().Update(ctx, record, "labels."+label); err != nil {
		return fmt.Errorf("cannot label image: %w", err)
	}
	return nil
}

// Complete tells whether Pull would need no registry: all is on the device or preloaded.
func (i *Images) Complete(ctx context.Context, wants []Want) (bool, error) {
	for _, w := range wants {
		if w.Policy == Never { // no registry is asked, whatever is missing
			continue
		}
		p, err := i.look(ctx, w, nobody)
		if err == nil && p.image == nil {
			if _, err := i.preload.archives().Resolve(ctx, p.found); err != nil {
				return false, nil
			}
		}
		if errors.Is(err, errAsks) {
			return false, nil
		}
		if err != nil {
			return false, fail(w.Ref, err)
		}
	}
	return true, nil
}

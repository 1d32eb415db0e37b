package image

import (
	"context"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Complete says whether all wanted images are on the device, or come from where no registry is asked: PullAll would need
// none then. It asks nobody.
func (i *Images) Complete(ctx context.Context, wants []Want) (bool, error) {
	for _, w := range wants {
		complete, err := i.isComplete(ctx, w)
		if err != nil || !complete {
			return false, fail(w.Ref, err)
		}
	}
	return true, nil
}

func (i *Images) isComplete(ctx context.Context, w Want) (bool, error) {
	named, err := parse(w.Ref)
	if err != nil {
		return false, bad(err)
	}
	platform, err := i.targetOf(w.Platform)
	if err != nil {
		return false, err
	}
	var d digest.Digest
	switch canonical, byDigest := named.(reference.Canonical); {
	case w.Policy == Never: // nobody is asked, whatever is missing
		return true, nil
	case w.Pin != "":
		d = w.Pin
	case byDigest:
		d = canonical.Digest()
	case w.Looked.Digest != "":
		d = w.Looked.Digest
	case w.Policy == Always, named.(reference.Tagged).Tag() == "latest":
		return false, nil
	default:
		if d, err = i.findHere(ctx, named); err != nil {
			return false, err
		}
	}
	if d == "" {
		return false, nil
	}
	_, err = i.get(ctx, pinned(reference.TrimNamed(named), d), platform)
	if err == nil || !isMissing(err) {
		return err == nil, err
	}
	for _, a := range i.preload.archives() {
		if _, ok, err := a.root(d); err == nil && ok {
			return true, nil
		}
	}
	return false, nil
}

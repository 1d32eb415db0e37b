package image

import (
	"context"
	"errors"
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
	if w.Policy == Never { // nobody is asked, whatever is missing
		return true, nil
	}
	p, err := i.look(ctx, w, nobody)
	switch {
	case errors.Is(err, errAsks):
		return false, nil
	case err != nil, p.image != nil:
		return err == nil, err
	}
	for _, a := range i.preload.archives() {
		if _, ok, err := a.root(p.found.digest); err == nil && ok {
			return true, nil
		}
	}
	return false, nil
}

package agent

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

// newcomer is a component whose images are to be judged.
type newcomer struct {
	component string
	project   *runtime.Project
	pins      map[string]digest.Digest // what its images are known to stand for
	judged    map[string]digest.Digest // those of them that were judged before
}

// judge is admit, and refuses images that are not signed by a key of this device
// if they have to be. Signatures are looked up last, and not for what the rules
// refuse anyway.
func (r *reconciler) judge(ctx context.Context, id string, doc *margo.Deployment, asks []policy.ServiceAsk, newcomers ...newcomer) error {
	if err := r.admit(ctx, id, doc, asks); err != nil {
		return err
	}
	keys := r.settings.Load().ImageKeys
	if keys == nil {
		return nil
	}
	found := false
	for _, c := range newcomers {
		if len(c.judged) > 0 && judgedAll(c) {
			continue
		}
		unsigned, err := r.runtime.Unsigned(ctx, c.project, c.pins, keys)
		if err != nil {
			return runtimeFault(c.component, err)
		}
		for i := range asks {
			a := &asks[i]
			if _, judged := c.judged[a.Image]; !judged && a.Component == c.component && a.Service != "" {
				a.Unsigned = unsigned[a.Image]
				found = found || a.Unsigned != ""
			}
		}
	}
	if !found {
		return nil
	}
	return r.admit(ctx, id, doc, asks)
}

func judgedAll(c newcomer) bool {
	for _, s := range c.project.Compose.Services {
		if _, judged := c.judged[s.Image]; !judged {
			return false
		}
	}
	return true
}

// isSigned says whether the package of a component had to be signed before it was
// taken in.
func isSigned(c margo.Component, s *store.Staged) bool {
	return s.Signed || c.Repository == "" && c.KeyLocation != ""
}

package agent

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

// judge is admit, and also refuses images without a required signature, except those judged
// before. Signatures are checked last, and not for what the rules refuse anyway.
func (r *reconciler) judge(
	ctx context.Context, id string, doc *margo.Deployment, asks []policy.ServiceAsk, components []stagedComponent, judged map[string]digest.Digest,
) error {
	if err := r.admit(ctx, id, asks); err != nil {
		return err
	}
	keys := r.settings.Load().ImageKeys
	if keys == nil {
		return nil
	}
	found := false
	for _, c := range components {
		if len(judged) > 0 && hasOnly(c.project, judged) {
			continue
		}
		unsigned, err := r.runtime.Unsigned(ctx, c.project, c.images, keys)
		if err != nil {
			return runtimeFault(c.name, err)
		}
		for i := range asks {
			a := &asks[i]
			if _, known := judged[a.Image]; !known && a.Component == c.name && a.Service != "" {
				a.Unsigned = unsigned[a.Image]
				found = found || a.Unsigned != ""
			}
		}
	}
	if !found {
		return nil
	}
	return r.admit(ctx, id, asks)
}

func hasOnly(p *runtime.Project, images map[string]digest.Digest) bool {
	for _, s := range p.Compose.Services {
		if _, known := images[s.Image]; !known {
			return false
		}
	}
	return true
}

// isSigned says that the package of a component had to be signed to be accepted.
func isSigned(c margo.Component, s *store.Staged) bool {
	return s.Signed || c.Repository == "" && c.KeyLocation != ""
}

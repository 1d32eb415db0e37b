package agent

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/policy"
)

// consult asks the site's program about a change: nil where it agrees or there
// is none, *waiting where it wants to be asked again, a *fault of codeVetoed
// where it says no.
func consult(ctx context.Context, h policy.Hook, c policy.Change, revision digest.Digest) error {
	return nil
}

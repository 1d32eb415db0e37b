//go:build slim

package agent

import (
	"context"
	"fmt"

	"github.com/margolite/margolite/agent/control"
)

// scrape is what there is no room for in this flavour.
type scrape struct{}

func (*scrape) of(context.Context, *Agent) ([]byte, error) {
	return nil, fmt.Errorf("%w: the slim flavour has no metrics; `margolite status --json` has what the agent knows of itself", control.ErrNotFound)
}

package agent

import (
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
)

// stagedComponent is one component of a revision as it would run.
type stagedComponent struct {
	name       string
	project    *runtime.Project
	parameters map[string]string
}

// difference is what becomes of the services of a deployment when one revision
// takes the place of another; an empty one stands for nothing that runs.
func difference(from, to []stagedComponent) ([]control.ServiceChange, []control.ValueChange) {
	return nil, nil
}

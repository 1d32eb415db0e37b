package agent

import (
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
)

// asksOf is what the services of a component ask of the device.
func asksOf(component string, signed bool, p *runtime.Project) []policy.ServiceAsk { return nil }

// admit refuses what a workload may not ask of this device, before its images
// are fetched. The error is a *fault of codeNotAllowed.
func (r *reconciler) admit(id string, doc *margo.Deployment, asks []policy.ServiceAsk) error {
	return nil
}

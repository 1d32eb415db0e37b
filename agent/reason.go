package agent

import (
	"errors"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/store"
)

// waitsFor begins a code that tells that nothing is wrong, such as WAITS_FOR_APPROVAL.
const waitsFor = "WAITS_FOR_"

const (
	codeWaitsForRegistry = waitsFor + "REGISTRY"
	codeWaitsForSpace    = waitsFor + "SPACE"
)

func waitingCode(c policy.ReasonCode) string { return waitsFor + strings.ToUpper(string(c)) }

// tellReason reports to the WFM why a deployment is pending (ST-11), if the site wants that and
// it was not told the same already.
func (r *reconciler) tellReason(w *worker, code string, why error) {
	if !r.settings.Load().Reports.Reasons {
		return
	}
	d, err := r.store.Deployment(w.id)
	if err != nil || Phase(d.Phase).State() != margo.Pending || codeOf(d.Waits) == code {
		return // the worker reports an unreadable record
	}
	now := time.Now()
	if w.allowance.TokensAt(now) < 1 {
		return // it is shown on the device
	}
	reason := &store.Fault{Code: code, Source: r.nameOf(&d), Message: shortened(why.Error(), maxFaultText)}
	err = r.ledger.step(&d, "reason", func(d *store.Deployment) { d.Waits = reason })
	switch {
	case err == nil:
		w.allowance.AllowN(now, 1)
	case !errors.Is(err, errSuperseded):
		r.logger.Warn("cannot tell why deployment waits", "deployment", d.ID, "error", err)
	}
}

package agent

import (
	"context"

	"github.com/margolite/margolite/agent/control"
)

// The kinds of entries of the journal.
const (
	noteStarted          = "agent.started"
	noteManifestAccepted = "manifest.accepted"
	noteManifestRefused  = "manifest.refused"
	noteManifestRollback = "manifest.rollback" // accepted although its version is not greater
	noteApproved         = "change.approved"
	noteRejected         = "change.rejected"
	noteRefused          = "change.refused" // for what it asks of the device
	noteVetoed           = "change.vetoed"  // by the site's hook
	noteBegun            = "change.begun"
	noteDone             = "change.done"
	noteFailed           = "change.failed"
	noteRemoved          = "change.removed"
	noteReturn           = "rollback.asked" // by hand
	noteReturned         = "rollback.done"  // the former revision runs again
	noteNotReturned      = "rollback.failed"
	noteHeld             = "lock.taken"
	noteReleased         = "lock.released"
	noteExpired          = "lock.expired"
	noteSecurity         = "security"
)

// History gives entries of the journal, oldest first.
func (a *Agent) History(ctx context.Context, r control.HistoryRequest) ([]control.Entry, error) {
	return nil, errLater
}

// VerifyHistory checks that nothing in the journal was changed.
func (a *Agent) VerifyHistory(ctx context.Context) (control.Verification, error) {
	return control.Verification{}, errLater
}

package agent

import (
	"context"
	"errors"

	"github.com/margolite/margolite/agent/control"
)

var errLater = errors.New("not built yet")

// Approve lets a change happen that waits for it.
func (a *Agent) Approve(ctx context.Context, r control.AnswerRequest) error { return errLater }

// Reject keeps a change from ever happening.
func (a *Agent) Reject(ctx context.Context, r control.AnswerRequest) error { return errLater }

// Rollback brings a deployment back to the revision before.
func (a *Agent) Rollback(ctx context.Context, r control.ReturnRequest) error { return errLater }

package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
)

// Backend implements the requests of the socket.
type Backend interface {
	// Status returns the present state of the device.
	Status(ctx context.Context) (*Status, error)
	// Sync polls the WFM now and returns the outcome.
	Sync(ctx context.Context) error
	// AcceptRollback polls the WFM now and accepts the named manifest although its version is not
	// greater. ErrConflict: the WFM serves another one, or its version is greater.
	AcceptRollback(ctx context.Context, r RollbackRequest) error
	// Approve permits a change; Reject forbids it for good. Both name the reviewed revision:
	// ErrConflict if another one waits.
	Approve(ctx context.Context, r AnswerRequest) error
	Reject(ctx context.Context, r AnswerRequest) error
	// Hold takes an update lock, or extends the holder's.
	Hold(ctx context.Context, r HoldRequest) (Lock, error)
	// Release releases locks and returns them; finding none is no error.
	Release(ctx context.Context, r ReleaseRequest) ([]Lock, error)
	// Rollback returns a deployment to its previous revision until the WFM publishes another one.
	// It returns once that is decided, not once it runs.
	Rollback(ctx context.Context, r ReturnRequest) error
	// History returns entries of the journal, oldest first.
	History(ctx context.Context, r HistoryRequest) ([]Entry, error)
	// VerifyHistory checks that the journal is unchanged.
	VerifyHistory(ctx context.Context) (Verification, error)
	// Backup returns a consistent copy of the database. The caller closes it.
	Backup(ctx context.Context) (*os.File, error)
	// Capabilities returns the wire document that is, or would be, reported.
	Capabilities(ctx context.Context) (json.RawMessage, error)
	// Subscribe delivers events until the function is called; a slow subscriber loses some.
	Subscribe() (<-chan Event, func())
	// Metrics returns all metrics in the text format of Prometheus.
	Metrics(ctx context.Context) ([]byte, error)
	// Panicked records the panic of a request while it is being recovered.
	Panicked(what string, value any)
	// Projects also serves deployments.
	Projects
}

// Projects runs Compose files on the device, outside any deployment.
type Projects interface {
	// Logs writes the output of a project's services to w; when following, until ctx is done.
	Logs(ctx context.Context, r LogsRequest, w io.Writer) error
	// Exec runs a command in a container of a project until it or ctx ends, and returns its exit
	// code. With an error, a code above 0 is a shell's code for a command that cannot be run.
	Exec(ctx context.Context, r ExecRequest, s ExecStreams) (int, error)
	// ComposeUp returns once the project runs. Calls of notify do not overlap.
	ComposeUp(ctx context.Context, r ComposeRequest, notify func(Event)) error
	// ComposePull only pulls the images of a project.
	ComposePull(ctx context.Context, r ComposeRequest, notify func(Event)) error
	// ComposeDown removes the project; a missing one is no error.
	ComposeDown(ctx context.Context, r DownRequest) error
	// ComposePs lists the services of a project; empty: of all projects.
	ComposePs(ctx context.Context, project string) ([]Service, error)
	// Unneeded lists what nothing on the device needs now.
	Unneeded(ctx context.Context) ([]Unneeded, error)
	// Prune removes those of the items that are still unneeded, and returns what it removed.
	Prune(ctx context.Context, items []Unneeded) ([]Unneeded, error)
}

// Errors of a Backend that select the socket's answer.
var (
	ErrNotFound = errors.New("not found")        // the named object does not exist
	ErrInvalid  = errors.New("invalid request")  // the request can never succeed
	ErrConflict = errors.New("not possible now") // the request conflicts with the present state
	ErrBusy     = errors.New("too many at once") // there is no room for the request now
)

// codeOf returns the HTTP status for an error of a Backend.
func codeOf(err error) int {
	switch {
	case errors.Is(err, ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, ErrConflict):
		return http.StatusConflict
	case errors.Is(err, ErrBusy):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

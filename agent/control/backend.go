package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
)

// Backend is what the socket gives access to.
type Backend interface {
	// Status describes the device as it is now.
	Status(ctx context.Context) (*Status, error)
	// Sync polls the WFM now and returns what came of it.
	Sync(ctx context.Context) error
	// AcceptRollback polls the WFM now and accepts the manifest that the request
	// names although its version is not greater; ErrConflict when none is refused
	// or the WFM serves another one.
	AcceptRollback(ctx context.Context, r RollbackRequest) error
	// Approve lets a change happen; Reject keeps it from ever happening. Both
	// name the revision that was looked at: ErrConflict when another one waits.
	Approve(ctx context.Context, r AnswerRequest) error
	Reject(ctx context.Context, r AnswerRequest) error
	// Hold takes an update lock, or prolongs the one that the holder has.
	Hold(ctx context.Context, r HoldRequest) (Lock, error)
	// Release gives locks back and returns them; none is no error.
	Release(ctx context.Context, r ReleaseRequest) ([]Lock, error)
	// Rollback brings a deployment back to the revision before, until the WFM
	// publishes another one. It returns once that is decided, not once it runs.
	Rollback(ctx context.Context, r ReturnRequest) error
	// History gives entries of the journal, oldest first.
	History(ctx context.Context, r HistoryRequest) ([]Entry, error)
	// VerifyHistory checks that nothing in the journal was changed.
	VerifyHistory(ctx context.Context) (Verification, error)
	// Backup returns a consistent copy of the database. The caller closes it.
	Backup(ctx context.Context) (*os.File, error)
	// Capabilities is the wire document that is, or would be, reported.
	Capabilities(ctx context.Context) (json.RawMessage, error)
	// Subscribe delivers events until the returned function is called. A
	// subscriber that does not keep up loses events.
	Subscribe() (<-chan Event, func())
	// Metrics is everything that can be counted, in the text format of Prometheus.
	Metrics(ctx context.Context) ([]byte, error)
	// Panicked takes note of what a request panicked with; it is called while that
	// is being recovered from.
	Panicked(what string, value any)
	// Projects is asked for deployments, too.
	Projects
}

// Projects runs Compose files on the device, outside of any deployment.
type Projects interface {
	// Logs writes what services of a project printed to w, until ctx ends if it
	// follows.
	Logs(ctx context.Context, r LogsRequest, w io.Writer) error
	// Exec runs a command in a container of a project until it ends, or ctx does,
	// and returns its exit code. With an error, a code above 0 is what a shell ends
	// with that cannot run it.
	Exec(ctx context.Context, r ExecRequest, s ExecStreams) (int, error)
	// ComposeUp makes the project run and returns once it does. notify is
	// called from one goroutine at a time.
	ComposeUp(ctx context.Context, r ComposeRequest, notify func(Event)) error
	// ComposePull brings the images of a project up to date, and nothing else.
	ComposePull(ctx context.Context, r ComposeRequest, notify func(Event)) error
	// ComposeDown removes the project. One that is not there is no error.
	ComposeDown(ctx context.Context, r DownRequest) error
	// ComposePs lists the services of a project, or of all when it is empty.
	ComposePs(ctx context.Context, project string) ([]Service, error)
	// Unneeded lists what is kept on the device although nothing needs it now.
	Unneeded(ctx context.Context) ([]Unneeded, error)
	// Prune removes those of the given things that are still not needed, and
	// returns what it removed.
	Prune(ctx context.Context, items []Unneeded) ([]Unneeded, error)
}

// Errors that a Backend returns to choose the answer of the socket.
var (
	ErrNotFound = errors.New("not found")        // the named object does not exist
	ErrInvalid  = errors.New("invalid request")  // the request can never succeed
	ErrConflict = errors.New("not possible now") // the request contradicts the present state
	ErrBusy     = errors.New("too many at once") // there is no room for the request now
)

// codeOf is the code of the answer that tells of an error of a Backend.
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

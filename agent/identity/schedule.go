package identity

import (
	"cmp"
	"errors"
	"time"

	"github.com/margolite/margolite/agent/margo"
)

// Bounds of the time between two refreshes of the trust bundle: a bundle cannot make a fleet ask
// more often, and a rotation of anchors is not missed for longer.
const (
	leastRefresh   = 5 * time.Minute
	mostRefresh    = 7 * 24 * time.Hour
	defaultRefresh = 24 * time.Hour
	firstRefresh   = time.Minute // latest first refresh after a start
)

// Bounds of the time between attempts that fail.
const (
	firstRetry = 30 * time.Second
	mostRetry  = time.Hour
)

// NextRefresh is how long after a successful refresh the next is due: by the bundle, else as
// configured, else a day; from five minutes to seven days, whatever HTTP caching says (ID-23).
func NextRefresh(hint, configured time.Duration) time.Duration {
	wanted := cmp.Or(max(hint, 0), max(configured, 0), defaultRefresh)
	return min(max(wanted, leastRefresh), mostRefresh)
}

// NextRetry is how long to wait after this many failed refreshes in a row, the last with this
// error (ERR-04 ... ERR-06, ID-28). atLeast is what the service asked for, which nothing may
// shorten. Permanent errors are also retried, rarely: somebody may have fixed the cause.
func NextRetry(failures int, err error) (wait, atLeast time.Duration) {
	first := firstRetry
	var refused answered
	if errors.As(err, &refused) {
		var problem margo.ProblemDetail
		problem, atLeast = refused.Answer()
		switch {
		case !problem.Retryable || problem.Backoff == margo.BackoffNone:
			return max(mostRetry, atLeast), atLeast
		case problem.Backoff == margo.BackoffFixed && atLeast > 0:
			return atLeast, atLeast
		}
		first = max(atLeast, firstRetry)
	}
	wait = first
	for i := 1; i < failures && wait < mostRetry; i++ {
		wait *= 2
	}
	return max(min(wait, mostRetry), atLeast), atLeast
}

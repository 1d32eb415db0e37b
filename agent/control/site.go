package control

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

// Bounds of requests about changes.
const (
	MaxHolder      = 128                  // bytes, of a holder's or a user's name
	MaxReason      = 512                  // bytes
	MaxHoldSeconds = 10 * 366 * 24 * 3600 // longer means without end
	MaxDeployment  = 256                  // bytes, of a deployment's id or name
)

func (r *HistoryRequest) query() url.Values {
	return url.Values{"since": {strconv.FormatUint(r.Since, 10)}, "last": {strconv.Itoa(r.Last)}, "deployment": {r.Deployment}}
}

func historyRequest(from *http.Request) (HistoryRequest, error) {
	q := from.URL.Query()
	r := HistoryRequest{Deployment: q.Get("deployment")}
	if text := q.Get("since"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return r, fmt.Errorf("%w: since %.40q is not the number of an entry", ErrInvalid, text)
		}
		r.Since = n
	}
	if text := q.Get("last"); text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return r, fmt.Errorf("%w: last %.40q is not a number of entries", ErrInvalid, text)
		}
		r.Last = int(n)
	}
	return r, checkText("deployment", r.Deployment, MaxDeployment)
}

func (r *AnswerRequest) by(c Caller)   { r.Caller = c }
func (r *HoldRequest) by(c Caller)     { r.Caller = c }
func (r *ReleaseRequest) by(c Caller)  { r.Caller = c }
func (r *ReturnRequest) by(c Caller)   { r.Caller = c }
func (r *RollbackRequest) by(c Caller) { r.UID = c.UID }

func (r *RollbackRequest) check() error {
	if r.Version == 0 || r.Digest == "" {
		return fmt.Errorf("%w: name the version and the digest of the manifest", ErrInvalid)
	}
	return nil
}

func (r *AnswerRequest) check() error {
	return cmp.Or(
		checkNamed("deployment", r.Deployment),
		checkRevision(r.Revision),
		checkText("reason", r.Reason, MaxReason),
	)
}

func (r *HoldRequest) check() error {
	if r.Seconds < 0 || r.Seconds > MaxHoldSeconds {
		return fmt.Errorf("%w: seconds must be 1 to %d, or 0 to hold until released, not %d", ErrInvalid, MaxHoldSeconds, r.Seconds)
	}
	return cmp.Or(
		checkText("holder", r.Holder, MaxHolder),
		checkText("deployment", r.Deployment, MaxDeployment),
		checkText("reason", r.Reason, MaxReason),
	)
}

func (r *ReleaseRequest) check() error {
	if r.All && r.Holder != "" {
		return fmt.Errorf("%w: give holder or all, not both", ErrInvalid)
	}
	return checkText("holder", r.Holder, MaxHolder)
}

func (r *ReturnRequest) check() error {
	err := cmp.Or(
		checkNamed("deployment", r.Deployment),
		checkText("reason", r.Reason, MaxReason),
	)
	if err == nil && r.Revision != "" {
		err = checkRevision(r.Revision)
	}
	return err
}

func checkNamed(member, text string) error {
	if text == "" {
		return fmt.Errorf("%w: %s is missing", ErrInvalid, member)
	}
	return checkText(member, text, MaxDeployment)
}

// checkText accepts a line that any log and terminal can show.
func checkText(member, text string, most int) error {
	if len(text) > most {
		return fmt.Errorf("%w: %s is longer than %d bytes", ErrInvalid, member, most)
	}
	for _, r := range text {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return fmt.Errorf("%w: %s contains an unprintable character, %+q", ErrInvalid, member, r)
		}
	}
	return nil
}

// checkRevision requires the whole digest: an answer applies only to what was reviewed.
func checkRevision(text string) error {
	if text == "" {
		return fmt.Errorf("%w: revision is missing: name the one that was reviewed", ErrInvalid)
	}
	digits, ok := strings.CutPrefix(text, "sha256:")
	if !ok || len(digits) != 64 || strings.Trim(digits, "0123456789abcdef") != "" {
		return fmt.Errorf("%w: revision %.80q is not sha256: and 64 lowercase hex digits", ErrInvalid, text)
	}
	return nil
}
